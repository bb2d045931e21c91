#!/usr/bin/env python3
"""Gathers what the data generator draws and speaks with, from unpacked Debian packages, into one small folder.

    assets.py UNPACKED OUT      UNPACKED: a folder into which the packages of README.md were unpacked with `dpkg -x`

OUT holds `fonts/` (subset to printable ASCII), `words.txt` and `espeak/` (library, data and a stub of the sound library).
Nothing of it is committed: the packages keep their own licences.
"""
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

ASCII = [chr(c) for c in range(33, 127)]
PER_FAMILY, MOST = 3, 700
SKIP = ("symbol", "emoji", "icon", "math", "dingbat", "braille", "initials", "swash", "ornament", "aenigma", "expert", "outline",
        "awesome", "music", "noncommercial", "unifont", "extraglyph", "smufl", "shadow", "zapfino")
MAX_BYTES = 60_000


def family(path):
    """Faces of one design share a family, so that a held-out design is held out whole."""
    name = path.stem.split("-")[0].split("_")[0].lower()
    for word in ("bold", "italic", "regular", "oblique", "light", "medium", "book", "thin", "black", "condensed", "mono"):
        name = name.replace(word, "")
    return name.rstrip("0123456789")[:9] or path.stem.lower()


def ink(font, text):
    image = Image.new("L", (120, 80))
    ImageDraw.Draw(image).text((20, 10), text, font=font, fill=255)
    return image


def readable(path):
    """Whether every printable character has its own glyph; a face of capitals only cannot say what case it shows."""
    try:
        font = ImageFont.truetype(str(path), 36)
        seen = {ink(font, c).tobytes() for c in ASCII}
        height = ink(font, "x").getbbox()
        return len(seen) >= len(ASCII) - 2 and height is not None and ink(font, "a").tobytes() != ink(font, "A").tobytes()
    except OSError:
        return False


def take(path, out):
    font = TTFont(path, lazy=True, fontNumber=0)
    if not {ord(c) for c in ASCII} <= set(font.getBestCmap() or {}):
        return False
    options = subset.Options(layout_features=["kern"], hinting=False, notdef_outline=True, name_IDs=[1], drop_tables=["GSUB"])
    options.drop_tables += ["DSIG", "FFTM", "Silf", "Glat", "Gloc", "Feat", "Sill"]
    cut = subset.Subsetter(options)
    cut.populate(unicodes=range(32, 127))
    cut.subset(font)
    font.save(out)
    return out.stat().st_size <= MAX_BYTES and readable(out)


def fonts(root, out):
    out.mkdir(parents=True, exist_ok=True)
    found = [p for kind in ("ttf", "otf") for p in root.rglob(f"*.{kind}") if not p.is_symlink()]
    # An order that has nothing to do with names, and does not change from run to run.
    found.sort(key=lambda p: hashlib.sha1(p.name.encode()).hexdigest())
    count = {}
    for path in found:
        key = family(path)
        if sum(count.values()) >= MOST or count.get(key, 0) >= PER_FAMILY or any(s in str(path).lower() for s in SKIP):
            continue
        target = out / f"{key}__{path.name}"
        try:
            good = take(path, target)
        except Exception as error:  # a face that fontTools cannot cut is only left out
            print("left out", path.name, type(error).__name__)
            good = False
        if good:
            count[key] = count.get(key, 0) + 1
        else:
            target.unlink(missing_ok=True)
    print(f"{sum(count.values())} faces of {len(count)} families")


def speech(root, out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    lib = root / "usr/lib/x86_64-linux-gnu"
    for name in ("libespeak-ng.so.1", "libsonic.so.0"):
        shutil.copy((lib / name).resolve(), out / name)
    data = out / "espeak-ng-data"
    data.mkdir()
    for name in ("phondata", "phonindex", "phontab", "intonations", "en_dict"):
        shutil.copy(lib / "espeak-ng-data" / name, data / name)
    shutil.copytree(lib / "espeak-ng-data/voices/!v", data / "voices/!v")
    (data / "lang").mkdir()
    shutil.copytree(lib / "espeak-ng-data/lang/gmw", data / "lang/gmw")
    # The library links against a sound server's client; nothing of it is called when samples are only retrieved.
    source = out / "pcaudio.c"
    names = ("create_audio_device_object", "audio_object_open", "audio_object_close", "audio_object_destroy",
             "audio_object_write", "audio_object_drain", "audio_object_flush", "audio_object_strerror")
    source.write_text("\n".join(f"int {n}(void) {{ return -1; }}" for n in names))
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libpcaudio.so.0", "-o", str(out / "libpcaudio.so.0"), str(source)], check=True)
    source.unlink()


def words(root, out):
    lists = [root / "usr/share/dict" / n for n in ("american-english-small", "american-english-large")]
    seen = dict.fromkeys(w for path in lists for w in path.read_text().split()
                         if w.isascii() and w.isalpha() and 2 <= len(w) <= 12)
    common = sum(1 for w in set(lists[0].read_text().split()) & seen.keys())
    # Common words first; the first line says how many they are.
    out.write_text("\n".join([str(common), *seen]) + "\n")
    print(f"{len(seen)} words, {common} common")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    fonts(root, out / "fonts")
    speech(root, out / "espeak")
    words(root, out / "words.txt")
