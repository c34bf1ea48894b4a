"""The op table of the importer: how each aten overload is said in Kiln's ops (docs/ops.md). To cover one more, add a row.

A row is a function (builder, node) → Value, or a tuple of Values for several results. It raises Unsupported for a use it
cannot say; that node then stays in torch. Rows compute in the dtype that torch's type promotion chose, which is the
node's own: operands are cast to it first. Copies and contiguity have no meaning in a graph without layouts: such ops
give their operand.
"""

from __future__ import annotations

from . import (  # noqa: F401: they register their rows
    activation_gradients,
    contraction,
    indexing,
    normalisation,
    pointwise,
    reductions,
    views,
)
from .creation import CONSTANT
from .table import ROWS

__all__ = ["CONSTANT", "ROWS"]
