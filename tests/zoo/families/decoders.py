"""Causal language models."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import (
    VOCABULARY,
    GatedMLP,
    PreNormBlock,
    RMSNorm,
    join_heads,
    mlp,
    rotary_tables,
    rotate,
    split_heads,
    tokens,
)


class Decoder(nn.Module):
    """Embedding, blocks, norm, head; the loss of the next token."""

    def __init__(self, blocks, norm: nn.Module, width: int, *, length: int = 0, is_tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width) if length else None
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return loss, logits


def learned_positions():
    """GPT-2's arrangement: pre-norm, learned positions, tied embeddings."""
    blocks = [PreNormBlock(48, 4, is_causal=True) for _ in range(3)]
    return Decoder(blocks, nn.LayerNorm(48), 48, length=20, is_tied=True), (tokens(2, 20),)


class RotaryBlock(nn.Module):
    """Llama's block: grouped-query attention with rotary positions, RMS norms, a gated feed-forward."""

    def __init__(self, width: int, heads: int, key_heads: int, length: int, *, partial: float = 1.0) -> None:
        super().__init__()
        self.heads, self.key_heads, self.dim = heads, key_heads, width // heads
        self.turned = int(self.dim * partial)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.dim, bias=False)
        self.value = nn.Linear(width, key_heads * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm1, self.norm2, self.mlp = RMSNorm(width), RMSNorm(width), GatedMLP(width, 2 * width)
        cos, sin = rotary_tables(length, self.turned)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def turn(self, x):
        if self.turned == self.dim:
            return rotate(x, self.cos, self.sin)
        head, rest = x[..., : self.turned], x[..., self.turned :]
        return torch.cat([rotate(head, self.cos, self.sin), rest], dim=-1)

    def attend(self, x):
        query = self.turn(split_heads(self.query(x), self.heads))
        key = self.turn(split_heads(self.key(x), self.key_heads))
        value = split_heads(self.value(x), self.key_heads)
        repeats = self.heads // self.key_heads
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        return self.out(join_heads(F.scaled_dot_product_attention(query, key, value, is_causal=True)))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def grouped_query():
    return Decoder([RotaryBlock(64, 4, 2, 18) for _ in range(3)], RMSNorm(64), 64), (tokens(2, 18),)


def partial_rotary():
    """StableLM's: a quarter of each head is turned; one key head for all."""
    return Decoder([RotaryBlock(64, 4, 1, 15, partial=0.25) for _ in range(2)], nn.LayerNorm(64), 64), (tokens(3, 15),)


class ParallelBlock(nn.Module):
    """GPT-J's: attention and feed-forward read the same norm. Biases by distance, as ALiBi."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.norm, self.mlp = heads, nn.LayerNorm(width), mlp(width, 2 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        slopes = 2.0 ** -torch.arange(1, heads + 1)
        bias = slopes[:, None, None] * distance
        self.register_buffer("bias", bias.masked_fill(distance > 0, float("-inf")))

    def forward(self, x):
        y = self.norm(x)
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(y).split(x.shape[-1], dim=-1))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + self.bias
        return x + self.out(join_heads(scores.softmax(-1) @ value)) + self.mlp(y)


def parallel_alibi():
    return Decoder([ParallelBlock(48, 4, 17) for _ in range(2)], nn.LayerNorm(48), 48), (tokens(2, 17),)


class SoftCappedBlock(nn.Module):
    """Gemma 2's: norms before and after, logits capped by tanh, a sliding window in every other layer."""

    def __init__(self, width: int, heads: int, length: int, window: int | None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(4))
        self.mlp = GatedMLP(width, 2 * width, activation=lambda x: F.gelu(x, approximate="tanh"))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if window:
            mask = mask & ~torch.ones_like(mask).tril(-window)
        self.register_buffer("mask", mask)

    def attend(self, x):
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.tanh(query @ key.transpose(-1, -2) / 10.0) * 10.0
        return self.out(join_heads(scores.masked_fill(~self.mask, -1e9).softmax(-1) @ value))

    def forward(self, x):
        before, after, before_mlp, after_mlp = self.norms
        x = x + after(self.attend(before(x)))
        return x + after_mlp(self.mlp(before_mlp(x)))


def soft_capped():
    blocks = [SoftCappedBlock(48, 4, 19, window) for window in (5, None, 5)]
    return Decoder(blocks, RMSNorm(48), 48), (tokens(2, 19),)


MODELS = (learned_positions, grouped_query, partial_rotary, parallel_alibi, soft_capped)
