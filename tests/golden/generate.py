#!/usr/bin/env python3
"""Makes the golden numbers of this folder from the reference implementation. See README.md.

    generate.py WHAT...        WHAT: media, omni, embedded, logmel, images, odd, text, whisper, families, or all
"""
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
PARTS = {
    "media": "media", "omni": "omni", "embedded": "omni", "logmel": "logmel", "images": "images",
    "odd": "odd", "text": "text", "whisper": "whisper", "families": "families",
}

if __name__ == "__main__":
    wanted = list(PARTS) if sys.argv[1:] == ["all"] else sys.argv[1:]
    if not wanted or any(w not in PARTS for w in wanted):
        sys.exit(__doc__)
    for what in wanted:
        print(f"== {what}", file=sys.stderr, flush=True)
        getattr(importlib.import_module(f"gen.{PARTS[what]}"), what)()
