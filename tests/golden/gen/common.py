"""What every generator shares: paths, versions, writing JSON and tensors, speaking and reading clips."""
import importlib.metadata
import json
import platform
import subprocess
import tempfile
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1]
ROOT = GOLDEN.parents[1]
MEDIA = GOLDEN / "media"


def versions(*packages):
    """Who made a fixture: recorded in every JSON file here."""
    return {"generator": "tests/golden/generate.py", "python": platform.python_version(),
            **{p: importlib.metadata.version(p) for p in packages}}


def tool_version(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]


def write_json(path, value):
    """JSON with one line for every list of plain numbers, so that a diff can be read."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_lines(value, 0) + "\n")


def _lines(value, depth):
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{pad}{json.dumps(k)}: {_lines(v, depth + 1)}" for k, v in value.items())
        return "{\n" + inner + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return "[\n" + ",\n".join(pad + _lines(v, depth + 1) for v in value) + "\n" + " " * depth + "]"
    return json.dumps(value, ensure_ascii=False)


def write_tensors(path, tensors, **about):
    from safetensors.numpy import save_file
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path, metadata={k: str(v) for k, v in about.items()})
    path.chmod(0o644)


def speak(text, path, voice="en-us", speed=160, pitch=50, seconds=None, sox=()):
    """Speaks `text` into a 16 kHz mono 16-bit file, cut or padded to `seconds` when given. Deterministic."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(raw), text], check=True)
        effects = list(sox) + (["pad", "0", str(seconds), "trim", "0", str(seconds)] if seconds else [])
        subprocess.run(["sox", "-V1", "-D", "-R", str(raw), "-r", "16000", "-c", "1", "-b", "16", str(path), *effects], check=True)


def read_audio(path):
    """Mono 16 kHz samples in float32, 16-bit values divided by 32768."""
    import soundfile
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000 and samples.ndim == 1, (path, rate, samples.shape)
    return samples
