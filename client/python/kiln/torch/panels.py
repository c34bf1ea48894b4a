"""Weights in the order in which products read them: panels, each a vector of columns wide, whose rows lie side by side.

A product packs its right operand so in each call. A weight that does not change can lie so from the start: a program's input is
then the packed weight, behind views that say which element is which, and the product reads it where it lies. The layout is what
backends/cpu/compile/gemm knows as GemmProblem::panel_steps(); another one is right as well, and packed in each call.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools

import torch
from torch import fx

from . import compat, processor
from .builder import Builder, dense_strides, meta_of, type_of
from .partition import Subgraph
from .place import Place
from .scoped import set_within
from .text import Value

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
# Fewer rows read weights where they lie; with more, packing is next to nothing of a product.
LEAST_ROWS, MOST_ROWS = 48, 1024
# Of a vector, and steps of a block of rows, between two visits of a sum to memory: as backends/cpu/compile/gemm has them.
LANES_AND_STEPS = {"avx512_f": (16, 1024), "avx2": (8, 512)}


_is_freezing = contextvars.ContextVar("is_freezing", default=False)
_has_backward = contextvars.ContextVar("has_backward", default=False)


def freezing(is_wanted: bool):
    """Within, graphs that have no gradients take weights for constant as long as nobody is seen to change them."""
    return set_within(_is_freezing, is_wanted)


def with_backward():
    """Within, graphs are forwards that have a backward."""
    return set_within(_has_backward, True)


@dataclasses.dataclass(frozen=True)
class Panels:
    """How a weight of rows x columns is packed, as the product sees it; `is_transposed`: it lies as columns x rows."""

    rows: int
    columns: int
    block: int  # rows, after which another block begins
    lanes: int  # columns of a panel
    group: int  # rows that are multiplied at once, whose elements lie side by side
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows // self.block, self.columns // self.lanes, self.block // self.group, self.lanes, self.group

    def layout(self, dtype: str) -> tuple:
        return dtype, self.shape, dense_strides(self.shape)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        matrix = weight.t() if self.is_transposed else weight
        blocks, panels, steps, lanes, group = self.shape
        return matrix.reshape(blocks, steps, group, panels, lanes).permute(0, 3, 1, 4, 2).contiguous()

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        matrix = packed.permute(0, 2, 4, 1, 3).reshape(self.rows, self.columns)
        return matrix.t() if self.is_transposed else matrix

    def value(self, b: Builder, packed: Value) -> Value:
        """The weight, of an input that is packed."""
        matrix = b.reshape(b.permute(packed, (0, 2, 4, 1, 3)), (self.rows, self.columns))
        return b.permute(matrix, (1, 0)) if self.is_transposed else matrix


def panels_of(subgraph: Subgraph, place: Place) -> dict[fx.Node, Panels]:
    """Within freezing(), of those inputs of the subgraph that products alone read, as what they multiply by, and that are worth packing."""
    if not _is_freezing.get() or _has_backward.get() or subgraph.symbols or place.device.type != "cpu":
        return {}
    if any(map(compat.adapter().is_tangent, subgraph.nodes[0].graph.find_nodes(op="placeholder"))):
        return {}
    found: dict[fx.Node, Panels | None] = {}
    inside = set(subgraph.nodes)
    for weight in subgraph.inputs:
        products = _products_of(weight)
        if weight.op != "placeholder" or not products or not all(product in inside for product, _ in products):
            continue
        if len({is_transposed for _, is_transposed in products}) == 1:
            found[weight] = _panels(weight, *products[0])
    return {weight: panels for weight, panels in found.items() if panels is not None}


def _products_of(weight: fx.Node) -> list[tuple[fx.Node, bool]]:
    """The products that multiply by it, each with whether by its transpose; none where it is read in another way, too."""
    products = []
    for user in weight.users:
        readers = list(user.users) if _is_transpose(user) else [user]
        seen = user if _is_transpose(user) else weight
        if not all(reader.target in PRODUCTS and reader.args[-1] is seen and seen not in reader.args[:-1] for reader in readers):
            return []
        products += [(reader, seen is user) for reader in readers]
    return products


def _is_transpose(node: fx.Node) -> bool:
    swaps = {aten.permute.default: ([1, 0],), aten.transpose.int: (0, 1), aten.t.default: ()}
    return node.target in swaps and tuple(node.args[1:]) in (swaps[node.target], (1, 0))


def _panels(weight: fx.Node, product: fx.Node, is_transposed: bool) -> Panels | None:
    lanes, group, most_steps = _step_of(meta_of(weight).dtype)
    dtype, shape = type_of(meta_of(weight))
    rows, columns = reversed(shape) if is_transposed else shape
    block = _block_of(rows, group * most_steps, group)
    is_worth_it = LEAST_ROWS <= meta_of(product).shape[0] <= MOST_ROWS and lanes > 0
    if not is_worth_it or block == 0 or columns % lanes or columns == lanes:
        return None
    return Panels(rows, columns, block, lanes, group, is_transposed)


def _block_of(rows: int, most_rows: int, group: int) -> int:
    """The fewest blocks that are no longer than they are for weights as they lie: so sums are the same, bit for bit, where these are
    as long as each other."""
    least = max(1, -(-rows // most_rows))
    blocks = next((count for count in range(least, 2 * least + 1) if rows % (count * group) == 0), 0)
    return rows // blocks if blocks else 0


@functools.cache
def _step_of(dtype: torch.dtype) -> tuple[int, int, int]:
    """(Sums of a vector, rows multiplied at once, most steps of a block) on this processor; no sums where no kernel reads panels."""
    lanes, most_steps = next((of for name, of in LANES_AND_STEPS.items() if processor.has(name)), (0, 0))
    if dtype == torch.bfloat16 and processor.has("avx512_bf16") and not processor.has("amx_tile"):
        return lanes, 2, most_steps
    return (lanes if dtype == torch.float32 else 0), 1, most_steps


__all__ = ["Panels", "freezing", "panels_of", "with_backward"]
