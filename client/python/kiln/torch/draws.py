"""Random numbers, where the configuration has kernels draw them (`random: fast`): each element is a function of a seed, one
number of torch's generator, and of the element's place. So a backward computes the very numbers of its forward again, and
nothing is stored.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from .. import _session
from .nodes import node_of


def is_fast() -> bool:
    """Whether kernels draw."""
    return _session.session().random == "fast"


def draw_seed() -> torch.Tensor:
    """Of one draw. An integer that f64 holds."""
    return torch.randint(1 << 53, ())


def random_words(seed: torch.Tensor, size, stride) -> torch.Tensor:
    """For each element a random word of 32 bits, as an i64."""
    words = _philox(seed, torch.arange(math.prod(size)).reshape(size))
    return torch.empty_strided(size, stride, dtype=torch.int64).copy_(words)


def words_of_share(share: float) -> int:
    """How many words are that share of all: those below are met so often."""
    return round(share * 2**32)


def _philox(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """The op philox of docs/ops.md in torch: Philox-2x32-10 of Salmon et al., SC 2011."""
    word = 0xFFFFFFFF
    x, y, round_key = counter & word, (counter >> 32) ^ (key >> 32), key & word
    for _ in range(10):
        product = x * 0xD256D193  # wraps
        x, y = (product >> 32 & word) ^ round_key ^ y, product & word
        round_key = round_key + 0x9E3779B9 & word
    return x


def words_of_one_seed(graph: fx.Graph, tensor: torch.Tensor, count: int) -> fx.Node:
    """So many words for each element of a tensor of this type, along a first dim."""
    size, stride = (count, *tensor.shape), (tensor.numel(), *preserved_strides(tensor))
    seed = node_of(graph, draw_seed, (), tensor.new_empty((), dtype=torch.int64))
    return node_of(graph, random_words, (seed, size, stride), tensor.new_empty_strided(size, stride, dtype=torch.int64))


def is_static(tensor: torch.Tensor) -> bool:
    return all(type(e) is int for e in (*tensor.shape, *tensor.stride()))


def preserved_strides(tensor: torch.Tensor) -> tuple:
    """The strides that torch.empty_like gives."""
    return torch.empty_like(tensor).stride()


__all__ = ["draw_seed", "is_fast", "is_static", "preserved_strides", "random_words", "words_of_one_seed", "words_of_share"]
