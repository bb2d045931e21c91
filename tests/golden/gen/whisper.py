"""Whisper tiny.en and base in float32: five spoken clips and one of two minutes, greedy, with and without timestamps."""
import re
import subprocess

import numpy as np
import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from .common import GOLDEN, read_audio, speak, tool_version, versions, write_json, write_tensors
from .text import WEIGHTS

OUT = GOLDEN / "real"
CLIPS = [  # name, voice, words a minute, pitch, words
    ("clip1", "en-us", 150, 50, "The ferry to the island leaves every morning, and it comes back before sunset."),
    ("clip2", "en-gb", 150, 45, "Please close the window before you leave the house, because it may rain this evening."),
    ("clip3", "en-us+f3", 145, 60, "My sister bought a red bicycle, but she still walks to school when the weather is good."),
    ("clip4", "en-gb-x-rp", 150, 40, "Fresh bread smells wonderful. We buy two loaves on Saturday and share them with our neighbours."),
    ("clip5", "en-us+m3", 150, 35, "The museum opens at ten. Children can visit for free, and there is a small garden behind the main building."),
]
LONG = ("long", "en-us", 150, 50, """
Every town along the coast has its own story about the great storm. The people in our town say that it began on a quiet
Sunday afternoon, when the sea was so flat that the fishing boats looked as if they were standing on glass. An old woman who
lived near the harbour told everyone to bring the boats in. Nobody listened, because the sky was blue and the wind was
asleep. By six in the evening the first clouds appeared in the west. By seven it was dark. The wind came from the north, and
it was so strong that people could not walk along the main street. Windows broke, trees fell, and the church bell rang
without a hand on the rope. The men who had stayed in the harbour tied their boats together with long ropes, and they
stood in the cold water for hours to keep them from hitting the wall. Four boats were still at sea that night. The women lit
a fire on the hill above the beach, and they kept it burning until the morning, so that the boats could find the way home.
Three of them came back before midnight. The last one, a small green boat with two brothers on board, was missing for two
days. On Tuesday morning a farmer found it on a beach ten miles to the south. The boat was broken, but the brothers were
alive. They were sitting behind a rock, eating apples from a box that had washed up beside them. Since that day the town has
kept a fire on the hill, once a year, on the last Sunday of October. Visitors come from far away to see it. They eat fried
fish and warm apples, they listen to music, and when the fire is lit, everyone is quiet for one minute. Then the church bell
rings, but this time there is a hand on the rope, and the party begins. The old woman never said that she had been right.
When people asked her how she had known, she only smiled and pointed at the birds, which had left the harbour early that
morning. If you want to know what the weather will be, she said, look at those who cannot read a newspaper.
""")


class Gaps:
    """A logits processor that runs last and remembers how far apart the first two choices were."""
    def __init__(self):
        self.least = float("inf")

    def __call__(self, _, scores):
        top = scores.topk(2).values[0]
        self.least = min(self.least, float(top[0] - top[1]))
        return scores


def words_of(text):
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower().replace("-", " ")).split()


def word_error_rate(truth, heard):
    a, b = words_of(truth), words_of(heard)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1] / len(a)


def make_clips():
    for name, voice, speed, pitch, words in [*CLIPS, LONG]:
        path = OUT / f"{name}.flac"
        speak(" ".join(words.split()), OUT / "raw.wav", voice, speed, pitch)
        subprocess.run(["sox", "-D", "-V1", str(OUT / "raw.wav"), "-C", "8", str(path)], check=True)
        (OUT / "raw.wav").unlink()
        yield name, voice, " ".join(words.split()), path


def run(model, tokenizer, features, **options):
    gaps = Gaps()
    kwargs = dict(language=None, task="transcribe") if model.generation_config.is_multilingual else {}
    out = model.generate(features, logits_processor=[gaps], do_sample=False, num_beams=1, temperature=0.0,
                         condition_on_prev_tokens=False, return_segments=True, **kwargs, **options)
    ids = out["sequences"][0].tolist()
    segments = [dict(start=round(float(s["start"]), 2), end=round(float(s["end"]), 2), ids=s["tokens"].tolist(),
                     text=tokenizer.decode(s["tokens"], skip_special_tokens=True)) for s in out["segments"][0]]
    return dict(text=tokenizer.decode(ids, skip_special_tokens=True), ids=ids, min_gap=round(gaps.least, 5), segments=segments)


@torch.no_grad()
def transcribe(folder, clips, out):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / folder)
    extractor = WhisperFeatureExtractor.from_pretrained(WEIGHTS / folder)
    model = WhisperForConditionalGeneration.from_pretrained(WEIGHTS / folder, dtype=torch.float32).eval()
    records, tensors = [], {}
    for name, voice, words, path in clips:
        samples = read_audio(path)
        long = len(samples) > 480000
        options = dict(truncation=False, padding="longest", return_attention_mask=True) if long else {}
        features = extractor(samples, sampling_rate=16000, return_tensors="pt", **options).input_features
        record = dict(id=name, file=path.name, voice=voice, seconds=round(len(samples) / 16000, 3), words=words)
        if not long:
            record["plain"] = run(model, tokenizer, features, return_timestamps=False)
        record["timestamps"] = run(model, tokenizer, features, return_timestamps=True)
        if model.generation_config.is_multilingual:
            record["language_id"] = int(model.detect_language(features[:, :, :3000])[0])
        for mode in ("plain", "timestamps"):
            if mode in record:
                record[mode]["word_error_rate"] = round(word_error_rate(words, record[mode]["text"]), 4)
                print(f"{folder} {name} {mode}: wer {record[mode]['word_error_rate']:.3f}, gap {record[mode]['min_gap']:.4f} "
                      f"{record[mode]['text'][:90]}", flush=True)
        records.append(record)
        if name == "clip1":
            hidden = model.model.encoder(features).last_hidden_state
            start = record["plain"]["prompt_ids"] = prompt(model, record.get("language_id"))
            logits = model(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([start])).logits[0, -1].numpy()
            tensors = {f"{name}.encoder_every_100": hidden[0, ::100].numpy(), f"{name}.first_logits": logits[:4096]}
            order = np.argsort(-logits)[:20]
            record["plain"].update(top20_ids=order.tolist(), top20_logits=[round(float(logits[i]), 5) for i in order])
    config = model.generation_config
    write_json(OUT / f"{out}.json", dict(
        about="float32, greedy, temperature 0, no fallback, no conditioning on earlier text; plain is without timestamps; "
              "the long clip is the sequential algorithm of transformers (log-mel once over the whole clip, each window of "
              "3000 frames zero-padded in the log-mel domain); logits before any suppression",
        made_by=versions("transformers", "torch", "tokenizers", "soundfile") | {"espeak-ng": tool_version("espeak-ng", "--version")},
        checkpoint=folder, prompt_ids=prompt(model, records[0].get("language_id")),
        no_timestamps_token_id=config.no_timestamps_token_id, clips=records))
    write_tensors(OUT / f"{out}.safetensors", tensors, about="encoder_every_100 f32 [15, width]; first_logits f32 [4096]")


def prompt(model, language):
    config = model.generation_config
    middle = [language, config.task_to_id["transcribe"]] if language is not None else []
    return [config.decoder_start_token_id, *middle, config.no_timestamps_token_id]


def whisper():
    OUT.mkdir(exist_ok=True)
    clips = list(make_clips())
    transcribe("whisper-tiny.en", clips, "whisper_tiny_en")
    transcribe("whisper-base", clips, "whisper_base")
