"""State-space models and linear recurrences."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import RMSNorm


class SelectiveBlock(nn.Module):
    """Mamba's, the scan written as a loop: Gu and Dao 2023, algorithm 2."""

    def __init__(self, width: int, inner: int, states: int) -> None:
        super().__init__()
        self.norm, self.project = RMSNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.rank, self.states = 4, states
        self.select, self.step = nn.Linear(inner, self.rank + 2 * states, bias=False), nn.Linear(self.rank, inner)
        self.log_a = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(inner, 1))
        self.skip, self.out = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)

    def scan(self, x):
        rank, b, c = self.select(x).split([self.rank, self.states, self.states], dim=-1)
        step = F.softplus(self.step(rank))
        decay = torch.exp(step[..., None] * -torch.exp(self.log_a))
        drive = (step * x)[..., None] * b[:, :, None, :]
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * c[:, t, None, :]).sum(-1))
        return torch.stack(outputs, dim=1) + x * self.skip

    def forward(self, x):
        inner, gate = self.project(self.norm(x)).chunk(2, dim=-1)
        inner = F.silu(self.conv(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        return x + self.out(self.scan(inner) * F.silu(gate))


def selective_scan():
    return nn.Sequential(*(SelectiveBlock(16, 24, 4) for _ in range(2))), (torch.randn(2, 7, 16),)


class ChunkedBlock(nn.Module):
    """Mamba 2's: within a chunk a masked product, between chunks a state, by cumulative sums of log decays."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.qkv = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.decay, self.out = nn.Linear(width, heads), nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        logs = F.logsigmoid(self.decay(y)).transpose(1, 2).cumsum(-1)
        difference = logs[..., :, None] - logs[..., None, :]
        is_later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (query @ key.transpose(-1, -2)) * difference.masked_fill(is_later, float("-inf")).exp()
        return x + self.out((weights @ value).transpose(1, 2).flatten(2))


def chunked_decay():
    return nn.Sequential(*(ChunkedBlock(32, 4) for _ in range(2))), (torch.randn(2, 12, 32),)


MODELS = (selective_scan, chunked_decay)
