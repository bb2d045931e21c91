"""The training forward of a Qwen2.5-Omni thinker: batched and compiled, on the weights of transformers' own model.

Owns the arithmetic alone. Invariant: with a batch of one it computes what transformers computes (`check.py`). Every vision
block attends over the whole picture, so a batch of equal grids needs no index tensors.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

LOW = torch.bfloat16


def config(tokens, vocab=2048, text=None, vision=None, audio=None):
    """Sizes of tiny-omni: 19.1 million parameters. `tokens` names the special ids."""
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig
    text = dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2) | (text or {})
    vision = dict(hidden_size=256, num_heads=4, intermediate_size=768, depth=6) | (vision or {})
    audio = dict(d_model=256, encoder_attention_heads=4, encoder_ffn_dim=1024, encoder_layers=4) | (audio or {})
    half = text["hidden_size"] // text["num_attention_heads"] // 2
    sections = [half - 2 * (3 * half // 8)] + [3 * half // 8] * 2
    ends = dict(pad_token_id=tokens["<|endoftext|>"], bos_token_id=tokens["<|im_start|>"], eos_token_id=tokens["<|im_end|>"])
    return Qwen2_5OmniThinkerConfig(
        text_config=dict(text, vocab_size=vocab, max_position_embeddings=4096, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=sections), **ends),
        vision_config=dict(vision, patch_size=14, temporal_patch_size=2, spatial_merge_size=2, window_size=112,
                           out_hidden_size=text["hidden_size"], fullatt_block_indexes=list(range(vision["depth"]))),
        audio_config=dict(audio, num_mel_bins=128, n_window=200, max_source_positions=1500, output_dim=text["hidden_size"]),
        image_token_index=tokens["<|IMAGE|>"], audio_token_index=tokens["<|AUDIO|>"], video_token_index=tokens["<|VIDEO|>"],
        audio_start_token_id=tokens["<|audio_bos|>"], audio_end_token_id=tokens["<|audio_eos|>"],
        vision_start_token_id=tokens["<|vision_bos|>"], vision_end_token_id=tokens["<|vision_eos|>"],
        user_token_id=tokens["user"], tie_word_embeddings=True, **ends)


def rms(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), 1e-6)


def lin(x, weight, bias=None):
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def turn(x, cos, sin):
    """Rotary positions on [n, heads, rows, width]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def gated_block(x, cos, sin, w, count, groups, causal):
    """One block of the vision tower (not causal) or of the text decoder (causal)."""
    y = rms(x, w[0])
    q, k, v = (heads(lin(y, w[i], w[i + 1]), c) for i, c in ((1, count), (3, count // groups), (5, count // groups)))
    q, k = turn(q, cos, sin), turn(k, cos, sin)
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + lin(a.transpose(1, 2).flatten(2), w[7], w[8])
    y = rms(x, w[9])
    return x + lin(F.silu(lin(y, w[10], w[11])) * lin(y, w[12], w[13]), w[14], w[15])


def audio_block(x, w, count):
    width = x.shape[-1]
    norm = lambda t, i: F.layer_norm(t, (width,), w[i].to(t.dtype), w[i + 1].to(t.dtype))
    y = norm(x, 0)
    q, k, v = heads(lin(y, w[2], w[3]), count), heads(lin(y, w[4]), count), heads(lin(y, w[5], w[6]), count)
    a = F.scaled_dot_product_attention(q, k, v)
    x = x + lin(a.transpose(1, 2).flatten(2), w[7], w[8])
    y = norm(x, 9)
    return x + lin(F.gelu(lin(y, w[11], w[12])), w[13], w[14])


def sinusoids(rows, width, device):
    half = width // 2
    step = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, device=device).float())
    t = torch.arange(rows, device=device)[:, None] * step[None]
    return torch.cat([t.sin(), t.cos()], 1)


class Network(nn.Module):
    def __init__(self, model, characters=95, dtype=LOW, compiled=True):
        super().__init__()
        self.model, self.dtype = model, dtype
        c = model.config
        self.c = c
        # Aids to training, never shipped: which characters lie in a merged patch, which letter a half token of sound holds.
        self.seen = nn.Linear(c.text_config.hidden_size, characters)
        nn.init.constant_(self.seen.bias, -5.)
        self.heard = nn.Linear(c.audio_config.d_model, 30)
        self.gated, self.audio_layer = gated_block, audio_block
        if compiled:
            self.gated, self.audio_layer = torch.compile(gated_block, dynamic=True), torch.compile(audio_block, dynamic=True)

    def vision(self, patches, grid):
        v, c = self.model.visual, self.c.vision_config
        n, count, _ = patches.shape
        h, w = grid
        weight = v.patch_embed.proj.weight.sum(2).flatten(1)
        x = lin(patches.to(self.dtype), weight)
        d = c.hidden_size // c.num_heads
        inv = 1 / (10000 ** (torch.arange(0, d // 2, 2, device=x.device).float() / (d // 2)))
        rows = torch.arange(h, device=x.device)[:, None].expand(h, w)
        cols = torch.arange(w, device=x.device)[None].expand(h, w)
        at = torch.stack([t.reshape(h // 2, 2, w // 2, 2).transpose(1, 2).flatten() for t in (rows, cols)], -1).float()
        angle = (at[:, :, None] * inv).flatten(1)
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        for b in v.blocks:
            a, m = b.attn, b.mlp
            w_ = (b.norm1.weight, a.q.weight, a.q.bias, a.k.weight, a.k.bias, a.v.weight, a.v.bias, a.proj.weight, a.proj.bias,
                  b.norm2.weight, m.gate_proj.weight, m.gate_proj.bias, m.up_proj.weight, m.up_proj.bias, m.down_proj.weight, m.down_proj.bias)
            x = self.gated(x, cos, sin, w_, c.num_heads, 1, False)
        m = v.merger
        y = rms(x, m.ln_q.weight).reshape(n, count // 4, -1)
        return lin(F.gelu(lin(y, m.mlp[0].weight, m.mlp[0].bias)), m.mlp[2].weight, m.mlp[2].bias)

    def audio(self, mel):
        """[n, 128, frames] -> (tokens [n, frames / 4, width], rows [n, frames / 2, d_model] for the aid)."""
        t, c = self.model.audio_tower, self.c.audio_config
        n, _, frames = mel.shape
        chunk = 2 * c.n_window
        whole = frames // chunk
        pieces = []
        if whole:
            pieces.append(mel[:, :, :whole * chunk].reshape(n, 128, whole, chunk).transpose(1, 2).reshape(n * whole, 128, chunk))
        if frames % chunk:
            pieces.append(mel[:, :, whole * chunk:])
        out = []
        for x in pieces:
            x = F.gelu(F.conv1d(x.to(self.dtype), t.conv1.weight.to(self.dtype), t.conv1.bias.to(self.dtype), padding=1))
            x = F.gelu(F.conv1d(x, t.conv2.weight.to(self.dtype), t.conv2.bias.to(self.dtype), stride=2, padding=1)).transpose(1, 2)
            x = (x + sinusoids(x.shape[1], c.d_model, x.device).to(self.dtype)).contiguous()
            for l in t.layers:
                a = l.self_attn
                w_ = (l.self_attn_layer_norm.weight, l.self_attn_layer_norm.bias, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight,
                      a.v_proj.weight, a.v_proj.bias, a.out_proj.weight, a.out_proj.bias, l.final_layer_norm.weight, l.final_layer_norm.bias,
                      l.fc1.weight, l.fc1.bias, l.fc2.weight, l.fc2.bias)
                x = self.audio_layer(x, w_, c.encoder_attention_heads)
            out.append(x.reshape(n, -1, x.shape[-1]))
        x = torch.cat(out, 1)
        y = x.unflatten(1, (-1, 2)).mean(2)
        y = F.layer_norm(y, (c.d_model,), t.ln_post.weight.to(y.dtype), t.ln_post.bias.to(y.dtype))
        return lin(y, t.proj.weight, t.proj.bias), x

    def text(self, ids, positions, media):
        """[n, rows, width]; `media` = [(token id, features [n, count, width])]; positions [3, n, rows]."""
        m, c = self.model.model, self.c.text_config
        x = F.embedding(ids, m.embed_tokens.weight).to(self.dtype)
        for token, features in media:
            x = x.masked_scatter((ids == token)[..., None], features.to(self.dtype))
        d = c.hidden_size // c.num_attention_heads
        inv = 1 / (c.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2, device=x.device).float() / d))
        angle = positions.float()[..., None] * inv
        parts = angle.split(list(c.rope_parameters["mrope_section"]), -1)
        angle = torch.cat([p[i % 3] for i, p in enumerate(parts)], -1)
        angle = torch.cat([angle, angle], -1)[:, None]
        cos, sin = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        for b in m.layers:
            a, f = b.self_attn, b.mlp
            w_ = (b.input_layernorm.weight, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias, a.v_proj.weight, a.v_proj.bias,
                  a.o_proj.weight, None, b.post_attention_layernorm.weight, f.gate_proj.weight, None, f.up_proj.weight, None, f.down_proj.weight, None)
            x = self.gated(x, cos, sin, w_, c.num_attention_heads, c.num_attention_heads // c.num_key_value_heads, True)
        return rms(x, m.norm.weight)

    def logits(self, hidden):
        return lin(hidden, self.model.model.embed_tokens.weight).float()
