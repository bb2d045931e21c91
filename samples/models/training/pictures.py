"""Draws text and scenes. Owns fonts and layouts; knows nothing of questions' wording, tokens or training.

A text picture is one channel of coverage: colours, tilt, noise and blur are drawn later on the card (`degrade`). A scene is
RGB. `centres` lists (x, y, character) of what is written, an aid to training. Held-out faces are whole families.
"""
import functools
import glob
import hashlib
import os

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (214, 32, 36), "green": (38, 150, 60), "blue": (36, 80, 214), "yellow": (245, 214, 40), "orange": (245, 136, 26),
    "purple": (128, 48, 160), "black": (20, 20, 20), "white": (248, 248, 248), "gray": (136, 136, 136), "pink": (246, 140, 180),
    "brown": (122, 76, 40),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")


def faces(folder, held):
    key = lambda p: hashlib.sha1(os.path.basename(p).split("__")[0].encode()).digest()[0] % 9 == 0
    return [p for p in sorted(glob.glob(folder + "/*.[to]tf")) if key(p) == held]


BASE = 32


@functools.lru_cache(4000)
def face(path, size):
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


@functools.lru_cache(200000)
def advance(path, character):
    """Width of a character at one pixel of size."""
    return face(path, BASE).getlength(character) / BASE


def length(font, text):
    return sum(advance(font.path, c) for c in text) * font.size


def fit(path, lines, size, width, height, gap=1.25):
    """The face at `size`, or as large as all lines allow; None where they would be too small to read."""
    widest = max(sum(advance(path, c) for c in t) for t in lines)
    size = min(size, width / max(widest, .1), height / (gap * len(lines)))
    if size < 10:
        return None
    # Few sizes, so that a face is opened once.
    return face(path, int(size) if size < 20 else int(size) // 2 * 2 if size < 36 else int(size) // 5 * 5)


def write(draw, font, text, x, y, fill, centres):
    draw.text((x, y), text, font=font, fill=fill, anchor="la")
    middle = y + font.size * .55
    for c in text:
        wide = advance(font.path, c) * font.size
        if c != " ":
            centres.append((x + wide / 2, middle, c))
        x += wide


def text_picture(r, fonts, lines, h, w, size=None):
    """One channel; lines below one another, anywhere in the picture."""
    pad = max(4, int(min(h, w) * .03))
    size = size or int(14 * (90 / 14) ** r.random())
    font = fit(r.choice(fonts), lines, size, w - 2 * pad, h - 2 * pad)
    if font is None:
        return None
    image, centres = Image.new("L", (w, h)), []
    draw = ImageDraw.Draw(image)
    step = font.size * r.uniform(1.15, 1.6) if font.size * 1.6 * len(lines) < h - 2 * pad else font.size * 1.2
    widths = [length(font, t) for t in lines]
    block, tall = max(widths), step * len(lines)
    centred = r.random() < .4
    x0 = (w - block) / 2 if centred else r.uniform(pad, max(pad, w - pad - block))
    y0 = (h - tall) / 2 if centred else r.uniform(pad, max(pad, h - pad - tall))
    middle = r.random() < .5
    for i, text in enumerate(lines):
        x = x0 + (block - widths[i]) / 2 if middle else x0
        write(draw, font, text, x, y0 + i * step, 255, centres)
    if r.random() < .15:
        frame(draw, r, x0, y0, block, tall, w, h)
    return np.asarray(image), centres


def frame(draw, r, x0, y0, block, tall, w, h):
    """A border or an underline, as signs and forms have."""
    m, thick = r.uniform(4, 14), r.randint(1, 3)
    if r.random() < .6:
        draw.rectangle([max(0, x0 - m), max(0, y0 - m), min(w - 1, x0 + block + m), min(h - 1, y0 + tall + m)], outline=r.randint(120, 255), width=thick)
    else:
        draw.line([x0, min(h - 1, y0 + tall + 2), x0 + block, min(h - 1, y0 + tall + 2)], fill=r.randint(120, 255), width=thick)


def form_picture(r, fonts, title, fields, h, w):
    """A receipt, label or ticket: a title, then names and values."""
    joined = r.random() < .55
    lines = ([title] if title else []) + [f"{k}: {v}" if joined else f"{k}    {v}" for k, v in fields]
    font = fit(r.choice(fonts), lines, int(13 * (40 / 13) ** r.random()), w - 16, h - 12)
    if font is None:
        return None
    image, centres = Image.new("L", (w, h)), []
    draw = ImageDraw.Draw(image)
    step = min(font.size * r.uniform(1.2, 1.7), (h - 10) / len(lines))
    block = max(length(font, t) for t in lines)
    width = block if joined else min(w - 16, block * r.uniform(1, 1.5))
    x = r.uniform(8, max(8, w - 8 - width))
    y = r.uniform(4, max(4, h - 4 - step * len(lines)))
    if title:
        write(draw, font, title, x + (width - length(font, title)) / 2, y, 255, centres)
        y += step
    for k, v in fields:
        write(draw, font, f"{k}:" if joined else k, x, y, 255, centres)
        at = x + length(font, f"{k}: ") if joined else x + width - length(font, v)
        write(draw, font, v, at, y, 255, centres)
        y += step
    return np.asarray(image), centres


def shade(r, name):
    return tuple(max(0, min(255, c + r.randint(-14, 14))) for c in COLOURS[name])


def shape(draw, kind, x, y, s, fill):
    if kind == "circle":
        draw.ellipse([x - s, y - s, x + s, y + s], fill=fill)
    elif kind == "square":
        draw.rectangle([x - s * .88, y - s * .88, x + s * .88, y + s * .88], fill=fill)
    elif kind == "cross":
        draw.rectangle([x - s, y - s * .3, x + s, y + s * .3], fill=fill)
        draw.rectangle([x - s * .3, y - s, x + s * .3, y + s], fill=fill)
    else:
        points = {"triangle": [(0, -1), (.95, .8), (-.95, .8)], "diamond": [(0, -1.1), (.75, 0), (0, 1.1), (-.75, 0)],
                  "star": [(0, -1.1), (.26, -.36), (1.05, -.34), (.42, .14), (.65, .9), (0, .44), (-.65, .9), (-.42, .14), (-1.05, -.34), (-.26, -.36)]}[kind]
        draw.polygon([(x + s * a, y + s * b) for a, b in points], fill=fill)


def scene_picture(r, things, ground, h, w):
    """RGB with `things` = [(shape, colour)]; returns their places, or None where they do not fit apart."""
    image = Image.new("RGB", (w, h), shade(r, ground))
    draw, placed = ImageDraw.Draw(image), []
    largest = min(h, w) * (.2 if len(things) <= 3 else .13)
    for kind, colour in things:
        s = r.uniform(max(9, largest * .45), largest)
        for _ in range(40):
            x, y = r.uniform(s * 1.15, w - s * 1.15), r.uniform(s * 1.15, h - s * 1.15)
            if all((x - a) ** 2 + (y - b) ** 2 > (1.2 * (s + c)) ** 2 for a, b, c in placed):
                break
        else:
            return None
        placed.append((x, y, s))
        shape(draw, kind, x, y, s, shade(r, colour))
    return np.asarray(image), placed


def chart_picture(r, fonts, names, values, h, w):
    """RGB bars with names below and either the values above them or a scale at the left."""
    light = r.random() < .8
    ground = tuple(r.randint(225, 255) for _ in range(3)) if light else tuple(r.randint(10, 50) for _ in range(3))
    ink = tuple(r.randint(0, 70) for _ in range(3)) if light else tuple(r.randint(200, 255) for _ in range(3))
    image = Image.new("RGB", (w, h), ground)
    draw, centres, scale = ImageDraw.Draw(image), [], r.random() < .3
    left, bottom, top = (34 if scale else 8), 24, 24
    slot = (w - left - 6) / len(names)
    font = fit(r.choice(fonts), [max(names, key=len)], r.randint(13, 18), slot - 3, 20)
    if font is None:
        return None
    most = max(values)
    unit = next(u for u in (1, 2, 5, 10, 20, 50, 100, 1000) if most / u <= 6)
    ceiling = (-(-most // unit)) * unit if scale else most * r.uniform(1, 1.3)
    y_of = lambda v: h - bottom - (h - bottom - top) * v / ceiling
    if scale:
        for v in range(0, ceiling + 1, unit):
            draw.line([left - 4, y_of(v), w - 4, y_of(v)], fill=tuple((a + b) // 2 for a, b in zip(ink, ground)))
            write(draw, font, str(v), left - 6 - length(font, str(v)), y_of(v) - font.size * .6, ink, centres)
    fill = shade(r, r.choice(list(COLOURS)[:6]))
    for i, (name, value) in enumerate(zip(names, values)):
        x = left + slot * i
        if r.random() < .5:
            fill = shade(r, r.choice(list(COLOURS)[:6]))
        draw.rectangle([x + slot * .18, y_of(value), x + slot * .82, h - bottom], fill=fill)
        write(draw, font, name, x + (slot - length(font, name)) / 2, h - bottom + 3, ink, centres)
        if not scale:
            write(draw, font, str(value), x + (slot - length(font, str(value))) / 2, y_of(value) - font.size - 4, ink, centres)
    draw.line([left, h - bottom, w - 4, h - bottom], fill=ink)
    return np.asarray(image), centres, unit if scale else 1
