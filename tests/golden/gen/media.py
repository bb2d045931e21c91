"""The pictures and clips of the Omni cases: tests/golden/media, and the two samples of the demo."""
import wave

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .common import MEDIA, ROOT, speak

FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf"


def font(size):
    return ImageFont.truetype(FONT, size)


def scene(width, height, seed):
    """A smooth picture with a few shapes and a word: compresses well and is nowhere constant."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    colours = random.uniform(40, 215, (3, 3))
    planes = [c[0] + (c[1] - c[0]) * x + (c[2] - c[0]) * y + 20 * np.sin(6 * x + i) for i, c in enumerate(colours)]
    image = Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        left, top = random.integers(0, width), random.integers(0, height)
        size = int(random.integers(4, max(6, min(width, height) // 2)))
        colour = tuple(int(c) for c in random.integers(0, 256, 3))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape([int(left - size), int(top - size // 2), int(left + size), int(top + size)], fill=colour)
    if min(width, height) >= 40:
        draw.text((4, 4), "WEFT"[: max(1, width // 20)], font=font(min(width, height) // 4), fill="white")
    return image


# Sizes that are multiples of 28 with at least 56 x 56 pixels pass the resize unchanged.
SCENES = {"56x56": 1, "84x84": 2, "112x56": 3, "140x140": 4, "196x84": 5, "56x168": 6, "224x112": 7, "112x112": 8,
          "28x112": 9, "252x224": 10, "100x75": 11, "333x250": 12, "57x113": 13, "10x7": 14, "1x1": 15, "600x40": 16}

SPEECH = {  # name -> (words, voice, speed, seconds)
    "word": ("Seven.", "en-us", 150, 0.7),
    "sentence": ("The kettle is on the stove.", "en-gb", 165, 1.9),
    "exactly_one_window": ("Please count the red boats.", "en-us+f3", 160, 2.0),
    "two_windows": ("Every thread of the cloth was blue, except for one.", "en-us", 160, 3.13),
    "long": ("The train to the coast leaves at nine in the morning, and the last one back leaves at half past ten at night.",
             "en-gb+m3", 165, 7.21),
}


def write_wave(path, samples):
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(16000)
        out.writeframes(np.clip(np.round(samples * 32767), -32768, 32767).astype("<i2").tobytes())


def tone(seconds, start, end):
    t = np.arange(int(16000 * seconds)) / 16000
    return 0.4 * np.sin(2 * np.pi * (start * t + (end - start) * t * t / (2 * seconds)))


def media():
    MEDIA.mkdir(exist_ok=True)
    for size, seed in SCENES.items():
        width, height = map(int, size.split("x"))
        scene(width, height, seed).save(MEDIA / f"scene_{size}.png", optimize=True)
    scene(168, 126, 21).save(MEDIA / "scene_168x126.jpg", quality=92, subsampling=0)
    for name, (words, voice, speed, seconds) in SPEECH.items():
        speak(words, MEDIA / f"{name}.wav", voice, speed, seconds=seconds)
    write_wave(MEDIA / "blip.wav", tone(0.05, 700, 900))
    write_wave(MEDIA / "sweep.wav", tone(1.2, 100, 7000))
    write_wave(MEDIA / "silence.wav", np.zeros(8000))
    samples()


def samples():
    """samples/media: what `weft demo` shows."""
    out = ROOT / "samples" / "media"
    out.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (448, 336), "#f3ead7")
    draw = ImageDraw.Draw(image)
    draw.rectangle([0, 0, 448, 150], fill="#9fc6d9")
    draw.rectangle([40, 60, 408, 336], fill="#c98f5a")
    draw.rectangle([40, 60, 408, 124], fill="#27475e")
    draw.text((224, 92), "WEFT & WARP", font=font(38), fill="#f6d78b", anchor="mm")
    for i in range(8):
        draw.polygon([(40 + 46 * i, 124), (86 + 46 * i, 124), (80 + 46 * i, 156), (46 + 46 * i, 156)],
                     fill="#c8442f" if i % 2 else "#f7f2e8")
    draw.rectangle([64, 176, 220, 300], fill="#dff1f5", outline="#5b3a1e", width=5)
    for i, colour in enumerate(("#b3282d", "#2f6b3a", "#2b4c8c", "#e0a52e")):
        draw.rectangle([76 + 35 * i, 230, 104 + 35 * i, 294], fill=colour)
        draw.ellipse([76 + 35 * i, 220, 104 + 35 * i, 240], fill=colour, outline="#00000030")
    draw.rectangle([246, 176, 316, 336], fill="#6d3f22", outline="#46260f", width=5)
    draw.ellipse([296, 252, 306, 262], fill="#f6d78b")
    draw.rectangle([328, 184, 404, 276], fill="#fffdf4", outline="#5b3a1e", width=3)
    for i, line in enumerate(("OPEN", "Mon-Sat", "9 - 17", "Wool 4.50")):
        draw.text((366, 200 + 20 * i), line, font=font(10), fill="#27475e", anchor="mm")
    image.save(out / "shop.png", optimize=True)
    speak("What is written on the sign, and what time does the shop close?", out / "question.wav", "en-gb", 160,
          sox=("gain", "-n", "-3"))
