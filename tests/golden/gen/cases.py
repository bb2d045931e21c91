"""The prompts of the Omni goldens. A part is a text, or ("image" | "audio", file in tests/golden/media)."""


def image(size, kind="png"):
    return ("image", f"scene_{size}.{kind}")


def audio(name):
    return ("audio", f"{name}.wav")


def user(*parts):
    return ("user", list(parts))


# (kind, turns). Numbers are given in this order, so append only.
CASES = [
    ("text", [user("What is a loom?")]),
    ("text", [user("List three colours, one on each line.\n")]),
    ("text, own system prompt, non-ASCII", [("system", ["Answer in one word."]), user("Où est le café? 早上好 🧵")]),
    ("text, several turns", [user("Hello."), ("assistant", ["Good morning. How can I help?"]), user("Name a fabric.")]),
    ("text, long", [user("Count the words in this text. " + "The shuttle carries the thread from side to side. " * 24)]),
    ("image", [user(image("56x56"), "Describe the picture.")]),
    ("image", [user(image("84x84"), "Which shapes are there?")]),
    ("image, one attention window exactly", [user(image("112x112"), "What does it say?")]),
    ("image, several windows", [user(image("140x140"), "What is in the middle?")]),
    ("image, several windows, wide", [user(image("224x112"), "Read the word.")]),
    ("image, tall", [user("Here is a picture:", image("56x168"), "Is it tall?")]),
    ("image, one row of merged patches", [user(image("28x112"), "Which colour?")]),
    ("image, larger", [user(image("252x224"), "Describe everything you see.")]),
    ("image, resized", [user(image("100x75"), "Describe it.")]),
    ("image, resized", [user(image("333x250"), "What is this?")]),
    ("image, resized, odd sides", [user(image("57x113"), "What is this?")]),
    ("image, very small, enlarged", [user(image("10x7"), "What is this?")]),
    ("image, one pixel, enlarged", [user(image("1x1"), "Which colour is it?")]),
    ("image, wide strip, resized", [user(image("600x40"), "Read it from left to right.")]),
    ("image, JPEG, resized", [user(image("168x126", "jpg"), "What is this?")]),
    ("two images", [user(image("56x56"), image("112x56"), "Compare the two.")]),
    ("two images, text between", [user("First:", image("84x84"), "Second:", image("196x84"), "Which is wider?")]),
    ("same image twice", [user(image("56x56"), image("56x56"), "Are they equal?")]),
    ("audio", [user(audio("sentence"), "What was said?")]),
    ("audio, shorter than one window", [user(audio("word"), "Which word?")]),
    ("audio, a twentieth of a second", [user(audio("blip"), "What was it?")]),
    ("audio, one window exactly", [user(audio("exactly_one_window"), "What was said?")]),
    ("audio, two windows", [user(audio("two_windows"), "What was said?")]),
    ("audio, several windows", [user(audio("long"), "When does the last train leave?")]),
    ("audio, silence", [user(audio("silence"), "Did you hear anything?")]),
    ("audio, sweep", [user("Listen:", audio("sweep"))]),
    ("two clips", [user(audio("word"), audio("sentence"), "Which is longer?")]),
    ("image and audio", [user(image("112x56"), audio("sentence"), "Do they match?")]),
    ("audio and image", [user(audio("word"), image("84x84"), "Do they match?")]),
    ("text, image, text, audio, text", [user("Look at this", image("56x168"), "and listen to this", audio("word"), "and answer.")]),
    ("two images and two clips, interleaved",
     [user(image("56x56"), audio("word"), image("112x56"), audio("blip"), "Tell the story.")]),
    ("several turns, image first, audio later",
     [user(image("84x84"), "What is this?"), ("assistant", ["A drawing."]), user(audio("sentence"), "And this?")]),
    ("several turns, two images",
     [user("Remember this.", image("56x56")), ("assistant", ["I will."]), user("And this.", image("112x112"), "Which was first?")]),
]

# Appended to the last text, in turn, until a case keeps its distance from ties.
TAILS = ["", " Be brief.", " Answer in one sentence.", " Think first.", " Use simple words.", " Please explain why.", " Now.",
         " Take your time.", " In plain English.", " Say it twice."]

# The cases whose processor outputs and tower outputs are stored: small, and one of every kind.
STORED_IMAGES = ["56x56.png", "112x56.png", "140x140.png", "28x112.png", "10x7.png"]
STORED_AUDIO = ["word", "blip", "two_windows", "silence"]
# The cases that are also run on the embedded model.
EMBEDDED = [0, 2, 5, 8, 13, 20, 23, 27, 32, 34]
