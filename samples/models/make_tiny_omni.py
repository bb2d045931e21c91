#!/usr/bin/env python3
"""Makes the small seeded Qwen2.5-Omni-thinker checkpoints: random weights, real tokenizer, real file layout.

    make_tiny_omni.py embedded OUT     the model inside the binary, first edition (tied embeddings)
    make_tiny_omni.py exact OUT        the smaller one that golden numbers are made on (untied embeddings)
    make_tiny_omni.py tokenizer OUT    trains the tokenizer alone, into OUT/tokenizer.json

Every file is written by transformers' own `save_pretrained`, except the model card. Weights are saved in bfloat16; to
compare in float32, load them with `dtype=float32` (converting a bfloat16 model also rounds its rotary tables).

The tokenizer is trained on the docstrings of Python's standard library (PSF licence), so its vocabulary depends on the
Python that runs this. Checkpoints therefore reuse the tokenizer.json beside this script's `tiny-omni` when it exists.
Needs tests/golden/requirements.txt.
"""
import ast
import json
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (GenerationConfig, Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration,
                          Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen2VLVideoProcessor, WhisperFeatureExtractor)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig

HERE = Path(__file__).resolve().parent
VOCAB = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
           "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>"]
NAMED = {"image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
         "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
         "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@dataclass
class Shape:
    """Sizes of one checkpoint. Head sizes stay even, so that every rotary pair exists."""
    title: str
    seed: int
    tied: bool
    text: dict
    mrope_section: list
    vision: dict
    audio: dict
    logit_std: float
    shard: str


SHAPES = {
    "embedded": Shape(
        title="tiny-omni", seed=20261130, tied=True, logit_std=1.6, shard="2MB",
        text=dict(hidden_size=128, intermediate_size=320, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2),
        mrope_section=[4, 6, 6],
        vision=dict(hidden_size=96, num_heads=3, intermediate_size=192, depth=5, fullatt_block_indexes=[1, 4]),
        audio=dict(d_model=96, encoder_attention_heads=3, encoder_ffn_dim=384, encoder_layers=4)),
    "exact": Shape(
        title="omni-exact", seed=7, tied=False, logit_std=4.0, shard="700KB",
        text=dict(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2),
        mrope_section=[2, 3, 3],
        vision=dict(hidden_size=64, num_heads=4, intermediate_size=96, depth=4, fullatt_block_indexes=[2]),
        audio=dict(d_model=64, encoder_attention_heads=4, encoder_ffn_dim=160, encoder_layers=3)),
}


def docstrings():
    """Docstrings of the standard library's top-level modules, in name order."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield text


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(docstrings(), trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return tokenizer


def make_tokenizer():
    kept = HERE / "tiny-omni" / "tokenizer.json"
    model = json.loads(kept.read_text() if kept.exists() else train_tokenizer().to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], eos_token="<|im_end|>", pad_token="<|endoftext|>",
        unk_token="<|endoftext|>", model_max_length=4096, extra_special_tokens=NAMED)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL}, replace_extra_special_tokens=False)
    assert len(tokenizer) == VOCAB, len(tokenizer)
    return tokenizer


def make_config(shape, tokenizer):
    token = tokenizer.convert_tokens_to_ids
    width = shape.text["hidden_size"]
    ends = dict(pad_token_id=token("<|endoftext|>"), bos_token_id=token("<|im_start|>"), eos_token_id=token("<|im_end|>"))
    return Qwen2_5OmniThinkerConfig(
        text_config=dict(shape.text, vocab_size=VOCAB, max_position_embeddings=4096, tie_word_embeddings=shape.tied,
                         rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=shape.mrope_section), **ends),
        vision_config=dict(shape.vision, patch_size=14, temporal_patch_size=2, spatial_merge_size=2, window_size=112,
                           out_hidden_size=width),
        audio_config=dict(shape.audio, num_mel_bins=128, n_window=100, max_source_positions=1500, output_dim=width),
        image_token_index=token("<|IMAGE|>"), audio_token_index=token("<|AUDIO|>"), video_token_index=token("<|VIDEO|>"),
        audio_start_token_id=token("<|audio_bos|>"), audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_bos|>"), vision_end_token_id=token("<|vision_eos|>"),
        user_token_id=tokenizer.encode("user")[0], tie_word_embeddings=shape.tied, **ends)


@torch.no_grad()
def randomise(model, shape):
    """Seeds every weight so that nothing is neutral: biases are not zero, norms are not one, attention is not flat."""
    random = torch.Generator().manual_seed(shape.seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=random)
        if name.endswith("bias"):
            weight.copy_(0.2 * noise)
        elif weight.dim() == 1:
            weight.copy_(1 + 0.2 * noise)
        elif "embed_tokens" in name:
            weight.copy_(noise * (shape.logit_std / weight.shape[1] ** 0.5 if shape.tied else 1.0))
        else:
            gain = shape.logit_std if "lm_head" in name else 1.5 if any(k in name for k in ("q_proj", "k_proj")) else 1.0
            weight.copy_(noise * gain / weight[0].numel() ** 0.5)


def make_processor(tokenizer):
    return Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 1280),
        video_processor=Qwen2VLVideoProcessor(),
        feature_extractor=WhisperFeatureExtractor(feature_size=128, chunk_length=300),
        tokenizer=tokenizer, chat_template=TEMPLATE)


def make(kind, out):
    shape, out = SHAPES[kind], Path(out)
    tokenizer = make_tokenizer()
    model = Qwen2_5OmniThinkerForConditionalGeneration(make_config(shape, tokenizer))
    randomise(model, shape)
    model.generation_config = GenerationConfig(
        do_sample=False, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")])
    model.to(torch.bfloat16).save_pretrained(out, max_shard_size=shape.shard)
    make_processor(tokenizer).save_pretrained(out)
    for shard in out.glob("*.safetensors"):
        shard.chmod(0o644)
    count = sum(p.numel() for p in model.parameters())
    (out / "README.md").write_text(CARD.format(title=shape.title, kind=kind, count=count / 1e6, seed=shape.seed))
    print(f"{out}: {count} parameters")


CARD = """---
license: apache-2.0
---
# {title}

A Qwen2.5-Omni *thinker* (image, audio and text in; text out) with {count:.2f} million **random** weights (seed {seed}).
**Its answers are not meaningful.** It has the true architecture, file layout, tokenizer and processors, so that the whole
path runs on any machine and can be compared number by number with the reference implementation.

Made by `samples/models/make_tiny_omni.py {kind}`. The tokenizer is a byte-level BPE of 2,048 entries trained on the
docstrings of Python's standard library (PSF licence). No text of a third party is in the weights.
"""

if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) != 3 or sys.argv[1] not in {*SHAPES, "tokenizer"}:
        sys.exit(__doc__)
    if sys.argv[1] == "tokenizer":
        train_tokenizer().save(str(Path(sys.argv[2]) / "tokenizer.json"))
    else:
        make(*sys.argv[1:3])
