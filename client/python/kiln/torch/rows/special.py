"""Rows of special functions, by series and rational approximations of as many places as the dtype of computation has: f32 for
halves, which round once."""

from __future__ import annotations

import math

from ..builder import Builder
from ..text import Value
from .functions import Arithmetic, of_numbers
from .normalisation import statistics_dtype
from .table import Family, number, operand, require, result_type

FAMILY = Family(is_recomputed=True)
row = FAMILY.row


def special(*overloads: str):
    return of_numbers(*overloads, family=FAMILY)


def polynomial(a: Arithmetic, x: Value, coefficients) -> Value:
    """By Horner's rule, the highest power first."""
    result = a.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = a.add(a.mul(result, x), coefficient)
    return result


def chebyshev(a: Arithmetic, x: Value, coefficients) -> Value:
    """The series' sum at x / 2 by Clenshaw's rule, the highest order first; half of the last coefficient counts. Terms of which
    f32 has no place are left out there."""
    kept = [c for c in coefficients if a.dtype == "f64" or abs(c) > 1e-9]
    last, before, oldest = kept[0], 0.0, 0.0
    for coefficient in kept[1:]:
        last, before, oldest = a.add(a.sub(a.mul(x, last), before), coefficient), last, before
    return a.mul(a.sub(last, oldest), 0.5)


# ---- the error function's complement

# Of log(erfc(x) exp(x²) / t) in t = 1 / (1 + x / 2), x ≥ 0, relative error below 1.2e-7 (Numerical Recipes).
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)  # fmt: skip
# Of erfc(x) exp(x²): quotients of polynomials in x up to 4, in 1 / x² beyond (Cody).
_NEAR = ((2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
          8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
         (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
          3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3))  # fmt: skip
_FAR = ((1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
         1.60837851487422766e-2, 6.58749161529837803e-4),
        (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
         2.33520497626869185e-3))  # fmt: skip


def scaled_tail(a: Arithmetic, size: Value, exponent) -> Value:
    """erfc(x) exp(x² + exponent) of x ≥ 0; in f64 of x ≥ 0.46875."""
    if a.dtype == "f32":
        t = a.div(1, a.add(a.mul(size, 0.5), 1))
        return a.mul(t, a.exp(a.add(polynomial(a, t, _ERFC), exponent)))
    near = quotient(a, size, _NEAR)
    y = a.div(1, a.mul(size, size))
    far = a.div(a.sub(1 / math.sqrt(math.pi), a.mul(y, quotient(a, y, _FAR))), size)
    return a.mul(a.choose(a.is_("le", size, 4), near, far), a.exp(exponent))


def quotient(a: Arithmetic, x: Value, polynomials: tuple) -> Value:
    return a.div(*(polynomial(a, x, coefficients) for coefficients in polynomials))


@special("erfc.default")
def erfc(a, x):
    size = a.abs(x)
    tail = scaled_tail(a, size, a.neg(a.mul(size, size)))
    outer = a.choose(a.is_("lt", x, 0), a.sub(2, tail), tail)
    return a.choose(a.is_("lt", size, 0.5), a.sub(1, a.erf(x)), outer)


@special("special_erfcx.default")
def erfcx(a, x):
    square, size = a.mul(x, x), a.abs(x)
    tail = scaled_tail(a, size, 0)
    outer = a.choose(a.is_("lt", x, 0), a.sub(a.mul(a.exp(square), 2), tail), tail)
    return a.choose(a.is_("lt", size, 0.5), a.mul(a.exp(square), a.sub(1, a.erf(x))), outer)


# Giles' approximation of erfinv(x) / x by w = -log(1 - x²): for w < 5 in w - 2.5, beyond in sqrt(w) - 3, single precision.
_ERFINV_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


@special("erfinv.default")
def erfinv(a, x):
    """In f64 Newton's steps follow the approximation: towards erf where x is small, else towards what erf lacks of 1."""
    w = a.neg(a.add(a.log1p(x), a.log1p(a.neg(x))))
    near, far = polynomial(a, a.sub(w, 2.5), _ERFINV_NEAR), polynomial(a, a.sub(a.sqrt(w), 3), _ERFINV_FAR)
    size = a.abs(x)
    result = a.mul(a.choose(a.is_("lt", w, 5), near, far), size)
    for _ in range(2 if a.dtype == "f64" else 0):
        beyond = a.choose(a.is_("lt", size, 0.5), a.sub(a.erf(result), size), a.sub(a.sub(1, size), erfc(a, result)))
        slope = a.mul(a.exp(a.neg(a.mul(result, result))), 2 / math.sqrt(math.pi))
        result = a.sub(result, a.div(beyond, slope))
    result = a.choose(a.is_("eq", size, 1), math.inf, result)
    return a.choose(a.is_("lt", x, 0), a.neg(result), result)


# ---- modified Bessel functions

# Chebyshev's series of exp(-x) I0(x) and exp(-x) I1(x) / x on [0, 8] and, of exp(-x) I(x) sqrt(x), beyond.
_I0_NEAR = (3.3307945188222381e-17, -2.4312798465479547e-16, 1.715391285555133e-15, -1.1685332877993452e-14,
            7.6761854986049356e-14, -4.8564467831119295e-13, 2.9550526631296398e-12, -1.7268262914415557e-11,
            9.6758090353732369e-11, -5.1897956016352629e-10, 2.6598237246823867e-9, -1.300025009986248e-8, 6.0469950225419189e-8,
            -2.6707938539406117e-7, 1.1173875391201037e-6, -4.4167383584587506e-6, 1.6448448070728897e-5,
            -5.7541950100821037e-5, 0.00018850288509584166, -0.00057637557453858237, 0.0016394756169413358,
            -0.0043243099950505759, 0.010546460394594998, -0.023737414805899469, 0.049305284239670708, -0.094901097048047644,
            0.17162090152220878, -0.3046826723431984, 0.67679527440947608)  # fmt: skip
_I0_FAR = (4.46562142029676e-17, 3.4612228676974611e-17, -2.8276239805165835e-16, -3.4254856196772191e-16,
           1.7725601330565264e-15, 3.8116806693526224e-15, -9.5548466988283076e-15, -4.1505693472872221e-14,
           1.5400862175214098e-14, 3.8527783827421427e-13, 7.1801244513836662e-13, -1.7941785315068061e-12,
           -1.3215811840447713e-11, -3.1499165279632414e-11, 1.1889147107846438e-11, 4.9406023882249696e-10,
           3.3962320257083863e-9, 2.2666689904981781e-8, 2.0489185894690637e-7, 2.8913705208347565e-6, 6.889758346916824e-5,
           0.0033691164782556941, 0.80449041101410883)  # fmt: skip
_I1_NEAR = (-2.1114212143581661e-17, 1.5536319577362005e-16, -1.1055969477353863e-15, 7.6006842947354069e-15,
            -5.0421855047279117e-14, 3.2237933659455747e-13, -1.9839743977649437e-12, 1.1736186298890902e-11,
            -6.6634897235020277e-11, 3.625590281552117e-10, -1.8872497517228293e-9, 9.3815373864957718e-9,
            -4.4450591287963281e-8, 2.0032947535521353e-7, -8.5687202646954547e-7, 3.4702513081376785e-6, -1.3273163656039436e-5,
            4.7815651075500542e-5, -0.00016176081582589675, 0.00051228595616857577, -0.0015135724506312531,
            0.0041564229443128882, -0.010564084894626198, 0.024726449030626517, -0.052945981208094991, 0.1026436586898471,
            -0.17641651835783406, 0.25258718644363365)  # fmt: skip
_I1_FAR = (-4.6503053684893583e-17, -3.209525921993424e-17, 2.9626289976459501e-16, 3.3082023109209283e-16,
           -1.8803547755107824e-15, -3.8144030724370078e-15, 1.0420276984128803e-14, 4.2724400167119514e-14,
           -2.1015418427726643e-14, -4.0835511110921973e-13, -7.1985517762459085e-13, 2.0356285441470895e-12,
           1.4125807436613781e-11, 3.2526035830154882e-11, -1.8974958123505412e-11, -5.5897434621965838e-10,
           -3.835380385964237e-9, -2.6314688468895195e-8, -2.5122362378702089e-7, -3.8825648088776904e-6,
           -0.00011058893876262372, -0.0097610974913614684, 0.77857623501828012)  # fmt: skip


def scaled_bessel(a: Arithmetic, x: Value, order: int) -> Value:
    """exp(-|x|) I(x) of order 0 or 1."""
    size = a.abs(x)
    near = chebyshev(a, a.sub(a.mul(size, 0.5), 2), _I1_NEAR if order else _I0_NEAR)
    near = a.mul(near, size) if order else near
    far = a.div(chebyshev(a, a.sub(a.div(32, size), 2), _I1_FAR if order else _I0_FAR), a.sqrt(size))
    result = a.choose(a.is_("le", size, 8), near, far)
    return a.choose(a.is_("lt", x, 0), a.neg(result), result) if order else result


@special("special_i0e.default")
def i0e(a, x):
    return scaled_bessel(a, x, 0)


@special("special_i1e.default")
def i1e(a, x):
    return scaled_bessel(a, x, 1)


@special("i0.default")
def i0(a, x):
    return a.mul(a.exp(a.abs(x)), scaled_bessel(a, x, 0))


@special("special_i1.default")
def i1(a, x):
    return a.mul(a.exp(a.abs(x)), scaled_bessel(a, x, 1))


# ---- the gamma function's logarithm and its derivatives

# What an asymptotic series takes: f32 and f64 have no more places there.
FAR_ENOUGH = {"f32": 6, "f64": 10}
# Bernoulli's numbers B2, B4, …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
# Polygammas of higher orders lose their places in numbers that cancel.
MAX_ORDER = 12


def series_of(a: Arithmetic) -> tuple:
    return _BERNOULLI[:3] if a.dtype == "f32" else _BERNOULLI


def sine_of_pi(a: Arithmetic, x: Value) -> tuple[Value, Value]:
    """sin(πx) and cos(πx) but for a sign that they share; of whole numbers exactly 0."""
    part = a.mul(a.sub(x, a.round(x)), math.pi)
    return a.sin(part), a.cos(part)


@row("lgamma.default")
def lgamma(b, node):
    """By Stirling's series, carried there by Γ(x + 1) = x Γ(x). In f64, as numbers near a root are what remains of others."""
    dtype, _ = result_type(node)
    a = Arithmetic(b, "f64")
    x = operand(b, node.args[0], "f64")
    is_negative = a.is_("lt", x, 0)
    y, carried = a.choose(is_negative, a.sub(1, x), x), a.full_like(x, 1)
    for _ in range(FAR_ENOUGH["f64"]):
        is_small = a.is_("lt", y, FAR_ENOUGH["f64"])
        carried = a.choose(is_small, a.mul(carried, y), carried)
        y = a.choose(is_small, a.add(y, 1), y)
    coefficients = [each / (2 * k * (2 * k - 1)) for k, each in enumerate(_BERNOULLI, 1)]
    series = a.div(polynomial(a, a.div(1, a.mul(y, y)), coefficients[::-1]), y)
    result = a.add(a.sub(a.mul(a.sub(y, 0.5), a.log(y)), y), a.add(series, 0.5 * math.log(2 * math.pi)))
    result = a.sub(result, a.log(carried))
    reflected = a.sub(a.log(a.div(math.pi, a.abs(sine_of_pi(a, x)[0]))), result)
    result = a.choose(is_negative, reflected, result)
    return b.cast(a.choose(a.is_("eq", a.abs(x), math.inf), math.inf, result), dtype)


@special("digamma.default")
def digamma(a, x):
    """Reflected where negative, carried up by ψ(x) = ψ(x + 1) - 1 / x, then the asymptotic series."""
    is_negative = a.is_("lt", x, 0)
    y = a.choose(is_negative, a.sub(1, x), x)
    carried = a.full_like(x, 0)
    for _ in range(FAR_ENOUGH[a.dtype]):
        is_small = a.is_("lt", y, FAR_ENOUGH[a.dtype])
        carried = a.choose(is_small, a.sub(carried, a.div(1, y)), carried)
        y = a.choose(is_small, a.add(y, 1), y)
    square = a.div(1, a.mul(y, y))
    coefficients = [-each / (2 * k) for k, each in enumerate(series_of(a), 1)]
    series = a.mul(square, polynomial(a, square, coefficients[::-1]))
    result = a.add(a.add(a.sub(a.log(y), a.div(0.5, y)), series), carried)
    result = a.choose(a.is_("eq", y, math.inf), math.inf, result)
    sine, cosine = sine_of_pi(a, x)
    reflected = a.sub(result, a.div(a.mul(cosine, math.pi), sine))
    reflected = a.choose(a.is_("eq", a.trunc(x), x), math.nan, reflected)
    return a.choose(is_negative, reflected, a.choose(a.is_("eq", x, 0), a.neg(a.div(1, x)), result))


def cotangent_derivative(order: int) -> list[float]:
    """Of πcot(πx) by x, as a polynomial in cot(πx), the lowest power first."""
    powers = [0.0, math.pi]
    for _ in range(order):  # a power's derivative is its exponent times the power below times -π(1 + cot²)
        slope = [-math.pi * k * each for k, each in enumerate(powers)][1:]
        powers = [low + high for low, high in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope])]
    return powers


def trigamma(a: Arithmetic, x: Value) -> Value:
    """As torch has it: of fewer places than f64 has, and no more than large where x is a pole, as πx is rounded."""
    is_reflected = a.is_("lt", x, 0.5)
    y, total = a.choose(is_reflected, a.sub(1, x), x), a.full_like(x, 0)
    for _ in range(6):
        total, y = a.add(total, inverse_power(a, y, 2)), a.add(y, 1)
    square = inverse_power(a, y, 2)
    series = a.mul(square, polynomial(a, square, _BERNOULLI[2::-1]))
    total = a.add(total, a.div(a.add(a.add(series, a.div(0.5, y)), 1), y))
    sine = a.sin(a.mul(x, math.pi))
    return a.choose(is_reflected, a.sub(a.div(math.pi**2, a.mul(sine, sine)), total), total)


@row("polygamma.default")
def polygamma(b, node):
    """The order's derivative of digamma: reflected where negative, carried up by its terms 1 / x^(order + 1), then the asymptotic
    series. In f64, as lgamma."""
    order, (dtype, _) = int(number(node.args[0])), result_type(node)
    require(1 <= order <= MAX_ORDER, "a derivative of this order")
    if order == 1:
        wide = statistics_dtype(dtype)
        return b.cast(trigamma(Arithmetic(b, wide), operand(b, node.args[1], wide)), dtype)
    a, x, far = Arithmetic(b, "f64"), operand(b, node.args[1], "f64"), FAR_ENOUGH["f64"] + order
    is_negative = a.is_("lt", x, 0)
    y, total = a.choose(is_negative, a.sub(1, x), x), a.full_like(x, 0)
    for _ in range(far):
        is_small = a.is_("lt", y, far)
        total = a.choose(is_small, a.add(total, inverse_power(a, y, order + 1)), total)
        y = a.choose(is_small, a.add(y, 1), y)
    # Of the sum over all terms from y on: an integral, half of the first, and Euler's and Maclaurin's corrections.
    coefficients = [each * math.prod(range(order + 1, order + 2 * k)) / math.factorial(2 * k) for k, each in enumerate(_BERNOULLI, 1)]
    series = polynomial(a, inverse_power(a, y, 2), coefficients[::-1])
    rest = a.add(a.add(a.div(y, order), 0.5), a.div(series, y))
    total = a.add(total, a.mul(rest, inverse_power(a, y, order + 1)))
    sign = (-1) ** (order + 1)
    result = a.mul(total, sign * math.factorial(order))
    sine, cosine = sine_of_pi(a, x)
    below = polynomial(a, a.div(cosine, sine), cotangent_derivative(order)[::-1])
    reflected = a.choose(a.is_("eq", x, -math.inf), sign * math.inf, a.sub(a.mul(result, -sign), below))
    return b.cast(a.choose(is_negative, reflected, result), dtype)


def inverse_power(a: Arithmetic, x: Value, exponent: int) -> Value:
    inverse = result = a.div(1, x)
    for _ in range(exponent - 1):
        result = a.mul(result, inverse)
    return result
