"""Mixtures of experts."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import GatedMLP, RMSNorm


class RoutedExperts(nn.Module):
    """The top two of four experts for each token; tokens are taken by index and added back."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.norm, self.router = RMSNorm(width), nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(GatedMLP(width, 2 * width) for _ in range(count))

    def forward(self, x):
        flat = self.norm(x).flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            total.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
        return x + total.view_as(x)


def routed_by_index():
    return nn.Sequential(*(RoutedExperts(24, 4) for _ in range(2))), (torch.randn(2, 7, 24),)


class DenseExperts(nn.Module):
    """All experts at once in batched products, weighted by a mask of the chosen; a loss that balances them."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, hidden) * 0.1)
        self.down = nn.Parameter(torch.randn(count, hidden, width) * 0.1)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chances = F.softmax(self.router(flat), dim=-1)
        mask = F.one_hot(chances.argmax(-1), chances.shape[-1]).to(x.dtype)
        hidden = F.gelu(torch.einsum("nd,edh->enh", flat, self.up))
        experts = torch.bmm(hidden, self.down)
        y = torch.einsum("end,ne->nd", experts, mask * chances)
        balance = (mask.mean(0) * chances.mean(0)).sum() * chances.shape[-1]
        return x + y.view_as(x), balance


def dense_with_balance():
    return DenseExperts(24, 32, 4), (torch.randn(2, 9, 24),)


MODELS = (routed_by_index, dense_with_balance)
