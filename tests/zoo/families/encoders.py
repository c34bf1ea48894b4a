"""Bidirectional text encoders."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import VOCABULARY, PostNormBlock, join_heads, mlp, split_heads, tokens


class Encoder(nn.Module):
    def __init__(self, blocks, width: int, length: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, width, padding_idx=0), nn.Embedding(length, width)
        self.norm, self.blocks = nn.LayerNorm(width), nn.ModuleList(blocks)
        self.pooler = nn.Linear(width, width)

    def forward(self, ids, mask=None):
        x = self.norm(self.embedding(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            x = block(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def post_norm_with_padding():
    """BERT's arrangement, with a mask of padded positions."""
    ids = tokens(3, 14)
    mask = torch.ones(3, 1, 1, 14, dtype=torch.bool)
    mask[1, ..., 9:] = mask[2, ..., 4:] = False
    return Encoder([PostNormBlock(48, 4) for _ in range(3)], 48, 14), (ids, mask)


def torch_encoder_layers():
    """torch's own layers, of two activations."""
    layers = [
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation=activation, norm_first=is_first)
        for activation, is_first in (("relu", False), ("gelu", False), ("relu", True))
    ]
    return nn.Sequential(*layers), (torch.randn(2, 11, 32),)


class DisentangledBlock(nn.Module):
    """DeBERTa's: scores of content to content, content to position and position to content, gathered by distance."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.relative = nn.Embedding(2 * length, width)
        self.norm1, self.mlp, self.norm2 = nn.LayerNorm(width), mlp(width, 2 * width), nn.LayerNorm(width)
        steps = torch.arange(length)
        self.register_buffer("distance", (steps[:, None] - steps[None, :] + length).clamp(0, 2 * length - 1))

    def forward(self, x, mask=None):
        batch, length, _ = x.shape
        query, key, value = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        table = self.relative.weight
        relative_key = self.key(table).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
        relative_query = self.query(table).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
        index = self.distance.expand(batch, self.heads, length, length)
        to_position = torch.gather(query @ relative_key, -1, index)
        from_position = torch.gather(key @ relative_query, -1, index).transpose(-1, -2)
        scores = (query @ key.transpose(-1, -2) + to_position + from_position) / (3 * query.shape[-1]) ** 0.5
        x = self.norm1(x + join_heads(scores.softmax(-1) @ value))
        return self.norm2(x + self.mlp(x))


def disentangled():
    return Encoder([DisentangledBlock(32, 2, 13) for _ in range(2)], 32, 13), (tokens(2, 13),)


class FourierLikeBlock(nn.Module):
    """Mixes positions by a fixed cosine transform in place of attention."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm1, self.mlp, self.norm2 = nn.LayerNorm(width), mlp(width, 2 * width), nn.LayerNorm(width)
        steps = torch.arange(length)
        self.register_buffer("mixing", torch.cos(torch.pi * (steps[:, None] + 0.5) * steps / length) / length**0.5)

    def forward(self, x, mask=None):
        x = self.norm1(x + torch.einsum("st,btd->bsd", self.mixing, x))
        return self.norm2(x + self.mlp(x))


def cosine_mixing():
    return Encoder([FourierLikeBlock(40, 12) for _ in range(2)], 40, 12), (tokens(2, 12),)


class SharedBlock(nn.Module):
    """ALBERT's: one block applied again and again; residuals in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(VOCABULARY, 32), PostNormBlock(32, 2)

    def forward(self, ids):
        x = self.embedding(ids)
        total = torch.zeros_like(x)
        for _ in range(3):
            x = self.block(x)
            total += x
        return F.normalize(total.mean(1), dim=-1)


def shared_block():
    return SharedBlock(), (tokens(2, 10),)


MODELS = (post_norm_with_padding, torch_encoder_layers, disentangled, cosine_mixing, shared_block)
