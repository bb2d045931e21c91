"""What is written and said: words, invented words, numbers, codes. Owns which words are kept out of training.

Invariant: a word belongs to one side for good (by its hash), so nothing that is evaluated was ever drawn in training.
"""
import hashlib

DIGITS = "zero one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
MONTHS = "January February March April May June July August September October November December".split()
ONSETS = "b br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sh sl sm sp st str t th tr v w wh y z".split() + [""]
VOWELS = "a e i o u ai ea ee oo ou ie oa ay".split()
CODAS = "b ck d f g k l ll m n nd ng nt p r rd rk rm rt s sh ss st t tch th x y".split() + ["", "", ""]
PUNCTUATION = ["!", "?", ".", ",", ":", ";"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALNUM = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"


def held_out(text):
    return hashlib.sha1(text.lower().encode()).digest()[0] % 8 == 0


def spoken(number):
    """0 to 999 in words."""
    if number >= 100:
        rest = number % 100
        return f"{DIGITS[number // 100]} hundred" + (f" {spoken(rest)}" if rest else "")
    if number < 10:
        return DIGITS[number]
    if number < 20:
        return TEENS[number - 10]
    return TENS[number // 10 - 2] + (f" {DIGITS[number % 10]}" if number % 10 else "")


class Lexicon:
    def __init__(self, path, held):
        first, *words = open(path).read().split()
        common = int(first)
        self.common = [w for w in words[:common] if held_out(w) == held]
        self.rare = [w for w in words[common:] if held_out(w) == held]
        # A vocabulary of a few thousand words for speech: words that a listener can spell.
        self.speech = [w.lower() for w in self.common if w.islower() and 3 <= len(w) <= 8][::5]

    def invented(self, r):
        word = "".join(r.choice(ONSETS) + r.choice(VOWELS) + (r.choice(CODAS) if r.random() < .6 else "")
                       for _ in range(r.choice((1, 2, 2, 3))))
        return word[:11]

    def word(self, r):
        x = r.random()
        return r.choice(self.common) if x < .5 else r.choice(self.rare) if x < .75 else self.invented(r)

    def cased(self, r, text):
        x = r.random()
        return text.lower() if x < .35 else text.title() if x < .6 else text.upper() if x < .85 else text

    def words(self, r, count):
        return self.cased(r, " ".join(self.word(r) for _ in range(count)))

    def integer(self, r):
        return r.randrange(10 ** r.choice((1, 2, 2, 3, 3, 4, 5, 6)))

    def number(self, r):
        n, x = self.integer(r), r.random()
        if x < .45:
            return str(n)
        if x < .6:
            return f"{n:,}"
        if x < .8:
            return f"{n % 10000}.{r.randrange(10 ** (d := r.choice((1, 2, 2)))):0{d}d}"
        return r.choice((f"{n % 101}%", f"-{n}", f"#{n % 1000}", f"No. {n % 1000}", f"{n % 100}/{r.randint(1, 99)}"))

    def price(self, r):
        n = r.randrange(10 ** r.choice((1, 2, 2, 3, 4)))
        amount = f"{n}.{r.randrange(100):02d}" if r.random() < .8 else str(n)
        return r.choice((f"${amount}", f"${amount}", f"{amount} USD", f"EUR {amount}", amount, f"${n:,}"))

    def code(self, r):
        x = r.random()
        if x < .3:
            return "".join(r.choice(ALNUM) for _ in range(r.randint(3, 8)))
        if x < .5:
            return "".join(r.choice(ALNUM[:24]) for _ in range(r.randint(1, 3))) + r.choice(("-", " ", "")) + self.digits(r, r.randint(2, 5))
        if x < .7:
            return "".join(r.choice(LETTERS + LETTERS.upper() + "0123456789") for _ in range(r.randint(3, 8)))
        if x < .85:
            return "".join(r.choice(LETTERS) for _ in range(r.randint(3, 9)))
        return "".join(chr(r.randint(33, 126)) for _ in range(r.randint(2, 7)))

    def digits(self, r, count):
        return "".join(r.choice("0123456789") for _ in range(count))

    def date(self, r):
        d, m, y = r.randint(1, 28), r.randint(1, 12), r.randint(1990, 2039)
        return r.choice((f"{y}-{m:02d}-{d:02d}", f"{d:02d}.{m:02d}.{y}", f"{m}/{d}/{y}", f"{d} {MONTHS[m - 1]} {y}", f"{MONTHS[m - 1][:3]} {d}"))

    def time(self, r):
        h, m = r.randrange(24), r.randrange(60)
        return f"{h:02d}:{m:02d}" if r.random() < .7 else f"{h % 12 + 1}:{m:02d} {'am' if h < 12 else 'pm'}"

    def phone(self, r):
        return r.choice((f"555-{self.digits(r, 4)}", f"0{self.digits(r, 3)} {self.digits(r, 6)}", f"+{r.randint(1, 99)} {self.digits(r, 7)}"))

    def address(self, r):
        return f"{r.choice(self.common).lower()}@{r.choice(self.common).lower()}.com" if r.random() < .5 else f"www.{r.choice(self.common).lower()}.org"

    def anything(self, r):
        """A line that a picture may carry."""
        x = r.random()
        if x < .56:
            text = self.words(r, r.choice((1, 1, 1, 2, 2, 3, 3, 4)))
            return text + r.choice(PUNCTUATION) if r.random() < .12 else text
        if x < .68:
            return self.number(r)
        if x < .78:
            return self.price(r)
        if x < .90:
            return self.code(r)
        return r.choice((self.date, self.time, self.phone, self.address))(r)

    def sentence(self, r):
        """What a voice says: a command or a few words, in lower case and without punctuation."""
        w = lambda: r.choice(self.speech)
        x = r.random()
        if x < .25:
            return " ".join(r.choice(DIGITS) for _ in range(r.randint(1, 6)))
        if x < .35:
            return spoken(r.randrange(1000))
        if x < .70:
            return " ".join(w() for _ in range(r.randint(1, 5)))
        return r.choice((
            lambda: f"please {r.choice(('open', 'close', 'find', 'bring', 'take', 'read'))} the {w()}",
            lambda: f"turn the {w()} {r.choice(('on', 'off', 'left', 'right', 'up', 'down'))}",
            lambda: f"where is the {w()} {w()}", lambda: f"the {w()} is on the {w()}",
            lambda: f"I have {r.choice(DIGITS[2:])} {w()}".lower(), lambda: f"call {w()} at {spoken(r.randint(1, 12))}",
            lambda: f"{r.choice(MONTHS).lower()} {spoken(r.randint(1, 31))}", lambda: f"a {w()} and a {w()}",
            lambda: f"set a timer for {spoken(r.randint(2, 99))} minutes", lambda: f"what is the {w()} of the {w()}"))()
