"""Parts that several families use."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 97


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length))


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)): the feed-forward of Llama and its kin."""

    def __init__(self, width: int, hidden: int, activation=F.silu) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


def mlp(width: int, hidden: int, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, heads * dim) → (batch, heads, length, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, length, dim) → (batch, length, heads * dim)."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention of x to itself, or to `context`."""

    def __init__(self, width: int, heads: int, *, is_causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x, context=None, mask=None):
        key, value = self.key_value(x if context is None else context).chunk(2, dim=-1)
        heads = (split_heads(part, self.heads) for part in (self.query(x), key, value))
        return self.out(join_heads(F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=self.is_causal)))


class PreNormBlock(nn.Module):
    def __init__(self, width: int, heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, is_causal=is_causal)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp(width, 4 * width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNormBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.mlp, self.norm2 = mlp(width, 2 * width), nn.LayerNorm(width)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.mlp(x))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Vaswani et al. 2017, section 3.5, sines and cosines side by side."""
    rates = torch.exp(torch.arange(0, width, 2) * (-torch.log(torch.tensor(10000.0)) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, the halves form."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def rotary_tables(length: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()
