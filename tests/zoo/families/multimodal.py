"""Two kinds of input in one model."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import VOCABULARY, Attention, PreNormBlock, mlp, tokens


class Prefixed(nn.Module):
    """Image features before the text, one sequence; a mask that lets all see the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, width), nn.Linear(20, width)
        self.blocks = nn.ModuleList(PreNormBlock(width, 2) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, image, ids):
        x = torch.cat([self.project(image), self.embedding(ids)], dim=1)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x[:, image.shape[1] :])
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=3)


def image_prefix():
    return Prefixed(24), (torch.randn(2, 4, 20), tokens(2, 8))


class Latents(nn.Module):
    """Perceiver's: a few learned queries read a long input, twice with the same weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries, self.read = nn.Parameter(torch.randn(5, width)), Attention(width, 2)
        self.norm, self.mlp = nn.LayerNorm(width), mlp(width, width)

    def forward(self, image, sound):
        context = torch.cat([image.flatten(2).transpose(1, 2), sound], dim=1)
        x = self.queries.expand(len(image), -1, -1)
        for _ in range(2):
            x = x + self.read(self.norm(x), context)
            x = x + self.mlp(x)
        return x.amax(1), x


def learned_queries():
    return Latents(16), (torch.randn(2, 16, 3, 4), torch.randn(2, 7, 16))


MODELS = (image_prefix, learned_queries)
