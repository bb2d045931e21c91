#!/usr/bin/env python3
"""Weft beside its peers, interleaved in one run on this machine; prints one JSON object a comparison.

usage: peers.py --weft target/release/weft --weights tests/.cache/weights [--node DIR] [--rounds 3] [--only PART]...

Needs requirements.txt; for llama.cpp a folder (--node) in which `npm install node-llama-cpp@3.21.1` ran. A peer that is
missing is said to be missing. The machine's load is printed: figures of a busy machine are not worth keeping.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
THREADS = 2


def run(*words, cwd=None):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {done.stderr[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def timed(function, repeats=3):
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def report(what, unit, ours, peer, theirs):
    """Medians over the rounds and their ratio; more than 1 means that Weft is faster."""
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    ratio = theirs / ours if unit == "ms" else ours / theirs
    print(json.dumps({"compare": what, "unit": unit, "weft": round(ours, 2), "peer": peer, "peer_figure": round(theirs, 2),
                      "weft_over_peer": round(ratio, 3), "load": round(os.getloadavg()[0], 2)}), flush=True)


def text_model(weft, gguf, node, rounds):
    ours, theirs = {"decode": [], "prefill": []}, {"decode": [], "prefill": []}
    for _ in range(rounds):
        # Modules are found beside the script, so it runs from the folder that has them.
        script = node / "llama.mjs"
        script.write_text((ROOT / "tests/bench/llama.mjs").read_text())
        line, = run("node", script, gguf, THREADS, cwd=node)
        theirs["decode"].append(line["decode_tokens_per_s"])
        theirs["prefill"].append(line["prefill_512_tokens_per_s"])
        common = ["--model", f"chat={gguf}", "--threads", THREADS, "--json"]
        ours["decode"].append(run(weft, "bench", "decode", "--batch", 1, *common)[0]["tokens_per_s"])
        ours["prefill"].append(run(weft, "bench", "prefill", "--tokens", 512, *common)[0]["tokens_per_s"])
    for kind in ours:
        report(f"SmolLM2-135M Q4_1 {kind}", "tokens/s", ours[kind], "llama.cpp", theirs[kind])


class Server:
    """A running `weft serve` without an encoder cache, so that a repeated clip is all of its work again."""

    def __init__(self, weft, model):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name) / "weft.yaml"
        config.write_text("memory: {encoder_cache_mib: 0}\n")
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [str(w) for w in (weft, "serve", "--config", config, "--model", f"whisper={model}", "--threads", THREADS,
                              "--listen", f"127.0.0.1:{port}")], stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the server did not become ready")

    def transcribe(self, path):
        answer = httpx.post(f"{self.url}/v1/audio/transcriptions", timeout=300, data={"model": "whisper"},
                            files={"file": (path.name, path.read_bytes())})
        answer.raise_for_status()
        return answer.json()["text"]

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def whisper(weft, weights, rounds):
    from faster_whisper import WhisperModel
    for name in ("whisper-tiny.en", "whisper-base"):
        folder = weights / f"ct2-{name}"
        if not folder.is_dir():
            print(json.dumps({"compare": name, "missing": f"tests/weights/fetch ct2-{name}"}), flush=True)
            continue
        model = WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=THREADS)
        server = Server(weft, weights / name)
        for clip in ("clip1.flac", "long.flac"):
            path = ROOT / "tests/golden/real" / clip
            peer = lambda: [s.text for s in model.transcribe(str(path), beam_size=1, condition_on_previous_text=False)[0]]
            ours, theirs = [], []
            server.transcribe(path), peer()
            for _ in range(rounds):
                for function, times in ((lambda: server.transcribe(path), ours), (peer, theirs)):
                    began = time.perf_counter()
                    function()
                    times.append((time.perf_counter() - began) * 1e3)
            report(f"{name} {clip}, file to text over HTTP", "ms", ours, "faster-whisper float32, in process", theirs)
        server.stop()


def media(weft, rounds):
    import numpy as np
    from PIL import Image
    from transformers import WhisperFeatureExtractor
    cache = ROOT / "tests/.cache/bench"
    cache.mkdir(parents=True, exist_ok=True)
    photo, clip = cache / "photo_12mp.jpg", cache / "clip_30s.wav"
    rng = np.random.default_rng(0)
    base = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).resize((4000, 3000), Image.BICUBIC)
    base.save(photo, quality=90)
    import soundfile
    samples = rng.normal(0, 0.1, 30 * 16000).astype(np.float32)
    soundfile.write(clip, samples, 16000, subtype="PCM_16")
    extractor = WhisperFeatureExtractor(feature_size=80)

    def pillow():
        return np.asarray(Image.open(photo).convert("RGB").resize((512, 512), Image.BICUBIC))

    ours, theirs = {"image": [], "audio": []}, {"image": [], "audio": []}
    for _ in range(rounds):
        theirs["image"].append(timed(pillow) * 1e3)
        theirs["audio"].append(timed(lambda: extractor(samples, sampling_rate=16000)) * 1e3)
        for line in run(weft, "bench", "media", photo, clip, "--threads", THREADS, "--json"):
            ours["image" if "photo" in line["case"] else "audio"].append(line["ms_p50"])
    report("12-megapixel JPEG to patches", "ms", ours["image"], "Pillow decode and resize to 512x512", theirs["image"])
    report("30 s WAV to log-mel", "ms", ours["audio"], "transformers WhisperFeatureExtractor", theirs["audio"])


def omni(weft, rounds):
    import torch
    from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration as Thinker
    torch.set_num_threads(THREADS)
    path = ROOT / "samples/models/tiny-omni"
    model = Thinker.from_pretrained(path, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(path)("Count to ten.", return_tensors="pt").input_ids
    ask = lambda n: model.generate(input_ids=ids, max_new_tokens=n, min_new_tokens=n, do_sample=False)
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append((timed(lambda: ask(65)) - timed(lambda: ask(1))) / 64 * 1e3)
        ours.append(run(weft, "bench", "decode", "--batch", 1, "--steps", 64, "--threads", THREADS, "--json")[0]["step_ms_p50"])
    report("tiny Omni decode step", "ms", ours, "transformers float32", theirs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--weights", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--node", type=lambda p: Path(p).resolve())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["text", "media", "omni", "whisper"], action="append")
    words = parser.parse_args()
    gguf = next(words.weights.glob("smollm2-*/*.gguf"))
    start, = run(words.weft, "bench", "start", "--json")
    print(json.dumps(start), flush=True)
    parts = {"text": lambda: text_model(words.weft, gguf, words.node, words.rounds),
             "media": lambda: media(words.weft, words.rounds), "omni": lambda: omni(words.weft, words.rounds),
             "whisper": lambda: whisper(words.weft, words.weights, words.rounds)}
    for name in words.only or parts:
        try:
            if name == "text" and not words.node:
                raise RuntimeError("llama.cpp needs --node")
            parts[name]()
        except (ImportError, RuntimeError) as error:
            print(json.dumps({"compare": name, "missing": str(error)}), flush=True)
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
