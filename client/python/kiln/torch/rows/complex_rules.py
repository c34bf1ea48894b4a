"""How torch's ops on complex tensors are said by pairs of real numbers (../complex_numbers.py): a rule for each overload. To cover
one more, add a rule, if it is linear: the same op on pairs, whose last dim is the parts'. What mixes the parts has a formula of
them in complex_numbers.py here, and so its rule."""

from __future__ import annotations

from typing import Callable

import torch
from torch import fx

from ..nodes import named_arguments
from ..pairs import OF_REALS, PARTS, each_in_pairs, in_pairs
from ..tensors import is_empty, relayout, tensors_in
from .complex_numbers import FORMULAS, PRODUCTS
from .table import arg, entering, require, wrap

aten = torch.ops.aten

# (PairsWriter, node) → the node of the result: pairs, or real, or a tuple of pairs. Raises Unsupported.
RULES: dict[Callable, Callable] = {}
rule = entering(RULES)


# ---- reading nodes


def rank_of(node: fx.Node) -> int:
    return node.meta["val"].dim()


def dtype_of(node: fx.Node) -> torch.dtype:
    """Of the parts in which the node is computed."""
    dtype = next((t.dtype for t in tensors_in(node.meta["val"]) if t.is_complex()), None)
    if dtype is None:
        operands = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:2] if isinstance(a, (fx.Node, complex))]
        dtype = torch.result_type(*operands) if len(operands) > 1 else operands[0].dtype
    require(dtype in PARTS, f"dtype {dtype}")
    return PARTS[dtype]


def operand(w, node: fx.Node, index: int = 0) -> fx.Node:
    """The argument's pairs."""
    return w.pairs(node.args[index], dtype_of(node))


def is_complex(value) -> bool:
    return isinstance(value, fx.Node) and value.meta["val"].is_complex()


def wrapped(dims, rank: int) -> list[int]:
    return [wrap(d, rank) for d in dims]


# ---- what mixes the parts


@rule(*FORMULAS)
def each(w, node):
    if node.target in OF_REALS:
        return w.call(each_in_pairs, node.target, *node.args)
    is_constant = not node.all_input_nodes  # as a number's conjugate is, in the derivative of a product by it
    operands = [w.pairs(a, dtype_of(node)) if isinstance(a, fx.Node) or is_constant else a for a in node.args]
    return w.call(each_in_pairs, node.target, *operands)


@rule(*PRODUCTS)
def product(w, node):
    return w.call(in_pairs, node.target, *(operand(w, node, i) for i in range(2)))


@rule("dot.default", "vdot.default")
def dot(w, node):
    left, right = (operand(w, node, i) for i in range(2))
    if node.target is aten.vdot.default:
        left = w.call(each_in_pairs, aten._conj.default, left)
    return w.call(aten.sum.dim_IntList, w.call(each_in_pairs, aten.mul.Tensor, left, right), [0])


@rule("addmm.default", "baddbmm.default")
def addmm(w, node):
    base, left, right = (operand(w, node, i) for i in range(3))
    op = aten.mm.default if node.target is aten.addmm.default else aten.bmm.default
    base = times(w, base, node.kwargs.get("beta", 1))
    return w.call(aten.add.Tensor, times(w, w.call(in_pairs, op, left, right), node.kwargs.get("alpha", 1)), base)


def times(w, pairs: fx.Node, factor) -> fx.Node:
    if factor == 1:
        return pairs
    return w.call(each_in_pairs, aten.mul.Tensor, pairs, factor)


@rule("addcmul.default", "addcdiv.default")
def add_of_two(w, node):
    base, x, y = (operand(w, node, i) for i in range(3))
    op = aten.mul.Tensor if node.target is aten.addcmul.default else aten.div.Tensor
    return w.call(aten.add.Tensor, base, times(w, w.call(each_in_pairs, op, x, y), node.kwargs.get("value", 1)))


# ---- what is linear


@rule("alias.default", "detach.default", "neg.default", "positive.default", "lift_fresh_copy.default", "squeeze.default")
def same(w, node):
    return w.call(node.target, operand(w, node))


@rule("resolve_conj.default", "resolve_neg.default", "view_as_real.default")
def pairs_themselves(w, node):
    return operand(w, node)


@rule("view_as_complex.default")
def as_they_are(w, node):
    return node.args[0]


@rule(relayout)
def laid_out(w, node):
    return w.call(relayout, operand(w, node), (*(2 * stride for stride in node.args[1]), 1))


@rule("clone.default")
def clone(w, node):
    require(node.kwargs.get("memory_format") in (None, torch.contiguous_format, torch.preserve_format), "dims in another order")
    return w.call(node.target, operand(w, node), **node.kwargs)


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def add(w, node):
    left, right = operand(w, node), operand(w, node, 1)
    name, alpha = node.target._schema.name.split("::")[1], arg(node, 2, "alpha", 1)
    if name == "rsub":
        left, right, name = right, left, "sub"
    return w.call(getattr(aten, name).Tensor, left, times(w, right, alpha))


@rule("where.self")
def where(w, node):
    condition = w.call(aten.unsqueeze.default, node.args[0], -1)
    return w.call(aten.where.self, condition, operand(w, node, 1), operand(w, node, 2))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(w, node):
    mask = w.call(aten.unsqueeze.default, node.args[1], -1)
    return w.call(aten.where.self, mask, operand(w, node, 2), operand(w, node))


@rule("sum.default", "mean.default")
def reduce_all(w, node):
    op = aten.sum.dim_IntList if node.target is aten.sum.default else aten.mean.dim
    return reduced(w, op, operand(w, node), rank_of(node.args[0]), None, False)


@rule("sum.dim_IntList", "mean.dim")
def reduce(w, node):
    return reduced(w, node.target, operand(w, node), rank_of(node.args[0]), node.args[1], arg(node, 2, "keepdim", False))


def reduced(w, op, pairs: fx.Node, rank: int, named, is_kept: bool, **options) -> fx.Node:
    """Over no dims a number is what it is."""
    return w.call(op, pairs, wrapped(named or range(rank), rank), keepdim=is_kept, **options) if rank else pairs


@rule("var.correction", "std.correction")
def var(w, node):
    """The sum of the parts'."""
    rank, pairs = dims(w, node)
    require(rank > 0, "a number")
    options = {"correction": node.kwargs.get("correction")}
    parts = reduced(w, aten.var.correction, pairs, rank, arg(node, 1, "dim"), node.kwargs.get("keepdim", False), **options)
    result = w.call(aten.sum.dim_IntList, parts, [-1])
    return w.call(aten.sqrt.default, result) if node.target is aten.std.correction else result


@rule("cumsum.default")
def cumsum(w, node):
    rank = rank_of(node)
    return w.call(node.target, operand(w, node), wrap(node.args[1], rank)) if rank else operand(w, node)


@rule("linalg_vector_norm.default")
def vector_norm(w, node):
    require(is_complex(node.args[0]), "real numbers")
    return w.call(node.target, w.call(each_in_pairs, aten.abs.default, operand(w, node)), *node.args[1:], **node.kwargs)


@rule("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def truths(w, node):
    return w.call(node.target, w.call(each_in_pairs, aten.ne.Scalar, operand(w, node), 0), *node.args[1:], **node.kwargs)


# ---- other dtypes, and tensors made of numbers


@rule("_to_copy.default")
def to_copy(w, node):
    value, x = node.meta["val"], node.args[0].meta["val"]
    is_plain = node.kwargs.get("memory_format") in (None, torch.contiguous_format, torch.preserve_format)
    require(is_plain and value.device == x.device, "a copy in another layout, or elsewhere")
    if value.is_complex():
        return w.pairs(node.args[0], dtype_of(node))
    if value.dtype is torch.bool:
        return w.call(each_in_pairs, aten.ne.Scalar, operand(w, node), 0)
    require(value.is_floating_point(), "a whole number of a complex one")
    return w.call(aten._to_copy.default, w.call(aten.select.int, operand(w, node), -1, 0), dtype=value.dtype)


@rule("copy.default")
def copy(w, node):
    require(is_complex(node.args[0]), "a real number of a complex one")
    return w.call(aten.copy.default, operand(w, node), operand(w, node, 1))


def filled(w, node, number, make: Callable) -> fx.Node:
    """make(part) gives each part."""
    return w.call(aten.stack.default, [make(float(part)) for part in (number.real, number.imag)], -1)


@rule("zeros.default", "ones.default", "full.default", "empty.memory_format", "new_zeros.default", "new_ones.default",
      "new_full.default", "new_empty.default")  # fmt: skip
def constant(w, node):
    name, first = node.target._schema.name.split("::")[1].removeprefix("new_"), int(isinstance(node.args[0], fx.Node))
    number = node.args[first + 1] if name == "full" else int(name == "ones")
    options = {"dtype": dtype_of(node), "device": node.meta["val"].device}
    return filled(w, node, number, lambda part: w.call(aten.full.default, node.args[first], part, **options))


@rule("new_empty_strided.default", "empty_strided.default")
def bare(w, node):
    sizes, strides = node.args[-2:]
    options = {"dtype": dtype_of(node), "device": node.meta["val"].device}
    return w.call(aten.empty_strided.default, [*sizes, 2], [*(2 * stride for stride in strides), 1], **options)


@rule("scalar_tensor.default")
def scalar(w, node):
    return w.pairs(node.args[0], dtype_of(node))


@rule("zeros_like.default", "ones_like.default", "full_like.default", "empty_like.default", "fill.Scalar")
def constant_like(w, node):
    require(node.meta["val"].is_complex(), "real numbers")
    name, x = node.target._schema.name.split("::")[1], node.args[0]
    number = node.args[1] if name in ("full_like", "fill") else int(name == "ones_like")
    part = w.call(aten.select.int, operand(w, node), -1, 0) if is_complex(x) else x
    return filled(w, node, number, lambda number: w.call(aten.full_like.default, part, number, dtype=dtype_of(node)))


# ---- views, and other rearrangements


def dims(w, node):
    """The rank of a complex operand, and its pairs."""
    require(is_complex(node.args[0]), "real numbers")
    return rank_of(node.args[0]), operand(w, node)


@rule("view.default", "_unsafe_view.default", "reshape.default", "expand.default", "slice_backward.default",
      "select_backward.default", "diagonal_backward.default")  # fmt: skip
def with_sizes(w, node):
    """The sizes are the second argument, and dims of that many come after them."""
    rank, pairs = len(node.args[1]), operand(w, node)
    rest = list(node.args[2:])
    count = {"slice_backward": (0,), "select_backward": (0,), "diagonal_backward": (1, 2)}
    for place in count.get(node.target._schema.name.split("::")[1], ()):
        rest[place] = wrap(rest[place], rank)
    return w.call(node.target, pairs, [*node.args[1], 2], *rest)


@rule("unsqueeze.default")
def unsqueeze(w, node):
    rank, pairs = dims(w, node)
    return w.call(node.target, pairs, wrap(node.args[1], rank + 1))


@rule("squeeze.dim", "squeeze.dims", "flip.default")
def along(w, node):
    """The second argument is a dim, or some."""
    rank, pairs = dims(w, node)
    named = node.args[1]
    require(rank > 0, "a number")
    return w.call(node.target, pairs, wrap(named, rank) if isinstance(named, int) else wrapped(named, rank))


@rule("slice.Tensor", "select.int", "split.Tensor", "split_with_sizes.default", "unbind.int", "index_select.default",
      "unfold.default", "index_add.default", "slice_scatter.default", "select_scatter.default", "index_copy.default")  # fmt: skip
def along_one(w, node):
    """One of the arguments is called dim; complex ones are as the first."""
    rank, pairs = dims(w, node)
    require(rank > 0, "a number")
    schema, named = node.target._schema.arguments, named_arguments(node)
    place = next(name for name in ("dim", "dimension") if any(a.name == name for a in schema))
    named[place] = wrap(named.get(place, 0), rank)
    require(named.get("alpha", 1) == 1, "a factor")
    for name, value in named.items():
        if name in ("source", "src"):
            named[name] = w.pairs(value, dtype_of(node))
    named[schema[0].name] = pairs
    result = w.call(node.target, *(named[a.name] for a in schema if a.name in named and not a.kwarg_only))
    if node.target is not aten.unfold.default:
        return result
    return w.call(aten.permute.default, result, [*range(rank), rank + 1, rank])


@rule("permute.default")
def permute(w, node):
    rank, pairs = dims(w, node)
    return w.call(node.target, pairs, [*wrapped(node.args[1], rank), rank])


@rule("t.default")
def transpose_matrix(w, node):
    rank, pairs = dims(w, node)
    return w.call(aten.permute.default, pairs, [*reversed(range(rank)), rank])


@rule("transpose.int")
def transpose(w, node):
    rank, pairs = dims(w, node)
    return w.call(node.target, pairs, *(wrapped(node.args[1:3], rank) if rank else (0, 0)))


@rule("diagonal.default")
def diagonal(w, node):
    rank, pairs = dims(w, node)
    first, second = wrapped((arg(node, 2, "dim1", 0), arg(node, 3, "dim2", 1)), rank)
    result = w.call(node.target, pairs, arg(node, 1, "offset", 0), first, second)
    return w.call(aten.transpose.int, result, -1, -2)


@rule("diagonal_scatter.default")
def diagonal_scatter(w, node):
    rank, pairs = dims(w, node)
    first, second = wrapped((arg(node, 3, "dim1", 0), arg(node, 4, "dim2", 1)), rank)
    source = w.call(aten.transpose.int, operand(w, node, 1), -1, -2)
    return w.call(node.target, pairs, source, arg(node, 2, "offset", 0), first, second)


@rule("roll.default")
def roll(w, node):
    rank, pairs = dims(w, node)
    named = arg(node, 2, "dims") or ()
    require(bool(named), "a turn of all elements in order")
    return w.call(node.target, pairs, node.args[1], wrapped(named, rank))


@rule("repeat.default")
def repeat(w, node):
    return w.call(node.target, operand(w, node), [*node.args[1], 1])


@rule("constant_pad_nd.default")
def pad(w, node):
    require(arg(node, 2, "value", 0) == 0, "a margin of other numbers than 0")
    return w.call(node.target, operand(w, node), [0, 0, *node.args[1]])


@rule("tril.default", "triu.default")
def triangle(w, node):
    """The parts' dim is the first meanwhile."""
    rank, pairs = dims(w, node)
    turned = w.call(node.target, w.call(aten.permute.default, pairs, [rank, *range(rank)]), *node.args[1:])
    return w.call(aten.permute.default, turned, [*range(1, rank + 1), 0])


@rule("cat.default", "stack.default")
def joined(w, node):
    rank = rank_of(node)
    # One of shape (0,) counts by its dtype alone, whatever the others' rank.
    tensors = [n for n in node.args[0] if rank == 1 or rank_of(n) != 1 or not is_empty(n.meta["val"])]
    return w.call(node.target, [w.pairs(n, dtype_of(node)) for n in tensors], wrap(arg(node, 1, "dim", 0), rank))


# ---- indexing


@rule("index.Tensor", "_unsafe_index.Tensor", "index_put.default")
def index(w, node):
    require(is_complex(node.args[0]), "real numbers")
    masks = [n for n in node.args[1] if n is not None and n.meta["val"].dtype in (torch.bool, torch.uint8)]
    require(not masks, "elements by a mask")
    values = [operand(w, node, 2)] if node.target is aten.index_put.default else []
    return w.call(node.target, operand(w, node), node.args[1], *values, *node.args[3:])


@rule("gather.default", "scatter_add.default", "scatter.src")
def of_each(w, node):
    """An index of an element is one of both its parts."""
    rank, pairs = dims(w, node)
    x, dim, places = node.args[:3]
    require(rank > 0 and rank_of(places) == rank, "a number")
    places = w.call(aten.expand.default, w.call(aten.unsqueeze.default, places, -1), [*[-1] * rank, 2])
    values = [operand(w, node, 3)] if len(node.args) > 3 else []
    return w.call(node.target, pairs, wrap(dim, rank), places, *values)
