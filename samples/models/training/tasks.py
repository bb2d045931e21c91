"""Questions, answers and the token rows made of them: what the model is taught, in the words of a user.

Owns the phrasings and the chat layout; pictures and voices are made by others. A row is laid out exactly as the chat
template and the processor lay it out; an answer is written one character a token, so that unseen words are no rarer.
"""
import json

import numpy as np
from tokenizers import Tokenizer

from lexicon import DIGITS, spoken
from pictures import COLOURS, SHAPES, chart_picture, form_picture, scene_picture, text_picture

SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
READ = ("Read the text.", "What does it say?", "What does the picture say?", "Read the word.", "What is written here?", "Read it.",
        "Transcribe the text in the picture.", "What text is in the picture?", "Read the text in the image.",
        "What does the sign say?", "What is the text?", "Please read this.", "What does the picture show?")
HEAR = ("Transcribe the clip.", "What is said in the clip?", "What was said?", "What does the voice say?", "Transcribe the speech.",
        "Write down what you hear.", "What do you hear?", "Transcribe the audio.", "Please transcribe this.")
DIGIT_ASK = ("Write the digits that you hear.", "Which digits were said?", "Which number was said? Answer in digits.")
DESCRIBE = ("Describe the picture.", "Describe the scene.", "What is in the picture?", "What do you see?", "Describe what you see.")
FIELDS = {
    "total": "price", "price": "price", "tax": "price", "cash": "price", "change": "price", "tip": "price", "date": "date",
    "time": "time", "phone": "phone", "name": "name", "item": "word", "code": "code", "room": "small", "gate": "gate", "seat": "gate",
    "flight": "code", "table": "small", "city": "word", "from": "word", "to": "word", "size": "small", "weight": "small",
    "order": "integer", "model": "code", "serial": "code", "shop": "word", "street": "name", "speed": "small", "qty": "small",
    "platform": "small", "train": "code", "status": "word", "owner": "name", "color": "word", "page": "small", "height": "small"}


def value_of(kind, r, lex):
    if kind == "name":
        return lex.words(r, 2).title()
    if kind == "word":
        return lex.cased(r, lex.word(r))
    if kind == "small":
        return str(r.randint(1, 999)) if r.random() < .7 else f"{r.randint(1, 99)} {r.choice(('kg', 'cm', 'km', 'g', 'm'))}"
    if kind == "gate":
        return f"{r.choice('ABCDEFGHK')}{r.randint(1, 40)}"
    return str(getattr(lex, kind)(r))


def read_task(r, lex, fonts, h, w):
    count = 1 if r.random() < .66 else r.choice((2, 2, 3, 4))
    if h < 170:
        count = min(count, 2)
    lines = [lex.anything(r) for _ in range(count)]
    while sum(map(len, lines)) > 44:
        lines.pop() if len(lines) > 1 else lines.__setitem__(0, lex.words(r, 1))
    made = text_picture(r, fonts, lines, h, w)
    return made and (*made, r.choice(READ), " ".join(lines))


def form_task(r, lex, fonts, h, w, ask=None):
    names = r.sample(list(FIELDS), r.randint(2, 6 if h > 250 else 4))
    style = r.choice((str.title, str.title, str.upper, str.lower))
    values = {n: value_of(FIELDS[n], r, lex) for n in names}
    title = lex.words(r, r.choice((1, 2))) if r.random() < .4 else None
    made = form_picture(r, fonts, title, [(style(n), values[n]) for n in names], h, w)
    if made is None:
        return None
    x, n = {"field": 0, "absent": .6, "json": .9, None: r.random()}[ask], r.choice(names)
    if x < .5:
        ask = r.choice((f"What is the {n}?", f"Read the {n}.", f"Which {n} is written?", f"What does it say for {n}?"))
        answer = values[n]
    elif x < .75:
        n = r.choice([f for f in FIELDS if f not in names])
        ask = r.choice((f"What is the {n}?", f"Read the {n}.", f"Which {n} is written?", f"What does it say for {n}?"))
        answer = f"There is no {n}."
    else:
        keys = r.sample(names, min(len(names), r.choice((1, 2, 2))))
        said = " and ".join(keys)
        ask = r.choice((f"Give the {said} as JSON.", f"Answer as JSON with {said}.", f"Extract {said} as JSON."))
        answer = json.dumps({k: values[k] for k in keys})
        if len(answer) > 52:
            return None
    return (*made, ask, answer)


def one(colour, kind):
    return f"{'an' if colour[0] == 'o' else 'a'} {colour} {kind}"


def scene_task(r, lex, fonts, h, w, ask=None):
    if ask == "chart" or (ask is None and r.random() < .25):
        return chart_task(r, lex, fonts, h, w)
    ground = r.choice([*COLOURS, "white", "white", "black", "gray"])
    colours = [c for c in COLOURS if c != ground and {c, ground} not in ({"red", "orange"}, {"red", "brown"}, {"pink", "white"}, {"gray", "brown"})]
    ask = ask or r.choice(("count", "count", "colour", "side", "side", "level", "level", "describe", "absent", "json"))
    if ask == "count":
        kind, n = r.choice(SHAPES), r.randint(1, 6)
        if r.random() < .5:
            colour = r.choice(colours)
            things = [(kind, colour)] * n
        else:
            things = [(kind, r.choice(colours)) for _ in range(n)]
        things += [(r.choice([s for s in SHAPES if s != kind]), r.choice(colours)) for _ in range(r.choice((0, 0, 1, 2)))]
        things = things[:8]
        r.shuffle(things)
        question, answer = r.choice((f"How many {kind}s are there?", f"Count the {kind}s.", f"How many {kind}s do you see?")), str(n)
        if kind == "cross":
            question = question.replace("crosss", "crosses")
    else:
        kinds = r.sample(SHAPES, r.randint(2 if ask in ("side", "level") else 1, 3))
        things = [(k, r.choice(colours)) for k in kinds]
    made = scene_picture(r, things, ground, h, w)
    if made is None:
        return None
    image, places = made
    if ask == "colour":
        kind, answer = r.choice(things)
        question = r.choice((f"What color is the {kind}?", f"What colour is the {kind}?", f"Which color does the {kind} have?"))
        if r.random() < .15:
            question, answer = r.choice(("What color is the background?", "Which colour is the background?")), ground
    elif ask in ("side", "level"):
        axis = 0 if ask == "side" else 1
        i, j = r.sample(range(len(things)), 2)
        if abs(places[i][axis] - places[j][axis]) < .5 * (places[i][2] + places[j][2]):
            return None
        near, far = ("left", "right") if ask == "side" else ("above", "below")
        a, b = things[i][0], things[j][0]
        question = r.choice((f"Is the {a} {near} or {far} of the {b}?", f"Where is the {a}, {near} or {far} of the {b}?",
                             f"Is the {a} {'to the ' if axis == 0 else ''}{near} or {far} the {b}?"))
        answer = near if places[i][axis] < places[j][axis] else far
    elif ask == "describe":
        order = sorted(range(len(things)), key=lambda i: places[i][0])
        listed = [one(things[i][1], things[i][0]) for i in order]
        answer = (", ".join(listed[:-1]) + " and " if len(listed) > 1 else "") + listed[-1]
        question = r.choice(DESCRIBE)
    elif ask == "absent":
        kind = r.choice([s for s in SHAPES if s not in [t[0] for t in things]])
        question = r.choice((f"What color is the {kind}?", f"What colour is the {kind}?", f"Where is the {kind}?"))
        answer = f"There is no {kind}."
    elif ask == "json":
        kind, colour = r.choice(things)
        question = r.choice((f"Give the color of the {kind} as JSON.", f"Answer as JSON with the color of the {kind}."))
        answer = json.dumps({"color": colour})
    return image, [], question, answer


def chart_task(r, lex, fonts, h, w):
    names = list(dict.fromkeys(lex.cased(r, r.choice(lex.common)[:6]) for _ in range(r.randint(2, 5))))
    values = [r.randint(1, r.choice((9, 20, 99, 99, 500))) for _ in names]
    made = chart_picture(r, fonts, names, values, h, w)
    if made is None:
        return None
    image, centres, unit = made
    if unit > 1 or max(values) <= 0:
        values = [max(unit, round(v / unit) * unit) for v in values]
        made = chart_picture(r, fonts, names, values, h, w)
        if made is None or made[2] != unit:
            return None
        image, centres, unit = made
    i = r.randrange(len(names))
    if r.random() < .75 or values.count(max(values)) > 1:
        return image, centres, r.choice((f"What is the value of {names[i]}?", f"How much is {names[i]}?", f"Which value does {names[i]} have?")), str(values[i])
    return image, centres, r.choice(("Which bar is the tallest?", "Which bar is the highest?")), names[values.index(max(values))]


def both_task(r, lex, fonts, h, w):
    """(picture, centres, spoken text, question, answer): a picture and a clip in one question."""
    x = r.random()
    if x < .4:
        a, b = r.randint(1, 99), r.randint(1, 20)
        made = text_picture(r, fonts, [str(a)], h, w, size=r.choice((24, 30, 40, 55, 75, 90)))
        return made and (*made, spoken(b), r.choice(("Add the spoken number to the written one.", "What is the sum of the written number and the spoken number?")), str(a + b))
    text = r.choice(lex.speech) if r.random() < .7 else r.choice(DIGITS)
    other = text if r.random() < .5 else r.choice(lex.speech)
    made = text_picture(r, fonts, [lex.cased(r, text)], h, w, size=r.choice((18, 24, 32, 45, 60, 80)))
    if x < .8:
        return made and (*made, other, r.choice(("Does the voice say what the sign says?", "Does the voice say what the picture says?", "Do they match?")), "yes" if text == other else "no")
    written = lex.cased(r, text)
    made = text_picture(r, fonts, [written], h, w, size=r.choice((18, 24, 32, 45, 60, 80)))
    return made and (*made, other, *r.choice((("What does the voice say?", other), ("What does the sign say?", written))))


class Rows:
    """Turns a question and an answer into token ids, positions and labels of one fixed length."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(path)
        token = self.tokenizer.token_to_id
        self.vision = (token("<|vision_bos|>"), token("<|IMAGE|>"), token("<|vision_eos|>"))
        self.audio = (token("<|audio_bos|>"), token("<|AUDIO|>"), token("<|audio_eos|>"))
        self.end = token("<|im_end|>")
        self.head, self.tail = self.encode(SYSTEM), self.encode(TAIL)
        self.letters = {chr(c): self.encode(chr(c)) for c in range(32, 127)}
        self.known = {}

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def question(self, text):
        if text not in self.known:
            if len(self.known) > 20000:
                self.known.clear()
            self.known[text] = self.encode(text)
        return self.known[text]

    def answer(self, text):
        return [i for c in text for i in self.letters[c]] + [self.end]

    def prompt(self, r, question, grid=None, clip=None):
        """(ids, positions [3][n]); `grid` is (rows, columns) of merged patches, `clip` a count of audio tokens."""
        parts = []
        if grid:
            parts.append(("image", grid))
        if clip:
            parts.insert(r.randrange(len(parts) + 1), ("audio", clip))
        ids = self.question(question)
        parts.insert(0 if parts and r.random() < .2 else len(parts), ("text", ids))
        row, at = list(self.head), [np.arange(len(self.head))] * 3
        for kind, what in parts:
            start = int(max(a[-1] for a in at)) + 1
            if kind == "text":
                row += what
                at = [np.append(a, np.arange(start, start + len(what))) for a in at]
            elif kind == "audio":
                row += [self.audio[0]] + [self.audio[1]] * what + [self.audio[2]]
                at = [np.append(a, np.arange(start, start + what + 2)) for a in at]
            else:
                h, w = what
                row += [self.vision[0]] + [self.vision[1]] * (h * w) + [self.vision[2]]
                inner = (np.zeros(h * w, int), np.repeat(np.arange(h), w), np.tile(np.arange(w), h))
                after = start + 1 + max(h, w)
                at = [np.concatenate([a, [start], start + 1 + i, [after]]) for a, i in zip(at, inner)]
        start = int(max(a[-1] for a in at)) + 1
        row += self.tail
        return row, [np.append(a, np.arange(start, start + len(self.tail))) for a in at]

    def row(self, r, question, answer, length, grid=None, clip=None):
        """(ids, positions, labels) padded to `length`, or None if it does not fit; label t is what follows token t."""
        ids, at = self.prompt(r, question, grid, clip)
        said = self.answer(answer)
        n = len(ids) + len(said)
        if n > length:
            return None
        out = np.full(length, self.end, np.int16)
        out[:len(ids)], out[len(ids):n] = ids, said
        labels = np.full(length, -100, np.int16)
        labels[len(ids) - 1:n - 1] = said
        last = at[0][-1]
        positions = np.stack([np.concatenate([a, np.arange(last + 1, last + 1 + length - len(ids))]) for a in at]).astype(np.int16)
        return out, positions, labels


def hear_task(r, lex):
    """(what is said, question, answer)."""
    x = r.random()
    if x < .15:
        digits = [r.randrange(10) for _ in range(r.randint(1, 6))]
        return " ".join(DIGITS[d] for d in digits), r.choice(DIGIT_ASK), "".join(map(str, digits))
    if x < .22:
        n = r.randrange(1000)
        return spoken(n), "Which number was said? Answer in digits.", str(n)
    said = lex.sentence(r)
    return said, r.choice(HEAR), said
