"""Rows of numbers that kernels draw themselves (draws.py)."""

from __future__ import annotations

import math

from ..distributions import DISTRIBUTIONS
from ..draws import random_words
from ..text import Unsupported
from .creation import ascending
from .table import Family, result_type

FAMILY = Family(is_recomputed=True)


@FAMILY.row(random_words)
def words(b, node):
    _, shape = result_type(node)
    places = b.reshape(ascending(b, "i64", (math.prod(shape),)), shape)
    return b.pointwise("philox", b.value(node.args[0]), places)


@FAMILY.row(*DISTRIBUTIONS)
def distribution(b, node):
    raise Unsupported("made of words in torch's functions")  # of which all are said (expansion.py)
