#!/usr/bin/env python3
"""Trains tiny-omni in stages that resume. See README.md.

    train.py --assets DIR --tokenizer FILE --out DIR --seconds N [--resume DIR] [--rate R] [--small]

Writes into --out: `weights-N.safetensors` (bfloat16, each under 16 MB, every two minutes), `log.jsonl`, `exam.json`.
"""
import argparse
import json
import multiprocessing
import os
import queue
import random
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np

import feed


def parse():
    p = argparse.ArgumentParser(usage=__doc__)
    for name in ("assets", "tokenizer", "out"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--seconds", type=float, required=True)
    p.add_argument("--resume")
    p.add_argument("--rate", type=float, default=2.5e-3)
    p.add_argument("--hold", type=float, default=.6, help="fraction of the time before the rate falls")
    p.add_argument("--floor", type=float, default=.05)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--small", action="store_true", help="a toy size, for trying this on a CPU")
    p.add_argument("--eager", action="store_true")
    p.add_argument("--exam", type=int, default=256)
    p.add_argument("--workers", default="text=9,scene=2,clip=3,both=1")
    return p.parse_args()


class Supply:
    """Fresh batches of one kind, on the device; a batch is used again, with other damage, while nothing fresh is there."""

    def __init__(self, source, device, used=6):
        self.ready, self.source, self.device, self.used = deque(), source, device, used
        self.pool, self.fresh, self.again = deque(maxlen=used), 0, 0
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self):
        while True:
            batch = self.source.get()
            while len(self.ready) > 3:
                time.sleep(.005)
            self.ready.append(to_device(batch, self.device))

    def any(self):
        return bool(self.ready or self.pool)

    def next(self):
        while not self.any():
            time.sleep(.01)
        if self.ready:
            batch = self.ready.popleft()
            self.pool.append(batch)
            self.fresh += 1
            return batch
        self.again += 1
        return random.choice(self.pool)


def to_device(batch, device):
    """Copies on a stream of their own: they must not wait for the steps that are queued."""
    import torch
    stream = torch.cuda.Stream() if device == "cuda" else None
    out = {}
    with torch.cuda.stream(stream):
        for k, v in batch.items():
            if k == "lengths":
                v = tuple(v.tolist())
            elif isinstance(v, np.ndarray):
                v = torch.from_numpy(np.ascontiguousarray(v)).to(device)
                v = v.long() if k in ("ids", "at", "want", "text") else v
                if stream:
                    v.record_stream(torch.cuda.default_stream())
            out[k] = v
    if stream:
        stream.synchronize()
    return out


class Trainer:
    def __init__(self, args):
        import torch
        from tokenizers import Tokenizer
        from transformers import Qwen2_5OmniThinkerForConditionalGeneration
        import network
        self.torch, self.args = torch, args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(args.seed)
        torch.backends.cudnn.allow_tf32 = False  # pictures and log-mel stay exact; the network itself is bfloat16
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.cache_size_limit = 32
        torch._dynamo.config.specialize_int = True
        tokenizer = Tokenizer.from_file(args.tokenizer)
        special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>")
        self.tokens = {t: tokenizer.token_to_id(t) for t in special} | {"user": tokenizer.encode("user").ids[0]}
        sizes = dict(text=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1),
                     vision=dict(hidden_size=64, num_heads=2, intermediate_size=96, depth=2),
                     audio=dict(d_model=64, encoder_attention_heads=2, encoder_ffn_dim=96, encoder_layers=2)) if args.small else {}
        model = Qwen2_5OmniThinkerForConditionalGeneration(network.config(self.tokens, vocab=tokenizer.get_vocab_size(), **sizes)).float()
        model.audio_tower.audio_bos_eos_token.weight.requires_grad_(False)
        self.net = network.Network(model, compiled=not args.eager).to(self.device)
        if args.resume:
            load(self.net, args.resume)
        from optimise import Optimiser
        self.optimiser = Optimiser(self.net)
        self.count = sum(p.numel() for p in model.parameters())

    def features(self, batch, amount):
        """([(token id, features)], loss of the aids)."""
        import degrade
        torch, F = self.torch, self.torch.nn.functional
        media, aid = [], torch.zeros((), device=self.device)
        if "image" in batch:
            with torch.no_grad():
                x, centres = degrade.pictures(batch["image"], batch["centres"], amount)
                x = degrade.patches(x)
            v = self.net.vision(x, batch["grid"])
            media.append((self.tokens["<|IMAGE|>"], v))
            if self.net.training and len(centres):
                aid = aid + .5 * self.sight(v, centres, batch["grid"])
        if "clip" in batch:
            with torch.no_grad():
                x = degrade.resample(batch["clip"].float() / 32768, batch["rate"])
                seconds = batch["clip"].shape[1] / batch["rate"]
                mel = degrade.logmel(degrade.rooms(x[:, :round(seconds * 16000)], amount))
            a, rows = self.net.audio(mel)
            media.append((self.tokens["<|AUDIO|>"], a))
            if self.net.training:
                p = self.net.heard(rows.float()).log_softmax(-1).transpose(0, 1)
                aid = aid + .3 * F.ctc_loss(p, batch["text"], (p.shape[0],) * len(a), batch["lengths"], zero_infinity=True)
        return media, aid

    def sight(self, v, centres, grid):
        """How well a merged patch tells which characters have their middle in it."""
        torch, F = self.torch, self.torch.nn.functional
        h, w = grid[0] // 2, grid[1] // 2
        y, x = (centres[:, 2] / 28).floor().long(), (centres[:, 1] / 28).floor().long()
        keep = ((y >= 0) & (y < h) & (x >= 0) & (x < w)).float()
        want = torch.zeros(v.shape[0] * h * w * 95, device=v.device)
        at = ((centres[:, 0].long() * h + y.clamp(0, h - 1)) * w + x.clamp(0, w - 1)) * 95 + centres[:, 3].long()
        want = want.scatter_reduce(0, at, keep, "amax").view(v.shape[0], h * w, 95)
        loss = F.binary_cross_entropy_with_logits(self.net.seen(v.float()), want, reduction="sum")
        return loss / want.sum().clamp(min=1) / 8

    def forward(self, batch, amount):
        media, aid = self.features(batch, amount)
        hidden = self.net.text(batch["ids"], batch["positions"], media)
        logits = self.net.logits(hidden.flatten(0, 1)[batch["at"]])
        return self.torch.nn.functional.cross_entropy(logits, batch["want"]), aid, logits

    def exam(self, batches):
        """Exact answers among all, by category: every token of the answer is the most likely one."""
        import network
        torch, out = self.torch, {}
        self.net.eval()
        fast = self.net.gated, self.net.audio_layer
        self.net.gated, self.net.audio_layer = network.gated_block, network.audio_block
        for name, amount, batch in batches:
            good = []
            with torch.no_grad():
                for part in [batch]:
                    torch.manual_seed(7)
                    _, _, logits = self.forward(part, amount)
                    right = logits.argmax(-1) == part["want"]
                    row = part["at"] // part["ids"].shape[1]
                    wrong = torch.zeros(len(part["ids"]), device=self.device).index_add_(0, row, (~right).float())
                    good.append((wrong == 0).float())
            out[name] = round(torch.cat(good).mean().item(), 4)
        self.net.gated, self.net.audio_layer = fast
        self.net.train()
        return out



def load(net, folder):
    from safetensors.torch import load_file
    state = {}
    for path in sorted(Path(folder).glob("weights-*.safetensors")):
        state.update(load_file(path))
    missing, extra = net.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    missing = [k for k in missing if "lm_head" not in k]
    print("resumed", len(state), "missing", missing[:3], "extra", extra[:3], flush=True)


def save(net, out):
    """bfloat16 shards of under 16 MB, whole or not at all."""
    import torch
    from safetensors.torch import save_file
    state = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in net.state_dict().items() if "lm_head" not in k}
    shards, size = [{}], 0
    for k, v in state.items():
        if size + v.numel() * 2 > 15_500_000:
            shards.append({})
            size = 0
        shards[-1][k] = v
        size += v.numel() * 2
    for i, shard in enumerate(shards):
        save_file(shard, f"{out}/part.tmp")
        os.replace(f"{out}/part.tmp", f"{out}/weights-{i}.safetensors")


def schedule(at, hold, floor):
    """Share of the peak rate at `at`, a fraction of the time."""
    return 1. if at < hold else floor + (1 - floor) * max(0., (1 - at) / (1 - hold))


def main():
    args = parse()
    began = time.time()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    log = open(f"{args.out}/log.jsonl", "a")

    def say(**what):
        print(json.dumps(what), flush=True)
        log.write(json.dumps(what) + "\n")
        log.flush()

    context = multiprocessing.get_context("fork")
    counts = {k: int(v) for k, v in (x.split("=") for x in args.workers.split(","))}
    patches, sound = (147456, 320) if not args.small else (1536, 12)
    sources = {k: context.Queue(2 * n) for k, n in counts.items()}
    examined = context.Queue(2)
    processes = [context.Process(target=feed.work, daemon=True, args=(sources[k], k, args.assets, args.tokenizer, args.seed * 1000 + 100 * j + i, patches, sound))
                 for j, (k, n) in enumerate(counts.items()) for i in range(n)]
    processes.append(context.Process(target=feed.exam, daemon=True, args=(examined, args.assets, args.tokenizer, 77, args.exam)))
    for p in processes:
        p.start()
    import torch
    t = Trainer(args)
    say(parameters=t.count, device=t.device, started=round(time.time() - began, 1))
    cases = []

    def collect():
        while (item := examined.get()) is not None:
            cases.append((item[0], item[1], to_device(item[2], t.device)))
    threading.Thread(target=collect, daemon=True).start()
    supply = {k: Supply(q, t.device) for k, q in sources.items()}
    ending = 25 if not args.small else 8
    step, mean, next_say, next_exam, next_save = 0, {}, 15, 100, 120
    while (elapsed := time.time() - began) < args.seconds - ending:
        kinds = ["scene" if step % 4 == 3 else "text", "clip"] + (["both"] if step % 5 == 4 else [])
        for kind in [k for k in kinds if k == "text" or supply[k].any()]:
            loss, aid, _ = t.forward(supply[kind].next(), 1. if step % 10 else 0.)
            (loss + aid).backward()
            old = mean.setdefault(kind, torch.zeros(2, device=t.device))
            old.lerp_(torch.stack([loss.detach(), aid.detach().float()]), .05 if step > 20 else .5)
        share = schedule(elapsed / (args.seconds - ending), args.hold, args.floor)
        t.optimiser.step(args.rate * min(1, (step + 1) / 150) * share)
        step += 1
        if elapsed > next_say:
            next_say = elapsed + 15
            say(s=round(elapsed), step=step, loss={k: [round(x, 4) for x in v.tolist()] for k, v in mean.items()},
                fresh={k: s.fresh for k, s in supply.items()}, again={k: s.again for k, s in supply.items()})
        if elapsed > next_exam:
            next_exam = elapsed + 100
            say(s=round(elapsed), exam=t.exam(cases))
        if elapsed > next_save:
            next_save = elapsed + 120
            save(t.net, args.out)
    save(t.net, args.out)
    result = t.exam(cases)
    say(s=round(time.time() - began), step=step, final=result)
    Path(args.out, "exam.json").write_text(json.dumps(result, indent=1))
    for p in processes:
        p.kill()  # a worker that outlives this process keeps the terminal's pipe open
    os._exit(0)


if __name__ == "__main__":
    main()
