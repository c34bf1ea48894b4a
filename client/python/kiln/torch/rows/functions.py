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


def of_numbers(*overloads: str, arity: int = 1):
    """A row whose function takes an Arithmetic and its operands in the dtype of computation."""

    def add(formula):
        def lower(b: Builder, node: fx.Node) -> Value:
            dtype, _ = result_type(node)
            require(dtype in FLOATING, "a function of integers")
            wide = statistics_dtype(dtype)
            return b.cast(formula(Arithmetic(b, wide), *(operand(b, a, wide) for a in node.args[:arity])), dtype)

        row(*overloads)(lower)
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


# Of log(erfc(x) exp(x²) / t) in t = 1 / (1 + x / 2), x ≥ 0, relative error below 1.2e-7 (Numerical Recipes).
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)  # fmt: skip


@of_numbers("erfc.default")
def erfc(a, x):
    require(a.dtype == "f32", "more places than the approximation has")
    size = a.abs(x)
    tail = scaled_tail(a, size, a.neg(a.mul(size, size)))
    outer = a.choose(a.is_("lt", x, 0), a.sub(2, tail), tail)
    return a.choose(a.is_("lt", size, 0.5), a.sub(1, a.erf(x)), outer)


@of_numbers("special_erfcx.default")
def erfcx(a, x):
    require(a.dtype == "f32", "more places than the approximation has")
    tail = scaled_tail(a, a.abs(x), 0)
    square = a.mul(x, x)
    return a.choose(a.is_("lt", x, 0), a.sub(a.mul(a.exp(square), 2), tail), tail)


def scaled_tail(a, size, exponent) -> Value:
    """erfc(x) exp(x² + exponent) of x ≥ 0."""
    t = a.div(1, a.add(a.mul(size, 0.5), 1))
    return a.mul(t, a.exp(a.add(polynomial(a, t, _ERFC), exponent)))


def polynomial(a, x, coefficients) -> Value:
    """By Horner's rule, the highest power first."""
    result = a.add(a.mul(x, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        result = a.add(a.mul(result, x), coefficient)
    return result


# Chebyshev's series of exp(-x) I0(x), on [0, 8] and, times sqrt(x), beyond (Cephes, single precision).
_I0_NEAR = (-1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7, 1.11738753912010371815e-6,
            -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
            -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2,
            -2.37374148058994688156e-2, 4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1,
            -3.04682672343198398683e-1, 6.76795274409476084995e-1)  # fmt: skip
_I0_FAR = (3.39623202570838634515e-9, 2.26666899049817806459e-8, 2.04891858946906374183e-7, 2.89137052083475648297e-6,
           6.88975834691682398426e-5, 3.36911647825569408990e-3, 8.04490411014108831608e-1)  # fmt: skip


@of_numbers("i0.default")
def i0(a, x):
    require(a.dtype == "f32", "more places than the approximation has")
    size = a.abs(x)
    near = chebyshev(a, a.sub(a.mul(size, 0.5), 2), _I0_NEAR)
    far = a.div(chebyshev(a, a.sub(a.div(32, size), 2), _I0_FAR), a.sqrt(size))
    return a.mul(a.exp(size), a.choose(a.is_("le", size, 8), near, far))


def chebyshev(a, x, coefficients) -> Value:
    """The series' sum, by Clenshaw's rule as Cephes has it: half of the last coefficient counts."""
    last, before, oldest = coefficients[0], 0.0, 0.0
    for coefficient in coefficients[1:]:
        last, before, oldest = a.add(a.sub(a.mul(x, last), before), coefficient), last, before
    return a.mul(a.sub(last, oldest), 0.5)


# Giles' approximation of erfinv(x) / x by w = -log(1 - x²): for w < 5 in w - 2.5, beyond in sqrt(w) - 3, single precision.
_ERFINV_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


@of_numbers("erfinv.default")
def erfinv(a, x):
    require(a.dtype == "f32", "more places than the approximation has")
    w = a.neg(a.add(a.log1p(x), a.log1p(a.neg(x))))
    near, far = polynomial(a, a.sub(w, 2.5), _ERFINV_NEAR), polynomial(a, a.sub(a.sqrt(w), 3), _ERFINV_FAR)
    result = a.mul(a.choose(a.is_("lt", w, 5), near, far), x)
    end = a.mul(x, math.inf)
    return a.choose(a.is_("eq", a.abs(x), 1), end, result)


@of_numbers("digamma.default")
def digamma(a, x):
    """Reflected where negative, carried up by ψ(x) = ψ(x + 1) - 1 / x, then the asymptotic series."""
    require(a.dtype == "f32", "more places than the series has")
    is_negative = a.is_("lt", x, 0)
    y = a.choose(is_negative, a.sub(1, x), x)
    carried = a.mul(x, 0)
    for _ in range(6):
        is_small = a.is_("lt", y, 6)
        carried = a.choose(is_small, a.sub(carried, a.div(1, y)), carried)
        y = a.choose(is_small, a.add(y, 1), y)
    square = a.div(1, a.mul(y, y))
    series = a.mul(square, polynomial(a, square, (-1 / 252, 1 / 120, -1 / 12)))
    result = a.add(a.add(a.sub(a.log(y), a.div(0.5, y)), series), carried)
    result = a.choose(a.is_("eq", y, math.inf), math.inf, result)
    part = a.mul(a.sub(x, a.trunc(x)), math.pi)
    reflected = a.sub(result, a.div(a.mul(a.cos(part), math.pi), a.sin(part)))
    reflected = a.choose(a.is_("eq", a.trunc(x), x), math.nan, reflected)
    return a.choose(is_negative, reflected, a.choose(a.is_("eq", x, 0), a.neg(a.div(1, x)), result))


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


@row("sgn.default")
def sgn(b, node):
    x = b.value(node.args[0])
    return x if x.dtype == "bool" else b.pointwise("sign", x)
