"""Sequence to sequence."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import VOCABULARY, Attention, PreNormBlock, RMSNorm, mlp, sinusoids, tokens


class CrossBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, heads, is_causal=True), Attention(width, heads)
        self.mlp = mlp(width, 2 * width, nn.ReLU)

    def forward(self, x, memory):
        x = x + self.own(self.norms[0](x))
        x = x + self.cross(self.norms[1](x), memory)
        return x + self.mlp(self.norms[2](x))


class Translator(nn.Module):
    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.ModuleList(PreNormBlock(width, heads) for _ in range(depth))
        self.decoder = nn.ModuleList(CrossBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def embed(self, ids):
        x = self.embedding(ids)
        return x * x.shape[-1] ** 0.5 + sinusoids(ids.shape[1], x.shape[-1]).to(x.dtype)

    def forward(self, source, target):
        memory, x = self.embed(source), self.embed(target)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        logits = self.head(x)
        return F.cross_entropy(logits.transpose(1, 2), target, label_smoothing=0.1), logits


def cross_attention():
    return Translator(32, 4, 2), (tokens(2, 13), tokens(2, 9))


class BucketedAttention(nn.Module):
    """T5's: a learned bias by bucket of distance, no scale, RMS norms."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.bias = heads, RMSNorm(width), nn.Embedding(8, heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        steps = torch.arange(x.shape[1])
        distance = steps[None, :] - steps[:, None]
        bucket = torch.where(distance > 0, 4, 0) + distance.abs().float().log1p().floor().long().clamp(max=3)
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhsd,bhtd->bhst", query, key) + self.bias(bucket).permute(2, 0, 1)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return x + self.out((weights @ value).permute(0, 2, 1, 3).reshape(x.shape))


def bucketed_positions():
    embedding = nn.Embedding(VOCABULARY, 32)
    return nn.Sequential(embedding, *(BucketedAttention(32, 4) for _ in range(3)), RMSNorm(32)), (tokens(2, 12),)


MODELS = (cross_attention, bucketed_positions)
