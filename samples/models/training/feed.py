"""Makes batches of rows with their pictures and clips in worker processes. Owns batch shapes; knows nothing of the card.

Invariant: all pictures of a batch have one grid and all clips one length, so no batch needs masks. Every worker has its own
seed; held-out faces, voices and words are chosen by `held` for the whole kit.
"""
import random
from collections import defaultdict

import numpy as np

import pictures
import tasks
from lexicon import LETTERS, Lexicon
from voices import Speaker

# Rows and columns of 14-pixel patches.
GRIDS = ((24, 24), (16, 24), (16, 36), (18, 32), (24, 32), (12, 32), (24, 16), (32, 18), (32, 24), (20, 28), (8, 48), (28, 28))
SMALL = (16, 24)
SECONDS = (1.2, 2.0, 2.8, 3.6, 4.4, 5.6, 7.2)
RATES = (20000, 21000, 22050, 22050, 22050, 23000, 24000)
WORDS = 100  # places for text in a row with media


class Kit:
    def __init__(self, assets, tokenizer, held, seed):
        self.r, self.held, self.assets = random.Random(seed), held, assets
        self.lex = Lexicon(assets + "/words.txt", held)
        self.fonts = pictures.faces(assets + "/fonts", held)
        if not held:  # a worker opens some faces only, so that they stay open; all workers together use all
            self.fonts = self.r.sample(self.fonts, min(150, len(self.fonts)))
        self.rows = tasks.Rows(tokenizer)
        self.buckets = defaultdict(list)
        self._speaker = None

    @property
    def speaker(self):
        self._speaker = self._speaker or Speaker(self.assets + "/espeak", self.held)
        return self._speaker


def pack(samples, **more):
    """Rows of samples [(ids, positions, labels)] as arrays; `at` and `want` are the places that are learnt."""
    ids, positions, labels = (np.stack(x) for x in zip(*samples))
    at = np.flatnonzero(labels.reshape(-1) >= 0)
    return dict(ids=ids, positions=positions.transpose(1, 0, 2), at=at.astype(np.int32), want=labels.reshape(-1)[at], **more)


def points(b, centres):
    return [(b, x, y, ord(c) - 32) for x, y, c in centres]


def picture_batch(kit, kind, budget, ask=None, count=None, grid=None):
    r = kit.r
    grid = grid or r.choice(GRIDS)
    h, w = grid[0] * 14, grid[1] * 14
    count = count or max(1, budget // (grid[0] * grid[1]))
    images, centres, samples = [], [], []
    while len(samples) < count:
        task = ask or (tasks.scene_task if kind == "scene" else tasks.read_task if r.random() < .72 else tasks.form_task)
        made = task(r, kit.lex, kit.fonts, h, w)
        if made is None:
            continue
        image, places, question, answer = made
        row = kit.rows.row(r, question, answer, grid[0] * grid[1] // 4 + WORDS, grid=(grid[0] // 2, grid[1] // 2))
        if row is None:
            continue
        centres += points(len(samples), places)
        images.append(image)
        samples.append(row)
    return pack(samples, grid=grid, image=np.stack(images), centres=np.array(centres, np.float32).reshape(-1, 4))


def place(r, clips, seconds, rate):
    """int16 [n, samples at `rate`], each clip somewhere within."""
    out = np.zeros((len(clips), round(seconds * rate)), np.int16)
    for row, x in zip(out, clips):
        start = r.randint(0, len(row) - len(x)) if r.random() < .7 else r.randint(0, min(2000, len(row) - len(x)))
        row[start:start + len(x)] = (x * 32000).astype(np.int16)
    return out


def letters(texts):
    """CTC targets: a to z are 1 to 26, a space 27."""
    code = {c: i + 1 for i, c in enumerate(LETTERS + " ")}
    rows = [[code[c] for c in t if c in code] for t in texts]
    out = np.zeros((len(rows), max(map(len, rows))), np.int16)
    for o, x in zip(out, rows):
        o[:len(x)] = x
    return out, np.array([len(x) for x in rows], np.int16)


def clip_batch(kit, budget, ask=None, count=None, seconds=None):
    """`budget` is in seconds of sound. Clips wait in buckets by length until one is full."""
    r = kit.r
    while True:
        said, question, answer = (ask or tasks.hear_task)(r, kit.lex)
        x = kit.speaker.say(r, said)
        fit = seconds or next((s for s in SECONDS if len(x) / RATES[0] < s - .05), None)
        if fit is None or len(x) / RATES[0] > fit:
            continue
        if not seconds and r.random() < .3:
            fit = r.choice([s for s in SECONDS if s >= fit])  # a few words in a long silence, too
        row = kit.rows.row(r, question, answer, round(fit * 25) + WORDS, clip=round(fit * 25))
        if row is None:
            continue
        bucket = kit.buckets[fit]
        bucket.append((x, said, row))
        if len(bucket) >= (count or max(1, int(budget / fit))):
            kit.buckets[fit] = []
            rate = 22050 if kit.held else r.choice(RATES)
            text, lengths = letters([b[1] for b in bucket])
            return pack([b[2] for b in bucket], clip=place(r, [b[0] for b in bucket], fit, rate), rate=rate, text=text, lengths=lengths)


def both_batch(kit, count, ask=None):
    r, seconds = kit.r, 2.0
    images, centres, clips, said, samples = [], [], [], [], []
    h, w = SMALL[0] * 14, SMALL[1] * 14
    while len(samples) < count:
        made = tasks.both_task(r, kit.lex, kit.fonts, h, w)
        if made is None or made[4] is None:
            continue
        image, places, text, question, answer = made
        x = kit.speaker.say(r, text)
        if len(x) / RATES[0] > seconds:
            continue
        row = kit.rows.row(r, question, answer, SMALL[0] * SMALL[1] // 4 + round(seconds * 25) + WORDS, grid=(SMALL[0] // 2, SMALL[1] // 2), clip=round(seconds * 25))
        if row is None:
            continue
        centres += points(len(samples), places)
        images.append(image), clips.append(x), said.append(text), samples.append(row)
    rate = 22050 if kit.held else r.choice(RATES)
    text, lengths = letters(said)
    return pack(samples, grid=SMALL, image=np.stack(images), centres=np.array(centres, np.float32).reshape(-1, 4),
                clip=place(r, clips, seconds, rate), rate=rate, text=text, lengths=lengths)


def work(queue, kind, assets, tokenizer, seed, patches, sound):
    kit = Kit(assets, tokenizer, False, seed)
    while True:
        if kind == "clip":
            queue.put(clip_batch(kit, sound))
        elif kind == "both":
            queue.put(both_batch(kit, max(2, patches // 1536)))
        else:
            queue.put(picture_batch(kit, kind, patches))


def clean_words(r, lex, fonts, h, w):
    text = lex.words(r, r.randint(1, 4))
    made = pictures.text_picture(r, fonts, [text], h, w)
    return made and (*made, r.choice(tasks.READ), text)


def clean_number(r, lex, fonts, h, w):
    text = lex.number(r) if r.random() < .5 else lex.price(r)
    made = pictures.text_picture(r, fonts, [text], h, w)
    return made and (*made, r.choice(tasks.READ), text)


def asked(task, ask):
    return lambda r, lex, fonts, h, w: task(r, lex, fonts, h, w, ask)


def heard_digits(r, lex):
    while True:
        made = tasks.hear_task(r, lex)
        if made[1] in tasks.DIGIT_ASK and " hundred" not in made[0]:
            return made


def heard_words(r, lex):
    while True:
        made = tasks.hear_task(r, lex)
        if made[1] in tasks.HEAR:
            return made


# name: (kind, task, amount of damage)
CASES = {
    "read_clean": ("text", clean_words, 0), "read_degraded": ("text", clean_words, 1), "numbers": ("text", clean_number, 0),
    "field": ("text", asked(tasks.form_task, "field"), 0), "absent": ("text", asked(tasks.form_task, "absent"), 0),
    "json": ("text", asked(tasks.form_task, "json"), 0),
    "colour": ("scene", asked(tasks.scene_task, "colour"), 0), "count": ("scene", asked(tasks.scene_task, "count"), 0),
    "side": ("scene", asked(tasks.scene_task, "side"), 0), "level": ("scene", asked(tasks.scene_task, "level"), 0),
    "chart": ("scene", asked(tasks.scene_task, "chart"), 0),
    "transcribe": ("clip", heard_words, 0), "digits": ("clip", heard_digits, 0), "both": ("both", None, 0)}


def exam(queue, assets, tokenizer, seed, count):
    """Every category once, from held-out faces, voices and words."""
    for name, (kind, task, amount) in CASES.items():
        kit = Kit(assets, tokenizer, True, f"{seed} {name}")
        if kind == "clip":
            batch = clip_batch(kit, 0, task, count, 5.6)
        elif kind == "both":
            batch = both_batch(kit, count)
        else:
            batch = picture_batch(kit, kind, 0, task, count, (24, 24) if name != "read_clean" else (18, 32))
        queue.put((name, amount, batch))
    queue.put(None)
