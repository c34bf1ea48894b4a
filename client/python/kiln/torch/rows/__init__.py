"""The op table of the importer: how each aten overload is said in Kiln's ops (docs/ops.md), and all else that is known of it.
To cover one more, add a row to a family (docs/adding_an_op.md).

Rows compute in the dtype that torch's type promotion chose, which is the node's own: operands are cast to it first. Copies
and contiguity have no meaning in a graph without layouts: such ops give their operand.
"""

from __future__ import annotations

import operator

from . import (
    activation_gradients,
    batch_norm,
    complex_numbers,
    contraction,
    convolution,
    creation,
    embedding_bags,
    functions,
    grids,
    indexing,
    linear_algebra,
    normalisation,
    pointwise,
    pools,
    random,
    reductions,
    resizing,
    scatters,
    sorting,
    special,
    views,
)
from .table import NO_ROW, Row

FAMILIES = (
    pointwise,
    functions,
    special,
    activation_gradients,
    creation,
    views,
    indexing,
    scatters,
    reductions,
    sorting,
    embedding_bags,
    normalisation,
    batch_norm,
    pools,
    grids,
    resizing,
    contraction,
    linear_algebra,
    convolution,
    complex_numbers,
    random,
)

# By what an fx node calls. A piece of a tuple is what its maker's row gave.
ROWS: dict = {
    operator.getitem: Row(lambda b, node: b.results(node.args[0])[node.args[1]]),
    **{target: row for family in FAMILIES for target, row in family.FAMILY.rows.items()},
}


# By name, of overloads that torch registers when it first needs them.
LATER: dict[str, Row] = {name: row for family in FAMILIES for name, row in family.FAMILY.later.items()}


def row_of(target) -> Row:
    """The row of what a node calls; where it has none, one that says nothing."""
    row = ROWS.get(target)
    if row is None:
        row = LATER.get(str(target), NO_ROW)
        if row is not NO_ROW:
            ROWS[target] = row
    return row


__all__ = ["FAMILIES", "LATER", "NO_ROW", "ROWS", "Row", "row_of"]
