"""SmolLM2-135M-Instruct, Q4_1 weights dequantised by transformers: prompts, 64 greedy tokens, perplexity of a paragraph."""
import math
import os
from pathlib import Path

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from .common import GOLDEN, versions, write_json, write_tensors

WEIGHTS = Path(os.environ.get("WEFT_WEIGHTS_CACHE") or GOLDEN.parent / ".cache" / "weights")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = GOLDEN / "real"
STEPS, WANTED, MIN_GAP = 64, 8, 0.01

# Tried in order; the first WANTED that run for STEPS tokens at a safe distance from ties are kept.
PROMPTS = [
    [("user", "Explain how a loom works.")],
    [("user", "Write a short story about a lighthouse keeper and a lost boat.")],
    [("user", "Give me five tips for better sleep.")],
    [("system", "You are a patient teacher."), ("user", "Why is the sky blue?")],
    [("user", "Write a Python function that reverses a list.")],
    [("user", "What is the capital of France, and what is it known for?")],
    [("user", "Hello!"), ("assistant", "Hello! How can I help you today?"), ("user", "Tell me about the history of bread.")],
    [("user", "In 2024 a ticket cost 12.50. What would 37 tickets cost? Show your work.")],
    [("user", "Describe the water cycle for a ten-year-old.")],
    [("user", "Compare cats and dogs as pets.")],
    [("user", "Schreibe einen Satz über den Frühling — naïve café, 早上好.")],
    [("user", "How do I repair a flat bicycle tyre? List the steps.")],
    [("user", "What makes a good friend?")],
    [("user", "Write a polite e-mail that asks for a day off.")],
]
STRINGS = ["", " ", "Hello, world!", "don't won't I'll we've", "12345 and 3.14", "x=1  2   3", "a\n\n\tb  c   ", "naïve café — 早上好 🧵",
           "<|im_start|>user\nhi<|im_end|>", "ALLCAPS camelCase snake_case", "    indented\n        more", "e\u0301 é"]


def load():
    torch.set_num_threads(1)
    folder = WEIGHTS / "smollm2-135m-instruct-q4_1"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    # transformers reads `tokenizer.ggml.pre` as plain byte-level; SmolLM2's own tokenizer splits single digits first.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return tokenizer, AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()


@torch.no_grad()
def text():
    tokenizer, model = load()
    records, first, rejected = [], {}, []
    for turns in PROMPTS:
        messages = [{"role": role, "content": content} for role, content in turns]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=STEPS,
                             return_dict_in_generate=True, output_logits=True)
        tokens = out.sequences[0, ids.shape[1]:].tolist()
        logits = torch.stack(out.logits)[:, 0]
        top = logits.topk(2).values
        gap = float((top[:, 0] - top[:, 1]).min())
        print(f"{turns[-1][1][:40]!r}: {ids.shape[1]} + {len(tokens)} tokens, gap {gap:.4f}", flush=True)
        if gap < MIN_GAP or len(tokens) < STEPS:
            rejected.append(dict(prompt=turns[-1][1], tokens=len(tokens), min_gap=round(gap, 5)))
            continue
        name = f"chat{len(records)}"
        values = logits[0].numpy()
        order = np.argsort(-values)[:20]
        first[f"{name}.logits"] = values[:512]
        records.append(dict(
            id=name, messages=messages, prompt_text=prompt, prompt_ids=ids[0].tolist(), greedy_ids=tokens,
            greedy_text=tokenizer.decode(tokens, skip_special_tokens=True), min_gap=round(gap, 5),
            top20_ids=order.tolist(), top20_logits=[round(float(values[i]), 5) for i in order]))
        if len(records) == WANTED:
            break
    assert len(records) == WANTED, "too few prompts keep their distance from ties"
    write_json(OUT / "smollm2.json", dict(
        about="float32, weights dequantised from the GGUF file; logits of the last prompt position: top 20 here, the first "
              "512 in smollm2.safetensors",
        made_by=versions("transformers", "torch", "gguf", "tokenizers"), file=f"smollm2-135m-instruct-q4_1/{FILE}",
        required_min_gap=MIN_GAP, min_gap=min(r["min_gap"] for r in records), cases=records, rejected=rejected,
        perplexity=perplexity(tokenizer, model),
        tokenizer=[dict(text=s, ids=tokenizer(s, add_special_tokens=False).input_ids) for s in STRINGS]))
    write_tensors(OUT / "smollm2.safetensors", first)


def perplexity(tokenizer, model):
    """exp of the mean negative log likelihood of every token of the paragraph but the first."""
    paragraph = (OUT / "paragraph.txt").read_text().rstrip("\n")
    ids = tokenizer(paragraph, add_special_tokens=False, return_tensors="pt").input_ids
    logits = model(ids).logits[0, :-1].double()
    losses = -torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    value = math.exp(float(losses.mean()))
    print(f"perplexity {value:.6f} over {len(losses)} tokens")
    return dict(file="paragraph.txt", note="trailing newline removed, no BOS; the first token is context only",
                tokens=ids.shape[1], perplexity=value, mean_nll=float(losses.mean()), ids=ids[0].tolist(),
                nll=[round(float(v), 5) for v in losses])
