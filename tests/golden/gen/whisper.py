"""Whisper tiny.en and base in float32: five spoken clips and one of two minutes, greedy, with and without timestamps."""
import hashlib
import json
import re
import subprocess

import numpy as np
import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from .common import GOLDEN, read_audio, speak, tool_version, versions, write_json, write_tensors
from .text import WEIGHTS

OUT = GOLDEN / "real"
# Sentences and voices that both reference models hear well, so that a word error is the service's and not espeak's.
CLIPS = [  # name, voice, words a minute, pitch, words
    ("clip1", "en-us", 140, 50, "It was raining all day, but the children were happy to stay inside and read."),
    ("clip2", "en-gb", 150, 45, "Please close the window before you leave the house, because it may rain this evening."),
    ("clip3", "en-us+f3", 140, 50, "We need to finish this work before Friday because the customer is waiting."),
    ("clip4", "en-gb-x-rp", 140, 50, "There are many good reasons to learn a new language, and it is never too late to start."),
    ("clip5", "en-us+m7", 140, 50, "My favorite season is autumn, when the leaves turn yellow and the air is cool."),
]
LONG = ("long", "en-us", 145, 50, """
Every town along the coast has its own story about the great storm. The people in our town say that it began on a quiet
Sunday afternoon, when the sea was so flat that it looked like glass. An old woman who lived near the beach told everyone to
come home. Nobody listened, because the sky was blue and there was no wind at all. In the evening the first clouds appeared,
and soon it was dark. The wind came from the north, and it was so strong that nobody was able to stand in the street. Trees
were falling, and the children were afraid. The men who had stayed in the village worked together in the cold water for
hours to save as much as they could. Some of the boats were still out on the water. Their families made a fire on the hill
above the beach, and they watched it until the morning. Most of the boats came back before midnight. The last one, a small
boat with two brothers, was missing for two days. On Tuesday morning a farmer found it on a beach to the south. The boat was
broken, but the brothers were alive. They were sitting on the ground, eating apples and waiting for help. Since that day
there has been a fire on the hill every year. Visitors come from far away to see it. They eat fish and apples, they listen
to music, and when the fire is burning, everyone is quiet for a moment. Then the party begins. The old woman never said that
she had been right. When people asked her how she had known, she only smiled and pointed at the sky, because all of the
birds had left the village early that morning. If you want to know what the weather will be, she said, you have to look at
those who cannot read a newspaper. I was still a child when my grandmother told me this story. I did not believe her, and I
asked my teacher if it was true. He laughed and said that there are many stories like this one. But every year, when the
summer is over and the days are getting short, I look at the birds before I leave the house.
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
    about = versions("transformers", "torch", "tokenizers", "soundfile")
    about["espeak-ng"] = tool_version("espeak-ng", "--version").split("  ")[0]
    records, tensors, known = [], {}, earlier(OUT / f"{out}.json", about)
    for name, voice, words, path in clips:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if (kept := known.get(name)) and kept.get("sha256") == digest:
            records.append(kept)
            continue
        samples = read_audio(path)
        long = len(samples) > 480000
        options = dict(truncation=False, padding="longest", return_attention_mask=True) if long else {}
        features = extractor(samples, sampling_rate=16000, return_tensors="pt", **options).input_features
        record = dict(id=name, file=path.name, sha256=digest, voice=voice, seconds=round(len(samples) / 16000, 3), words=words)
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
        save(model, folder, out, about, records, tensors)


def earlier(path, about):
    """Records of an earlier run by the same versions: a clip whose bytes did not change is not transcribed again."""
    old = json.loads(path.read_text()) if path.exists() else {}
    return {c["id"]: c for c in old["clips"]} if old.get("made_by") == about else {}


def save(model, folder, out, about, records, tensors):
    config = model.generation_config
    write_json(OUT / f"{out}.json", dict(
        about="float32, greedy, temperature 0, no fallback, no conditioning on earlier text; plain is without timestamps; "
              "the long clip is the sequential algorithm of transformers (log-mel once over the whole clip, each window of "
              "3000 frames zero-padded in the log-mel domain); logits before any suppression",
        made_by=about, checkpoint=folder, prompt_ids=prompt(model, records[0].get("language_id")),
        no_timestamps_token_id=config.no_timestamps_token_id, clips=records))
    if tensors:
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
