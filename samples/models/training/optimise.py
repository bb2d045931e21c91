"""The optimiser: orthogonalised momentum (Muon, K. Jordan 2024) for matrices inside blocks, AdamW for everything else."""
import torch


@torch.no_grad()
def orthogonal(g, steps=5):
    """Newton-Schulz towards the nearest orthogonal matrices of a stack."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flat = x.shape[-2] > x.shape[-1]
    if flat:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        y = x @ x.mT
        x = a * x + (b * y + c * y @ y) @ x
    return x.mT if flat else x


class Muon:
    def __init__(self, weights, decay=.02, momentum=.95):
        self.groups = {}
        for w in weights:
            self.groups.setdefault(tuple(w.shape), []).append(w)
        self.momentum = {k: torch.zeros(len(v), *k, device=v[0].device) for k, v in self.groups.items()}
        self.decay, self.beta = decay, momentum

    @torch.no_grad()
    def step(self, rate):
        for shape, weights in self.groups.items():
            g = torch.stack([w.grad for w in weights])
            m = self.momentum[shape]
            m.lerp_(g, 1 - self.beta)
            update = orthogonal(g.lerp(m, self.beta)).float() * (.2 * max(shape) ** .5)
            torch._foreach_mul_(weights, 1 - rate * self.decay)
            torch._foreach_add_(weights, list(update.unbind()), alpha=-rate)


class Optimiser:
    def __init__(self, net):
        matrices, rest = [], []
        for name, p in net.named_parameters():
            inside = p.dim() == 2 and "embed" not in name and "token" not in name and name.split(".")[0] == "model"
            (matrices if inside else rest).append(p)
        rest = [p for p in rest if p.requires_grad]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=1e-3, betas=(.9, .95), weight_decay=.01, fused=rest[0].is_cuda)
        self.all = matrices + rest

    def step(self, rate):
        """`rate` is Muon's; AdamW runs at two thirds of it."""
        for p in self.all:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        torch.nn.utils.clip_grad_norm_(self.all, 2.0, foreach=True)
        self.muon.step(rate)
        for group in self.adam.param_groups:
            group["lr"] = rate * .66
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for p in self.all:
            p.grad = None
