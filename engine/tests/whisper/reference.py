"""What transformers computes on the random Whisper of `checkpoint.rs`: writes `reference.json` beside this file.

    python reference.py        (transformers 5.17.0, torch 2.11.0, CPU, float32)

Weights and clips come from the same integer generator on both sides, so only the results are stored.
"""
import json
import pathlib

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

MASK = (1 << 64) - 1
TEXT = 40  # tokens of text; then end, start, 3 languages, translate, transcribe, previous, no speech, no timestamps
SIZES = dict(vocab_size=101, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
             decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=50,
             max_target_positions=40)
TOKENS = dict(eos_token_id=40, pad_token_id=40, bos_token_id=40, decoder_start_token_id=41)


def noise(name, count):
    """Values in [-1, 1] from the name alone."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    values = np.empty(count, dtype=np.float64)
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        values[i] = (state >> 33) % 2000001 / 1000000.0 - 1.0
    return values


def weight(name, shape):
    values = noise(name, int(np.prod(shape)))
    if "norm.weight" in name:
        values = 1.0 + 0.1 * values
    elif name.endswith("bias"):
        values = 0.1 * values
    elif "embed" not in name:
        values = 0.75 * values
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def model():
    config = WhisperConfig(**SIZES, **TOKENS, suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager")
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(weight(name, tuple(tensor.shape)))
    model.generation_config = GenerationConfig(
        **TOKENS, max_length=448, is_multilingual=True, no_timestamps_token_id=49, prev_sot_token_id=47,
        max_initial_timestamp_index=10, suppress_tokens=[3, 7, 41, 45, 46, 47, 48], begin_suppress_tokens=[5, 40],
        lang_to_id={"<|en|>": 42, "<|de|>": 43, "<|fr|>": 44}, task_to_id={"translate": 45, "transcribe": 46},
        return_timestamps=False)
    return model


class Gaps:
    def __init__(self):
        self.least = float("inf")

    def __call__(self, _, scores):
        top = scores.topk(2).values[0]
        self.least = min(self.least, float(top[0] - top[1]))
        return scores


def clip(name, frames):
    return torch.from_numpy(noise(name, frames * 8).astype(np.float32).reshape(1, frames, 8)).transpose(1, 2)


@torch.no_grad()
def main():
    whisper = model()
    window = clip("window", 100)
    encoded = whisper.model.encoder(window).last_hidden_state
    logits = whisper(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([[41, 42, 46, 50, 11, 12]])).logits[0]
    cases = []
    for number, (frames, options) in enumerate([
        (100, dict(task="transcribe")), (250, dict(task="transcribe")), (333, dict(task="translate")), (180, dict(language="de", task="transcribe")),
        (420, dict(task="transcribe")), (350, dict(task="transcribe", condition_on_prev_tokens=True)),
        (300, dict(language="en", task="transcribe", prompt_ids=[1, 2, 3, 4])), (101, dict(task="transcribe")),
        (640, dict(language="fr", task="transcribe", condition_on_prev_tokens=True, prompt_ids=list(range(30)))),
    ]):
        name, gaps = f"clip{number}", Gaps()
        call = dict(return_timestamps=True, condition_on_prev_tokens=False, language=None) | options
        if "prompt_ids" in call:
            call["prompt_ids"] = torch.tensor([47] + call["prompt_ids"])
        features = clip(name, frames)
        out = whisper.generate(features, logits_processor=[gaps], do_sample=False, num_beams=1, temperature=0.0,
                               return_segments=True, **call)
        segments = [dict(start=round(float(s["start"]), 4), end=round(float(s["end"]), 4), tokens=s["tokens"].tolist())
                    for s in out["segments"][0]]
        spoken = [segment for segment in segments if any(token < TEXT for token in segment["tokens"])]
        language = int(whisper.detect_language(features[:, :, :100])[0])
        cases.append(dict(name=name, frames=frames, heard=language, min_gap=round(gaps.least, 5), segments=spoken, **options))
        print(name, frames, options, language, f"gap {gaps.least:.5f}", [(s["start"], s["end"], len(s["tokens"])) for s in segments])
    round_all = lambda tensor: [round(float(value), 6) for value in tensor.flatten()]
    result = dict(made_by=dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0]),
                  encoded=round_all(encoded[0]), logits=round_all(logits), cases=cases)
    path = pathlib.Path(__file__).with_name("reference.json")
    path.write_text(json.dumps(result, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


main()
