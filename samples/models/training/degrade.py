"""Colours and damages pictures, resamples and damages clips, in batches on the card (or a CPU). Owns no text.

Also makes the model's inputs: normalised patches and log-mel, equal to what the reference processors make.
"""
import functools
import math

import torch
import torch.nn.functional as F

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
JPEG = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55), (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92), (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99))


@functools.lru_cache(None)
def fixed(values, device):
    """A constant on the device, copied once: every copy would wait for the card."""
    return torch.tensor(values, device=device).float()


def uniform(n, low, high, device, *shape):
    return torch.rand(n, *shape, device=device) * (high - low) + low


def some(n, chance, device):
    return (torch.rand(n, device=device) < chance).float()


def warp(x, amount, border):
    """Turns, scales, shears and tilts each picture a little; returns it and the map from new places to old ones."""
    n, _, h, w = x.shape
    d = x.device
    on = some(n, .5, d) * amount
    angle, size = uniform(n, -.12, .12, d) * on, 1 + uniform(n, -.12, .06, d) * on
    m = torch.zeros(n, 3, 3, device=d)
    m[:, 0, 0] = m[:, 1, 1] = torch.cos(angle) / size
    m[:, 0, 1], m[:, 1, 0] = -torch.sin(angle) / size * h / w, torch.sin(angle) / size * w / h
    m[:, 0, 1] += uniform(n, -.15, .15, d) * on * some(n, .4, d)
    m[:, 2, 0], m[:, 2, 1] = uniform(n, -.12, .12, d) * on, uniform(n, -.12, .12, d) * on
    m[:, 2, 2] = 1
    ys, xs = torch.linspace(-1 + 1 / h, 1 - 1 / h, h, device=d), torch.linspace(-1 + 1 / w, 1 - 1 / w, w, device=d)
    grid = torch.stack([xs[None].expand(h, w), ys[:, None].expand(h, w), torch.ones(h, w, device=d)], -1)
    at = torch.einsum("hwk,njk->nhwj", grid, m)
    return F.grid_sample(x, at[..., :2] / at[..., 2:], mode="bilinear", padding_mode=border, align_corners=False), m


def move(centres, m, h, w):
    """Centres (batch, x, y, character) after `warp`."""
    b = centres[:, 0].long()
    p = torch.stack([centres[:, 1] / w * 2 - 1, centres[:, 2] / h * 2 - 1, torch.ones_like(centres[:, 1])], -1)
    q = (torch.linalg.inv_ex(m)[0][b] @ p[..., None])[..., 0]
    return torch.stack([centres[:, 0], (q[:, 0] / q[:, 2] + 1) / 2 * w, (q[:, 1] / q[:, 2] + 1) / 2 * h, centres[:, 3]], -1)


def colour(mask, amount):
    """Ink on ground, at least a quarter of the range apart in brightness; some grounds fade."""
    n, _, h, w = mask.shape
    d = mask.device
    weights = fixed((.3, .59, .11), d)
    ground, ink = torch.rand(n, 3, device=d), torch.rand(n, 3, device=d)
    plain = torch.rand(n, device=d)
    light = (plain < .35).float()[:, None]
    ground = ground * (1 - light) + (1 - .12 * torch.rand(n, 3, device=d)) * light
    dark = (plain > .88).float()[:, None]
    ground = ground * (1 - dark) + .15 * torch.rand(n, 3, device=d) * dark
    bright = ground @ weights
    close = ((ink @ weights - bright).abs() < .3) | (torch.rand(n, device=d) < .3)
    ink = torch.where(close[:, None], ((bright < .5).float()[:, None] - .1 * torch.rand(n, 3, device=d)).clamp(0, 1), ink)
    ramp = (torch.linspace(-1, 1, w, device=d)[None, None] * uniform(n, -1, 1, d, 1, 1)
            + torch.linspace(-1, 1, h, device=d)[None, :, None] * uniform(n, -1, 1, d, 1, 1))
    ground = ground[..., None, None] + (ramp * (some(n, .3, d) * .15 * amount)[:, None, None])[:, None]
    return ground + (ink[..., None, None] - ground) * mask


def jpeg(x, quality):
    """Rounds 8x8 cosine coefficients as JPEG does, each channel like luminance; an incomplete edge block stays."""
    n, c, h, w = x.shape
    h8, w8 = h // 8, w // 8
    k = torch.arange(8, device=x.device).float()
    basis = torch.cos((2 * k[None] + 1) * k[:, None] * math.pi / 16) * torch.where(k == 0, math.sqrt(1 / 8), .5)[:, None]
    table = (fixed(JPEG, x.device) * quality[:, None, None]).clamp(min=1)[:, None, None, None]
    y = x[..., :h8 * 8, :w8 * 8].reshape(n, c, h8, 8, w8, 8).transpose(3, 4) - 128
    y = basis.T @ (torch.round(basis @ y @ basis.T / table) * table) @ basis + 128
    out = x.clone()
    out[..., :h8 * 8, :w8 * 8] = y.transpose(3, 4).reshape(n, c, h8 * 8, w8 * 8)
    return out


def damage(x, amount):
    """Blur, coarse resolution, noise and JPEG on parts of the batch; 0 to 255."""
    n, _, h, w = x.shape
    d = x.device
    if amount:
        k = fixed((1, 4, 6, 4, 1), d) / 16
        soft = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="replicate").transpose(0, 1).reshape(-1, 1, h + 4, w + 4), (k[:, None] * k[None])[None, None])
        soft = soft.reshape(3, n, h, w).transpose(0, 1)
        mix = (torch.rand(n, device=d) * some(n, .35, d) * amount)[:, None, None, None]
        x = x + (soft - x) * mix
        few = n // 8
        if few:
            part = float(torch.rand(())) * .5 + .5
            small = F.interpolate(x[:few], scale_factor=part, mode="bilinear", antialias=True, align_corners=False)
            x = torch.cat([F.interpolate(small, size=(h, w), mode="bicubic", align_corners=False), x[few:]])
        noise = (torch.rand(n, device=d) * 22 * some(n, .4, d) * amount)[:, None, None, None]
        x = x + torch.randn_like(x) * noise
        x = x.clamp(0, 255)
        few = n // 4
        if few:
            x = torch.cat([jpeg(x[:few], uniform(few, .1, 1.6, d)), x[few:]])
    return x.clamp(0, 255).round()


def pictures(u8, centres, amount):
    """(RGB 0 to 255, moved centres) from one-channel coverage [n, h, w] or RGB [n, h, w, 3]; `amount` 0 is clean."""
    rgb = u8.dim() == 4
    x = (u8.permute(0, 3, 1, 2) if rgb else u8[:, None]).float()
    n, _, h, w = x.shape
    if amount:
        x, m = warp(x, amount * (.5 if rgb else 1), "border" if rgb else "zeros")
        if len(centres):
            centres = move(centres, m, h, w)
    if not rgb:
        x = 255 * colour(x / 255, amount)
    order = torch.randperm(n, device=x.device)
    back = torch.argsort(order)
    return damage(x[order], amount)[back], centres


def patches(x):
    """[n, 3, h, w] of 0 to 255 -> [n, patches in merge order, 588]: one frame, since both frames of a picture are equal."""
    n, _, h, w = x.shape
    x = (x / 255 - fixed(MEAN, x.device)[:, None, None]) / fixed(STD, x.device)[:, None, None]
    x = x.reshape(n, 3, h // 28, 2, 14, w // 28, 2, 14).permute(0, 2, 5, 3, 6, 1, 4, 7)
    return x.reshape(n, h * w // 196, 588)


def resample(x, rate):
    """To 16 kHz by a windowed sinc; a wrong `rate` on purpose makes another voice of it."""
    g = math.gcd(rate, 16000)
    old, new = rate // g, 16000 // g
    cut = min(old, new) * .97
    reach = math.ceil(6 * old / cut)
    t = torch.arange(-reach, reach + old, device=x.device)[None] / old - torch.arange(new, device=x.device)[:, None] / new
    t = (t * cut).clamp(-6, 6)
    kernel = torch.sinc(t) * torch.cos(t * math.pi / 12) ** 2 * cut / old
    y = F.conv1d(F.pad(x, (reach, reach + old))[:, None], kernel[:, None], stride=old)
    return y.transpose(1, 2).reshape(len(x), -1)


def rooms(x, amount):
    """Reverberation, tone, noise and level."""
    n, length = x.shape
    d = x.device
    size = 1 << (length + 8000 - 1).bit_length()
    t = torch.arange(8000, device=d) / 16000
    decay = uniform(n, .03, .35, d, 1)
    echo = torch.randn(n, 8000, device=d) * torch.exp(-6.9 * t / decay) * (uniform(n, 0, .12, d, 1) * some(n, .4, d)[:, None] * amount)
    echo[:, 0] = 1
    spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(echo, size)
    f = torch.linspace(0, 1, spectrum.shape[1], device=d)
    tone = torch.exp(uniform(n, -1.5, 1.5, d, 1) * (f - .3) * amount * some(n, .5, d)[:, None]) * torch.sigmoid((uniform(n, .35, 3, d, 1) - f) * 30)
    x = torch.fft.irfft(spectrum * (tone if amount else 1), size)[:, :length]
    peak = x.abs().amax(1, keepdim=True).clamp(min=1e-4)
    x = x / peak
    noise = torch.fft.rfft(torch.randn(n, length, device=d))
    tint = torch.linspace(.02, 1, noise.shape[1], device=d)[None] ** -uniform(n, 0, .8, d, 1)
    noise = torch.fft.irfft(noise * tint, length)
    noise = noise / noise.std(1, keepdim=True)
    x = x + noise * (10 ** uniform(n, -4, -1.5, d, 1)) * some(n, .6, d)[:, None] * amount
    return x * uniform(n, .15, .9, d, 1)


_BANK = {}


def logmel(x):
    """[n, samples] at 16 kHz -> [n, 128, frames] as WhisperFeatureExtractor with its padding cut off again."""
    if x.device not in _BANK:
        from transformers.audio_utils import mel_filter_bank
        _BANK[x.device] = torch.tensor(mel_filter_bank(201, 128, 0, 8000, 16000, norm="slaney", mel_scale="slaney"), dtype=torch.float32, device=x.device)
    frames = x.shape[1] // 160
    s = torch.stft(F.pad(x, (0, 640)), 400, 160, window=torch.hann_window(400, device=x.device), return_complex=True)[..., :frames].abs() ** 2
    l = (s.transpose(1, 2) @ _BANK[x.device]).clamp(min=1e-10).log10().transpose(1, 2)
    return (torch.maximum(l, l.amax((1, 2), keepdim=True) - 8) + 4) / 4
