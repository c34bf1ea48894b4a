"""Rows of solving triangular systems of few unknowns: each element of a matrix is a value of its own, for all of a batch, where LAPACK is
called once for each. Of more unknowns LAPACK takes less time for some, and programs take seconds to compile."""

from __future__ import annotations

from ..._reasons import Reason
from ..builder import Builder, broadcast
from ..text import Value
from .creation import ascending
from .table import Family, arg, require, result_type

FAMILY = Family()
row = FAMILY.row

# Unknowns of a system that a program solves.
MAX_UNKNOWNS = 6


def solved(b: Builder, matrix: Value, right: Value, dim: int, is_upper: bool, is_unit: bool) -> Value:
    """X of matrix X = right, whose unknowns are along dim -2; of X matrix = right, along dim -1. `is_upper`: an unknown depends on those
    after it in the former, on those before it in the latter."""
    unknowns = matrix.shape[-1]
    require(right.dtype in ("f32", "f64"), Reason("torch solves none of this dtype", is_semantic=True))
    require(isinstance(unknowns, int) and unknowns <= MAX_UNKNOWNS, f"triangular systems of more than {MAX_UNKNOWNS} unknowns")
    shape = (*broadcast(matrix.shape[:-2], right.shape[:-2]), *right.shape[-2:])
    of_unknown = (*shape[:-2], *((1, shape[-1]) if dim == -2 else (shape[-2], 1)))
    found: dict[int, Value] = {}
    for i in range(unknowns) if is_upper == (dim == -1) else reversed(range(unknowns)):
        left = part(b, right, dim, i)
        for j, x in found.items():
            left = b.pointwise("sub", left, b.pointwise("mul", element(b, matrix, *((i, j) if dim == -2 else (j, i))), x))
        found[i] = b.expand(left if is_unit else b.pointwise("div", left, element(b, matrix, i, i)), of_unknown)
    parts = [found[i] for i in range(unknowns)]
    return parts[0] if unknowns == 1 else b.op("concat", parts, right.dtype, shape, dim=len(shape) + dim)


def part(b: Builder, x: Value, dim: int, index: int) -> Value:
    return b.slice(x, len(x.shape) + dim, index, index + 1, 1)


def element(b: Builder, matrix: Value, i: int, j: int) -> Value:
    """Of each matrix of the batch, as a matrix of one."""
    return part(b, part(b, matrix, -2, i), -1, j)


@row("linalg_solve_triangular.default")
def solve_triangular(b, node):
    matrix, right = (b.value(n) for n in node.args[:2])
    dim = -2 if node.kwargs.get("left", True) else -1
    return solved(b, matrix, right, dim, node.kwargs["upper"], node.kwargs.get("unitriangular", False))


@row("cholesky_solve.default")
def cholesky_solve(b, node):
    right, factor = (b.value(n) for n in node.args[:2])
    return solved_by_factor(b, factor, right, arg(node, 2, "upper", False))


@row("cholesky_inverse.default")
def cholesky_inverse(b, node):
    factor, (dtype, shape) = b.value(node.args[0]), result_type(node)
    rows, columns = (ascending(b, "i32", shape[-2:], dim) for dim in (0, 1))
    one, zero = b.full(1, dtype), b.full(0, dtype)
    identity = b.pointwise("select", b.pointwise("eq", rows, columns, dtype="bool"), one, zero)
    return solved_by_factor(b, factor, identity, arg(node, 1, "upper", False))


def solved_by_factor(b: Builder, factor: Value, right: Value, is_upper: bool) -> Value:
    """By a Cholesky factor, of which the matrix is the product with its transpose."""
    rank = len(factor.shape)
    other = b.permute(factor, [*range(rank - 2), rank - 1, rank - 2])
    lower, upper = (other, factor) if is_upper else (factor, other)
    return solved(b, upper, solved(b, lower, right, -2, False, False), -2, True, False)
