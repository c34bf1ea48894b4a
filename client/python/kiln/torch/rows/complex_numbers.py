"""Rows of complex numbers, which are pairs of real ones (pairs.py): what torch's ops on them are by their parts. What torch
does where parts are infinite or no numbers is done here, too, as far as torch's own kernels agree on it."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

from torch import fx

from ..builder import Builder
from ..pairs import OF_REALS, as_complex, as_pairs, each_in_pairs, in_pairs
from ..text import Unsupported, Value
from .functions import Arithmetic, hypot
from .table import Family, entering, require, result_type

FAMILY = Family()
row = FAMILY.row


class Parts(NamedTuple):
    re: Value | float
    im: Value | float


# (Arithmetic, Parts of each operand or its number) → Parts, or a real Value; by overload.
FORMULAS: dict[Callable, Callable] = {}
# (Builder, node's operands) → Value of pairs.
PRODUCTS: dict[Callable, Callable] = {}


formula, product = entering(FORMULAS), entering(PRODUCTS)


@row(as_pairs, as_complex, is_view=True)
def crossing(b, node):
    raise Unsupported("a complex tensor, which torch has a view of")


@row(each_in_pairs, is_recomputed=True)
def each(b, node):
    op, *operands = node.args
    dtype, shape = result_type(node)
    values = [b.value(o) if isinstance(o, fx.Node) else o for o in operands]
    wide = next(v.dtype for v in values if isinstance(v, Value))
    if op not in OF_REALS:
        values = [parts_of(b, v) if isinstance(v, Value) else v for v in values]
    result = FORMULAS[op](Arithmetic(b, wide), *values)
    if isinstance(result, Parts):
        return pairs_of(b, result, dtype, shape)
    require(result.dtype == dtype, "a result of another dtype")
    return b.expand(result, shape)


@row(in_pairs)
def whole(b, node):
    return PRODUCTS[node.args[0]](b, *map(b.value, node.args[1:]))


def parts_of(b: Builder, pairs: Value) -> Parts:
    if pairs.name in b.parts:
        return Parts(*b.parts[pairs.name])
    *shape, _ = pairs.shape
    last = len(shape)
    return Parts(*(b.reshape(b.slice(pairs, last, i, i + 1, 1), shape) for i in range(2)))


def pairs_of(b: Builder, parts: Parts, dtype: str, shape) -> Value:
    *shape, _ = shape
    values = [b.expand(v if isinstance(v, Value) else b.full(v, dtype), shape) for v in parts]
    result = b.op("stack", values, dtype, (*shape, 2), dim=len(shape))
    b.parts[result.name] = tuple(values)
    return result


def number(value) -> Parts:
    """The parts of a number, or of an operand."""
    return value if isinstance(value, Parts) else Parts(float(value.real), float(value.imag))


# ---- arithmetic


@formula("mul.Tensor", "mul.Scalar")
def mul(a, x, y):
    x, y = number(x), number(y)
    return Parts(a.sub(a.mul(x.re, y.re), a.mul(x.im, y.im)), a.add(a.mul(x.re, y.im), a.mul(x.im, y.re)))


@formula("div.Tensor", "div.Scalar")
def div(a, x, y):
    """Source: torch's c10::complex, by numpy's division (Smith's, CACM 5.8): by the larger part, so that nothing overflows."""
    x, y = number(x), number(y)
    re, im = (v if isinstance(v, Value) else a.full_like(next(p for p in x if isinstance(p, Value)), v) for v in y)
    is_wide = a.is_("ge", a.abs(re), a.abs(im))
    large, small = a.choose(is_wide, re, im), a.choose(is_wide, im, re)
    ratio = a.div(small, large)
    scale = a.div(1, a.add(large, a.mul(small, ratio)))
    first, second = a.choose(is_wide, x.re, x.im), a.choose(is_wide, x.im, x.re)
    high = a.mul(a.add(first, a.mul(second, ratio)), scale)
    low = a.mul(a.sub(second, a.mul(first, ratio)), scale)
    # Where the imaginary part is the larger one, `low` is the result's with the other sign.
    by = Parts(high, a.choose(is_wide, low, a.neg(low)))
    is_zero = a.is_("logical_and", a.is_("eq", re, 0), a.is_("eq", im, 0))
    return Parts(a.choose(is_zero, a.div(x.re, a.abs(re)), by.re), a.choose(is_zero, a.div(x.im, a.abs(im)), by.im))


@formula("reciprocal.default")
def reciprocal(a, x):
    return div(a, Parts(a.full_like(x.re, 1), a.full_like(x.re, 0)), x)


@formula("_conj.default", "_conj_physical.default")
def conj(a, x):
    return Parts(x.re, a.neg(x.im))


@formula("eq.Tensor", "eq.Scalar")
def eq(a, x, y):
    x, y = number(x), number(y)
    return a.is_("logical_and", a.is_("eq", x.re, y.re), a.is_("eq", x.im, y.im))


@formula("ne.Tensor", "ne.Scalar")
def ne(a, x, y):
    x, y = number(x), number(y)
    return a.is_("logical_or", a.is_("ne", x.re, y.re), a.is_("ne", x.im, y.im))


@formula("isnan.default")
def isnan(a, x):
    return a.is_("logical_or", a.is_("is_nan", x.re), a.is_("is_nan", x.im))


@formula("isinf.default")
def isinf(a, x):
    return a.is_("logical_or", a.is_("is_inf", x.re), a.is_("is_inf", x.im))


# ---- length and angle


@formula("abs.default")
def length(a, x):
    return hypot(a, x.re, x.im)


@formula("angle.default")
def angle(a, x):
    return a.atan2(x.im, x.re)


@formula("sgn.default")
def sgn(a, x):
    size = length(a, x)
    is_zero = a.is_("eq", size, 0)
    return Parts(*(a.choose(is_zero, 0, a.div(v, size)) for v in x))


@formula("complex.default")
def of_parts(a, re, im):
    return Parts(re, im)


@formula("polar.default")
def polar(a, size, angle):
    return Parts(a.mul(size, a.cos(angle)), a.mul(size, a.sin(angle)))


# ---- functions


@formula("exp.default")
def exp(a, x):
    """By the root of e^re, which may overflow where the products do not. Where it is 0 so is the result, whatever the angle;
    and the imaginary part is 0 where it was."""
    root = a.exp(a.mul(x.re, 0.5))
    re, im = (kept_zero(a, root, a.mul(a.mul(root, turn), root)) for turn in (a.cos(x.im), a.sin(x.im)))
    is_real = a.is_("eq", x.im, 0)
    return Parts(a.choose(is_real, a.mul(root, root), re), a.choose(is_real, x.im, im))


@formula("log.default")
def log(a, x):
    """Of a length that overflows, by its half."""
    size = length(a, x)
    by_half = a.add(a.log(length(a, scaled_by(a, x, 0.5))), math.log(2))
    return Parts(a.choose(a.is_("is_inf", size), by_half, a.log(size)), angle(a, x))


@formula("exp2.default")
def exp2(a, x):
    return exp(a, scaled_by(a, x, math.log(2)))


@formula("expm1.default")
def expm1(a, x):
    half = a.sin(a.mul(x.im, 0.5))
    return Parts(a.sub(a.mul(a.expm1(x.re), a.cos(x.im)), a.mul(a.mul(half, half), 2)), a.mul(a.exp(x.re), a.sin(x.im)))


@formula("log2.default")
def log2(a, x):
    return scaled_by(a, log(a, x), 1 / math.log(2))


@formula("log10.default")
def log10(a, x):
    return scaled_by(a, log(a, x), 1 / math.log(10))


def scaled_by(a, x, factor: float):
    return Parts(a.mul(x.re, factor), a.mul(x.im, factor))


@formula("sqrt.default")
def sqrt(a, x):
    """The larger part as a root, the other by it; of an eighth, so that nothing overflows. An infinite imaginary part decides
    alone."""
    eighth = scaled_by(a, x, 0.125)
    root = a.mul(a.sqrt(a.add(a.abs(eighth.re), length(a, eighth))), 2)
    is_below, is_zero, is_endless = a.is_("lt", x.re, 0), a.is_("eq", root, 0), a.is_("is_inf", x.im)
    other = a.choose(is_zero, x.im, a.div(a.mul(x.im, 0.5), root))
    signed = a.choose(a.is_("lt", angle(a, x), 0), a.neg(root), root)
    re, im = a.choose(is_below, a.abs(other), root), a.choose(is_below, signed, other)
    return Parts(a.choose(is_endless, math.inf, re), a.choose(is_endless, x.im, im))


@formula("rsqrt.default")
def rsqrt(a, x):
    return reciprocal(a, sqrt(a, x))


@formula("sinh.default")
def sinh(a, x):
    re, im = sinh_times(a, x.re, a.cos(x.im)), cosh_times(a, x.re, a.sin(x.im))
    return Parts(kept_zero(a, x.re, re), kept_zero(a, x.im, im))


@formula("cosh.default")
def cosh(a, x):
    im = sinh_times(a, x.re, a.sin(x.im))
    return Parts(cosh_times(a, x.re, a.cos(x.im)), kept_zero(a, x.re, kept_zero(a, x.im, im)))


def kept_zero(a, x, result):
    """The result, but 0 where x is, whatever the other part is."""
    return a.choose(a.is_("eq", x, 0), x, result)


def cosh_times(a, x, factor):
    return a.add(grown_times(a, x, factor), shrunk_times(a, x, factor))


def sinh_times(a, x, factor):
    """Near 0, where the exponentials cancel, by expm1."""
    size = a.expm1(a.abs(x))
    near = a.mul(a.mul(a.add(size, a.div(size, a.add(size, 1))), 0.5), factor)
    result = a.choose(a.is_("lt", a.abs(x), 1), near, a.sub(grown_times(a, x, factor), shrunk_times(a, x, factor)))
    return a.choose(a.is_("lt", x, 0), a.neg(result), result)


def grown_times(a, x, factor):
    """Half of e^|x|, which may overflow where the product does not."""
    root = a.exp(a.mul(a.abs(x), 0.5))
    return a.mul(a.mul(a.mul(root, 0.5), factor), root)


def shrunk_times(a, x, factor):
    """Half of e^-|x|."""
    return a.mul(a.mul(a.exp(a.neg(a.abs(x))), 0.5), factor)


@formula("tanh.default")
def tanh(a, x):
    """(sinh 2x + i sin 2y) / (cosh 2x + cos 2y), all of it by e^-2|x|, which does not overflow."""
    size = a.mul(a.abs(x.re), -2)
    shrunk, lost = a.exp(size), a.expm1(size)
    sine, cosine = a.sin(x.im), a.cos(x.im)
    under = a.add(a.mul(a.mul(lost, lost), 0.25), a.mul(shrunk, a.mul(cosine, cosine)))
    is_far = a.is_("is_inf", x.re)
    re = a.choose(is_far, 1, a.div(a.mul(a.mul(a.neg(lost), a.add(shrunk, 1)), 0.25), under))
    im = a.choose(is_far, 0, a.div(a.mul(shrunk, a.mul(sine, cosine)), under))
    return Parts(kept_zero(a, x.re, a.choose(a.is_("lt", x.re, 0), a.neg(re), re)), kept_zero(a, x.im, im))


def times_i(a, x):
    return Parts(a.neg(x.im), x.re)


def by_i(a, x):
    return Parts(x.im, a.neg(x.re))


@formula("sin.default")
def sin(a, x):
    return by_i(a, sinh(a, times_i(a, x)))


@formula("cos.default")
def cos(a, x):
    return cosh(a, times_i(a, x))


@formula("tan.default")
def tan(a, x):
    return by_i(a, tanh(a, times_i(a, x)))


# Powers by products up to here, as torch's are to 3.
_LARGEST_POWER = 8


@formula("pow.Tensor_Scalar")
def pow_scalar(a, x, exponent):
    if exponent == 0:
        return Parts(a.full_like(x.re, 1), a.full_like(x.re, 0))
    if exponent == 0.5:
        return sqrt(a, x)
    if exponent.imag == 0 and float(exponent.real).is_integer() and 1 <= abs(exponent.real) <= _LARGEST_POWER:
        result = x
        for _ in range(int(abs(exponent.real)) - 1):
            result = mul(a, result, x)
        return result if exponent.real > 0 else reciprocal(a, result)
    return pow_tensor(a, x, exponent)


@formula("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(a, x, exponent):
    x, exponent = number(x), number(exponent)
    x = Parts(*(v if isinstance(v, Value) else a.full_like(exponent.re, v) for v in x))
    return exp(a, mul(a, log(a, x), exponent))


# ---- products of matrices


@product("mm.default", "bmm.default")
def matmul(b, left, right):
    """One real product of twice the extents: a row of the left one as it lies is re, im, re, im, … and meets the right one's
    rows, each followed by itself times i."""
    *batch, rows, depth, _ = left.shape
    columns = right.shape[-2]
    parts = parts_of(b, right)
    shape = (*batch, depth, columns, 2)
    times_i = b.op("stack", (b.pointwise("neg", parts.im), parts.re), right.dtype, shape, dim=len(batch) + 2)
    both = b.op("stack", (right, times_i), right.dtype, (*batch, depth, 2, columns, 2), dim=len(batch) + 1)
    both = b.reshape(both, (*batch, 2 * depth, 2 * columns))
    left = b.reshape(left, (*batch, rows, 2 * depth))
    return b.reshape(b.op("matmul", (left, both), left.dtype, (*batch, rows, 2 * columns)), (*batch, rows, columns, 2))


@product("mv.default")
def mv(b, matrix, vector):
    column = b.reshape(vector, (vector.shape[0], 1, 2))
    return b.reshape(matmul(b, matrix, column), (matrix.shape[0], 2))
