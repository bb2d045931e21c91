#!/usr/bin/env python3
"""Checks that the training forward computes what transformers computes, on one picture and one clip of a random model.

    check.py TOKENIZER
"""
import random
import sys

import numpy as np
import torch

import degrade
import network
import tasks


def main(tokenizer):
    torch.manual_seed(0)
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration, WhisperFeatureExtractor
    rows = tasks.Rows(tokenizer)
    token = rows.tokenizer.token_to_id
    tokens = {t: token(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
                                    "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>")} | {"user": rows.encode("user")[0]}
    c = network.config(tokens)
    c._attn_implementation = "eager"
    model = Qwen2_5OmniThinkerForConditionalGeneration(c).float().eval()
    print("parameters", sum(p.numel() for p in model.parameters()))
    for p in model.parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p, .5, .3)
    net = network.Network(model, dtype=torch.float32, compiled=False).eval()
    picture, clip = torch.rand(1, 3, 168, 336) * 255, torch.randn(1, 16000 * 52 // 10) * .1
    with torch.no_grad():
        mel = degrade.logmel(clip)
        extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
        theirs = extractor(clip[0].numpy(), sampling_rate=16000, return_attention_mask=True, return_tensors="pt")
        n = int(theirs["attention_mask"].sum())
        print("log-mel differs by", float((mel[0] - theirs["input_features"][0, :, :n]).abs().max()))
        ids, at, labels = rows.row(random.Random(1), "What does the sign say?", "abc", 72 + 130 + tasks.__dict__.get("WORDS", 100), (6, 12), 130)
        length = len(rows.prompt(random.Random(1), "What does the sign say?", (6, 12), 130)[0])
        ids, at = torch.from_numpy(ids).long()[None], torch.from_numpy(at).long()[:, None]
        p = degrade.patches(picture)
        ours = net.logits(net.text(ids, at, [(tokens["<|IMAGE|>"], net.vision(p, (12, 24))), (tokens["<|AUDIO|>"], net.audio(mel)[0])]))
        pixels = p[0].reshape(-1, 3, 1, 196).expand(-1, 3, 2, 196).reshape(-1, 1176)
        there = model(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels, image_grid_thw=torch.tensor([[1, 12, 24]]),
                      input_features=mel, feature_attention_mask=torch.ones(1, mel.shape[2], dtype=torch.long)).logits
    worst = float((ours[:, :length + 4] - there[:, :length + 4]).abs().max())
    print("logits differ by", worst, "of", float(there.abs().max()))
    assert worst < 2e-3 * float(there.abs().max())


if __name__ == "__main__":
    main(*sys.argv[1:2])
