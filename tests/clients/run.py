#!/usr/bin/env python3
"""The same input gives the same text through curl, the openai package, `weft run` and `weft demo`.

usage: run.py --weft target/debug/weft        (needs requirements.txt and, for transcription, WEFT_WEIGHTS_CACHE)
"""
import argparse
import base64
import json
import os
import re
import subprocess
from pathlib import Path

import openai

from server import ROOT, Server

IMAGE = ROOT / "samples/media/shop.png"
AUDIO = ROOT / "samples/media/question.wav"
PROMPT = "What does the voice ask about the picture?"
TOKENS = 24
PASSED = []


def test(function):
    """Runs a test at once and counts it."""

    def wrapper(*args):
        function(*args)
        PASSED.append(function.__name__)
        print(f"ok  {function.__name__.replace('_', ' ')}")

    return wrapper


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def chat_message():
    encode = lambda path: base64.b64encode(path.read_bytes()).decode()
    return [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encode(IMAGE)}"}},
        {"type": "input_audio", "input_audio": {"data": encode(AUDIO), "format": "wav"}},
        {"type": "text", "text": PROMPT},
    ]}]


@test
def every_door_gives_the_same_text(weft, url):
    curl = run("curl", "-sS", "--fail-with-body", f"{url}/v1/pipelines/tiny-omni/run", "-F", f"image=@{IMAGE}",
               "-F", f"audio=@{AUDIO}", "-F", f"prompt={PROMPT}", "-F", f'options={{"max_tokens": {TOKENS}}}')
    text = json.loads(curl)["text"]
    assert text, "an empty answer"

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    asked = dict(model="tiny-omni", messages=chat_message(), max_tokens=TOKENS, temperature=0, seed=1)
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    words = ["run", "tiny-omni", "--image", IMAGE, "--audio", AUDIO, "--prompt", PROMPT, "--set", f"max_tokens={TOKENS}"]
    alone = json.loads(run(weft, *words, "--json"))
    assert alone["text"] == text, "weft run"
    assert run(weft, *words).rstrip("\n") == text.rstrip("\n"), "weft run, streamed"


@test
def errors_are_the_clients_own_classes(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    say = [{"role": "user", "content": "hello"}]
    for expected, asked in [
        (openai.NotFoundError, dict(model="nope", messages=say)),
        (openai.BadRequestError, dict(model="tiny-omni", messages=say, temperature=-1)),
        (openai.BadRequestError, dict(model="tiny-omni", messages=[])),
    ]:
        try:
            client.chat.completions.create(**asked)
        except expected as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{expected.__name__} was expected")


@test
def models_are_listed(url):
    names = [model.id for model in openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list()]
    assert "tiny-omni" in names, names


@test
def transcripts_come_in_every_format(weft, url, whisper):
    golden = json.loads((ROOT / "tests/golden/real/whisper_tiny_en.json").read_text())
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    clip = ROOT / "tests/golden/real/clip1.flac"
    expected = next(c for c in golden["clips"] if c["file"].startswith("clip1"))["timestamps"]["text"].strip()
    ask = lambda **kw: client.audio.transcriptions.create(model="whisper", file=open(clip, "rb"), **kw)
    assert ask().text == expected
    assert ask(response_format="text").strip() == expected
    verbose = ask(response_format="verbose_json")
    assert verbose.text == expected and verbose.segments and 0 <= verbose.segments[0].start < verbose.duration
    subtitles = ask(response_format="srt")
    assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n", subtitles), subtitles
    assert ask(response_format="vtt").startswith("WEBVTT\n\n")
    alone = run(weft, "run", "whisper", "--model", f"whisper={whisper}", "--audio", clip)
    assert alone.strip() == expected, alone


@test
def the_demo_answers_four_questions(weft):
    printed = run(weft, "demo", "--once")
    assert printed.count("\n== ") == 4, printed
    assert printed.count("prompt tokens") == 4, printed
    assert "not meaningful" in printed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", type=lambda p: Path(p).resolve(), required=True)
    weft = parser.parse_args().weft
    weights = os.environ.get("WEFT_WEIGHTS_CACHE")
    assert weights, "WEFT_WEIGHTS_CACHE must name the folder that tests/weights/fetch filled"
    whisper = Path(weights).resolve() / "whisper-tiny.en"
    assert whisper.is_dir(), f"{whisper} is missing; run tests/weights/fetch"
    embedded = []  # the embedded model is served when no other is named
    with Server(weft, embedded) as url:
        every_door_gives_the_same_text(weft, url)
        errors_are_the_clients_own_classes(url)
        models_are_listed(url)
    with Server(weft, ["--model", f"whisper={whisper}"]) as url:
        transcripts_come_in_every_format(weft, url, whisper)
    the_demo_answers_four_questions(weft)
    print(f"{len(PASSED)} passed, 0 failed")


if __name__ == "__main__":
    main()
