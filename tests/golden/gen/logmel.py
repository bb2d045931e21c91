"""Log-mel fixtures: six clips through WhisperFeatureExtractor, as Whisper (80 bands, padded to 30 s) and as Qwen2.5-Omni
(128 bands, padded to 300 s, real frames only) use it. Long results keep some frames; sums cover all of them."""
import subprocess

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from .common import GOLDEN, read_audio, speak, tool_version, versions, write_json, write_tensors
from .media import tone, write_wave

OUT = GOLDEN / "media_fixtures" / "logmel"
THIRTY = ("A weaver sets the warp threads first, side by side and tight. Then the shuttle carries the weft across, over one "
          "and under the next, again and again, until the cloth is wide and strong. Some patterns repeat every four threads, "
          "others only after hundreds. In the old mill by the river there were two hundred looms, and on a busy day their "
          "noise could be heard from the other side of the valley. Today one of them still runs, for visitors, on the first "
          "Sunday of the month, and the cloth that it makes is sold at the door for a fair price. Children may try it too.")


def clips():
    OUT.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(3)
    speak("The shuttle flies from left to right.", OUT / "speech.wav", "en-gb", 160, seconds=2.2)
    write_wave(OUT / "silence.wav", np.zeros(8000))
    write_wave(OUT / "short.wav", tone(300 / 16000, 500, 600))
    write_wave(OUT / "noise.wav", 0.25 * random.standard_normal(12345))
    write_wave(OUT / "sweep.wav", tone(1.5, 50, 7900))
    speak(THIRTY, OUT / "thirty.wav", "en-us", 150, seconds=30)
    subprocess.run(["sox", "-D", str(OUT / "thirty.wav"), str(OUT / "thirty.flac")], check=True)
    (OUT / "thirty.wav").unlink()
    return ["speech.wav", "silence.wav", "short.wav", "noise.wav", "sweep.wav", "thirty.flac"]


def kept(real, padded):
    """Which frames to store: all of a short clip, some of a long one, always both ends and the first of the padding."""
    step = max(1, real // 100)
    ends = [*range(min(8, real)), *range(max(0, real - 6), min(padded, real + 4)), padded - 1]
    return np.array(sorted({*range(0, real, step), *(e for e in ends if e < padded)}), dtype=np.int64)


def logmel():
    torch.set_num_threads(1)
    kinds = {"whisper80": WhisperFeatureExtractor(feature_size=80),
             "omni128": WhisperFeatureExtractor(feature_size=128, chunk_length=300)}
    tensors, records = {}, []
    for file in clips():
        name = file.split(".")[0]
        samples = read_audio(OUT / file)
        record = dict(file=file, samples=len(samples))
        for kind, extractor in kinds.items():
            out = extractor(samples, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="np")
            mel, real = out["input_features"][0], int(out["attention_mask"][0].sum())
            if kind == "omni128":
                mel = mel[:, :real]
            frames = kept(real, mel.shape[1])
            tensors[f"{name}.{kind}"] = mel[:, frames]
            tensors[f"{name}.{kind}.frames"] = frames
            record[kind] = dict(real_frames=real, frames=mel.shape[1], sum=float(mel.sum(dtype=np.float64)),
                                sum_of_squares=float((mel.astype(np.float64) ** 2).sum()),
                                min=float(mel.min()), max=float(mel.max()))
        records.append(record)
    write_json(OUT / "logmel.json", dict(
        about="values in logmel.safetensors: CLIP.KIND f32 [bands, kept], CLIP.KIND.frames i64 [kept]; sums over all frames; "
              "samples are 16-bit values / 32768",
        made_by=versions("transformers", "torch", "numpy", "soundfile") | {"espeak-ng": tool_version("espeak-ng", "--version")},
        clips=records))
    write_tensors(OUT / "logmel.safetensors", tensors)
