"""Rows of functions of a number that Kiln's ops make up: inverse, hyperbolic and the like. Half precisions are computed in
f32 and round once."""

from __future__ import annotations

import math

from torch import fx

from ..builder import Builder
from ..text import FLOATING, Value
from .normalisation import statistics_dtype
from .table import Family, number, operand, require, result_type

FAMILY = Family(is_recomputed=True)
row = FAMILY.row


class Arithmetic:
    """Values and numbers in one dtype, put together by the names of ops."""

    def __init__(self, b: Builder, dtype: str) -> None:
        self._b, self.dtype = b, dtype

    def __getattr__(self, name: str):
        return lambda *values: self._b.pointwise(name, *map(self._value, values))

    def _value(self, value) -> Value:
        return value if isinstance(value, Value) else self._b.full(value, self.dtype)

    def choose(self, condition: Value, then, otherwise) -> Value:
        return self._b.pointwise("select", condition, self._value(then), self._value(otherwise))

    def full_like(self, value: Value, number: float) -> Value:
        return self._b.full(number, self.dtype, value.shape)

    def is_(self, name: str, *values) -> Value:
        return self._b.pointwise(name, *map(self._value, values), dtype="bool")


def of_numbers(*overloads: str, arity: int = 1, family: Family = FAMILY):
    """A row whose function takes an Arithmetic and its operands in the dtype of computation."""

    def add(formula):
        def lower(b: Builder, node: fx.Node) -> Value:
            dtype, _ = result_type(node)
            require(dtype in FLOATING, "a function of integers")
            wide = statistics_dtype(dtype)
            return b.cast(formula(Arithmetic(b, wide), *(operand(b, a, wide) for a in node.args[:arity])), dtype)

        family.row(*overloads)(lower)
        return formula

    return add


@of_numbers("acos.default")
def acos(a, x):
    return a.atan2(a.sqrt(a.mul(a.sub(1, x), a.add(1, x))), x)


@of_numbers("asin.default")
def asin(a, x):
    return a.atan2(x, a.sqrt(a.mul(a.sub(1, x), a.add(1, x))))


@of_numbers("atan.default")
def atan(a, x):
    return a.atan2(x, 1)


@of_numbers("tan.default")
def tan(a, x):
    return a.div(a.sin(x), a.cos(x))


@of_numbers("cosh.default")
def cosh(a, x):
    size = a.abs(x)
    root = a.exp(a.mul(size, 0.5))  # e^|x| overflows before its half does
    return a.add(a.mul(a.mul(root, 0.5), root), a.mul(a.exp(a.neg(size)), 0.5))


@of_numbers("sinh.default")
def sinh(a, x):
    size = a.abs(x)
    grown, root = a.expm1(size), a.exp(a.mul(size, 0.5))
    small = a.mul(a.add(grown, a.div(grown, a.add(grown, 1))), 0.5)
    result = a.choose(a.is_("gt", size, 20), a.mul(a.mul(root, 0.5), root), small)
    return a.choose(a.is_("lt", x, 0), a.neg(result), result)


# Beyond this an inverse hyperbolic function is ln(2x), to the last place of f64.
_FAR = 1e9


@of_numbers("asinh.default")
def asinh(a, x):
    size = a.abs(x)
    square = a.mul(size, size)
    near = a.log1p(a.add(size, a.div(square, a.add(a.sqrt(a.add(square, 1)), 1))))
    result = a.choose(a.is_("gt", size, _FAR), a.add(a.log(size), math.log(2)), near)
    return a.choose(a.is_("lt", x, 0), a.neg(result), result)


@of_numbers("acosh.default")
def acosh(a, x):
    above = a.sub(x, 1)
    near = a.log1p(a.add(above, a.sqrt(a.mul(above, a.add(x, 1)))))
    return a.choose(a.is_("gt", x, _FAR), a.add(a.log(x), math.log(2)), near)


@of_numbers("atanh.default")
def atanh(a, x):
    return a.mul(a.sub(a.log1p(x), a.log1p(a.neg(x))), 0.5)


@of_numbers("exp2.default")
def exp2(a, x):
    return a.pow(2, x)


def logarithm(a, x, base: float):
    """Whole where x is a power of the base: what is rounded afterwards depends on it."""
    result = a.mul(a.log(x), 1 / math.log(base))
    whole = a.round(result)
    return a.choose(a.is_("eq", a.pow(base, whole), x), whole, result)


@of_numbers("log2.default")
def log2(a, x):
    return logarithm(a, x, 2.0)


@of_numbers("log10.default")
def log10(a, x):
    return logarithm(a, x, 10.0)


@of_numbers("hypot.default", arity=2)
def hypot(a, x, y):
    x, y = a.abs(x), a.abs(y)
    high, low = a.maximum(x, y), a.minimum(x, y)
    ratio = a.div(low, high)
    length = a.mul(high, a.sqrt(a.add(a.mul(ratio, ratio), 1)))
    length = a.choose(a.is_("eq", high, 0), high, length)
    is_infinite = a.is_("logical_or", a.is_("eq", x, math.inf), a.is_("eq", y, math.inf))
    return a.choose(is_infinite, math.inf, length)


@of_numbers("copysign.Tensor", arity=2)
def copysign(a, x, sign):
    is_below = a.is_("lt", a.choose(a.is_("eq", sign, 0), a.div(1, sign), sign), 0)
    size = a.abs(x)
    return a.choose(is_below, a.neg(size), size)


@row("copysign.Scalar")
def copysign_of_number(b, node):
    size = b.pointwise("abs", operand(b, node.args[0], result_type(node)[0]))
    return b.pointwise("neg", size) if math.copysign(1, number(node.args[1])) < 0 else size


def without_nan(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype, _ = result_type(node)
        x, y = (operand(b, n, dtype) for n in node.args[:2])
        best = b.pointwise(name, x, y)
        if dtype not in FLOATING:
            return best
        best = b.pointwise("select", b.pointwise("is_nan", y, dtype="bool"), x, best)
        return b.pointwise("select", b.pointwise("is_nan", x, dtype="bool"), y, best)

    return lower


row("fmax.default")(without_nan("maximum"))
row("fmin.default")(without_nan("minimum"))


@row("isposinf.default", "isneginf.default")
def is_infinity(b, node):
    x = b.value(node.args[0])
    if x.dtype not in FLOATING:
        return b.full(False, "bool", x.shape)
    end = math.inf if "pos" in node.target._schema.name else -math.inf
    return b.pointwise("eq", x, b.full(end, x.dtype), dtype="bool")


@row("angle.default")
def angle(b, node):
    """Of a real number, which is below 0 or is not; NaN has none."""
    dtype, _ = result_type(node)
    x = operand(b, node.args[0], dtype)
    is_below = b.pointwise("lt", x, b.full(0, dtype), dtype="bool")
    angle = b.pointwise("select", is_below, b.full(math.pi, dtype), b.full(0, dtype))
    return b.pointwise("select", b.pointwise("is_nan", x, dtype="bool"), x, angle)


@row("sgn.default")
def sgn(b, node):
    x = b.value(node.args[0])
    return x if x.dtype == "bool" else b.pointwise("sign", x)
