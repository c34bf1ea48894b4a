"""Rows of sampling an image at points, in two and three dims, and of its gradients: what a point read takes its part of the
gradient, and how what was read changes between pixels moves the point."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import sympy

from ..builder import Builder, meta_of
from ..text import Dim, Value
from .functions import Arithmetic
from .table import Family, require, result_type

FAMILY = Family()
row = FAMILY.row

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
# Of the cubic that is 1 at a pixel and 0 at all others: its slope at a distance of 1.
CUBIC_SLOPE = -0.75


class Places(Arithmetic):
    """Also with halves of polynomials of extents that are not known yet."""

    def _value(self, value) -> Value:
        if isinstance(value, sympy.Expr):
            return self.mul(self._b.extent(sympy.nsimplify(2 * value), self.dtype), 0.5)
        return super()._value(value)


@dataclass
class Tap:
    """A pixel along one dim that each point [batch, 1, points] reads: where it is, its part of the result, and how that part
    changes as the grid's place does. Nearest pixels have no change."""

    place: Value
    part: Value
    change: Value | None


def taps_of(a: Places, place: Value, extent: Dim, mode: int, padding: int, aligned: bool) -> list[Tap]:
    """Of places in [-1, 1]."""
    half = (extent - 1) / 2 if aligned else extent / 2
    place = a.add(a.mul(place, half), (extent - 1) / 2)
    if mode == CUBIC:
        low = a.floor(place)
        pixels = (padded(a, a.add(low, step), extent, padding, aligned)[0] for step in (-1, 0, 1, 2))
        return [Tap(p, part, a.mul(change, half)) for p, (part, change) in zip(pixels, cubic(a, a.sub(place, low)))]
    place, slope = padded(a, place, extent, padding, aligned)
    if mode == NEAREST:
        return [Tap(a.round(place), a.full_like(place, 1), None)]
    low, slope = a.floor(place), a.mul(slope, half)
    high = a.add(low, 1)
    return [Tap(low, a.sub(high, place), a.neg(slope)), Tap(high, a.sub(place, low), slope)]


def cubic(a: Arithmetic, t: Value) -> list[tuple[Value, Value]]:
    """The parts of four pixels around a point, which is t behind the second, and how they change with t."""

    def near(x):  # up to 1 away
        s = CUBIC_SLOPE
        value = a.add(a.mul(a.sub(a.mul(x, s + 2), s + 3), a.mul(x, x)), 1)
        return value, a.mul(a.sub(a.mul(x, 3 * (s + 2)), 2 * (s + 3)), x)

    def far(x):  # up to 2 away
        s = CUBIC_SLOPE
        value = a.sub(a.mul(a.add(a.mul(a.sub(a.mul(x, s), 5 * s), x), 8 * s), x), 4 * s)
        return value, a.add(a.mul(a.sub(a.mul(x, 3 * s), 10 * s), x), 8 * s)

    behind = [near(a.sub(1, t)), far(a.sub(2, t))]
    return [far(a.add(t, 1)), near(t), *((value, a.neg(change)) for value, change in behind)]


def padded(a: Places, place: Value, extent: Dim, padding: int, aligned: bool) -> tuple[Value, Value]:
    """Where a place in pixels lies after padding, and by how much that moves with it."""
    slope = a.full_like(place, 1)
    if padding == REFLECTION:
        place, slope = reflected(a, place, *((0, extent - 1) if aligned else (-0.5, extent - 0.5)))
    if padding == ZEROS:
        return place, slope
    is_inside = a.is_("logical_and", a.is_("gt", place, 0), a.is_("lt", place, extent - 1))
    return a.minimum(a.maximum(place, 0), extent - 1), a.choose(is_inside, slope, 0)


def reflected(a: Places, place: Value, low: float, high: float | Dim) -> tuple[Value, Value]:
    """The place between the ends, after as many turns as it takes; 1, or -1 where these are odd."""
    span, one = high - low, a.full_like(place, 1)
    if span == 0:
        return a.full_like(place, 0), a.full_like(place, 0)
    place = a.sub(place, low)
    sign, place = a.choose(a.is_("lt", place, 0), -1, one), a.abs(place)
    rest, turns = a.fmod(place, span), a.floor(a.div(place, span))
    is_even = a.is_("eq", a.fmod(turns, 2), 0)
    return a.choose(is_even, a.add(rest, low), a.sub(span + low, rest)), a.choose(is_even, sign, a.neg(sign))


@dataclass
class Pixel:
    """One tap along each dim, outermost first: where that lies among all pixels, and if it is there."""

    taps: tuple[Tap, ...]
    place: Value
    is_there: Value

    def weight(self, a: Arithmetic, along: int | None = None) -> Value:
        """The product of the parts; how it changes along a dim, if one is given."""
        factors = [tap.change if d == along else tap.part for d, tap in enumerate(self.taps)]
        product = factors[0]
        for factor in factors[1:]:
            product = a.mul(product, factor)
        return product


def pixels_of(b: Builder, a: Places, image: Value, grid: Value, mode: int, padding: int, aligned: bool) -> list[Pixel]:
    """All that a point reads."""
    require(grid.dtype == image.dtype in ("f32", "f64"), "places in half precision, which torch rounds to it")
    batch, count, extents = image.shape[0], math.prod(grid.shape[1:-1]), image.shape[2:]
    may_be_one = padding == REFLECTION and aligned and not all(isinstance(e, int) for e in extents)
    require(not may_be_one, "reflection at the ends of a symbolic extent")
    grid = b.reshape(grid, (batch, count, len(extents)))
    columns = (b.slice(grid, 2, i, i + 1, 1) for i in reversed(range(len(extents))))  # a grid's are innermost first
    taps = [taps_of(a, b.reshape(c, (batch, 1, count)), e, mode, padding, aligned) for c, e in zip(columns, extents)]
    return [pixel_at(b, a, chosen, extents) for chosen in itertools.product(*taps)]


def pixel_at(b: Builder, a: Places, taps: tuple[Tap, ...], extents: tuple) -> Pixel:
    ends = [a.is_(name, tap.place, end) for tap, e in zip(taps, extents) for name, end in (("ge", 0), ("lt", e))]
    is_there, place = ends[0], None
    for end in ends[1:]:
        is_there = b.pointwise("bitwise_and", is_there, end)
    for tap, extent in zip(taps, extents):
        at = b.cast(a.choose(is_there, tap.place, 0), "i64")
        place = at if place is None else b.pointwise("add", b.pointwise("mul", place, b.extent(extent, "i64")), at)
    return Pixel(taps, place, is_there)


def flat(b: Builder, image: Value) -> Value:
    return b.reshape(image, (*image.shape[:2], math.prod(image.shape[2:])))


def read(b: Builder, image: Value, pixel: Pixel) -> Value:
    """Of a flat image, the pixel of each point."""
    shape = (*image.shape[:2], pixel.place.shape[2])
    return b.op("gather", (image, b.expand(pixel.place, shape)), image.dtype, shape, dim=2)


@row("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(b, node):
    image, grid, mode, padding, aligned = node.args
    image, grid, (dtype, shape) = b.value(image), b.value(grid), result_type(node)
    a, total = Places(b, dtype), None
    for pixel in pixels_of(b, a, image, grid, mode, padding, aligned):
        part = a.choose(pixel.is_there, a.mul(read(b, flat(b, image), pixel), pixel.weight(a)), 0)
        total = part if total is None else a.add(total, part)
    return b.reshape(total, shape)


@row("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sampler_backward(b, node):
    grad, image, grid, mode, padding, aligned, _ = node.args
    grad, image, grid = b.value(grad), b.value(image), b.value(grid)
    a, flat_grad, flat_image = Places(b, image.dtype), flat(b, grad), flat(b, image)
    given = b.full(0, a.dtype, flat_image.shape)
    moves = [None] * (len(image.shape) - 2)
    for pixel in pixels_of(b, a, image, grid, mode, padding, aligned):
        part = a.choose(pixel.is_there, a.mul(flat_grad, pixel.weight(a)), 0)
        place = b.expand(pixel.place, flat_grad.shape)
        given = b.op("scatter_add", (given, place, part), a.dtype, given.shape, dim=2)
        seen = b.reduce("sum", a.choose(pixel.is_there, a.mul(flat_grad, read(b, flat_image, pixel)), 0), [1], True)
        for d in range(len(moves)) if mode != NEAREST else ():
            move = a.mul(seen, pixel.weight(a, along=d))
            moves[d] = move if moves[d] is None else a.add(moves[d], move)
    result = b.reshape(given, image.shape), moved(b, grid, moves)
    # Torch gives the grid's gradient also where it is not wanted.
    return tuple(None if tensor is None else g for g, tensor in zip(result, meta_of(node)))


def moved(b: Builder, grid: Value, moves: list) -> Value:
    """The grid's gradient: how the loss changes with each of its columns, innermost dim first."""
    if moves[0] is None:
        return b.full(0, grid.dtype, grid.shape)
    shape = (grid.shape[0], math.prod(grid.shape[1:-1]), 1)
    columns = [b.reshape(move, shape) for move in reversed(moves)]
    return b.reshape(b.op("concat", columns, grid.dtype, (*shape[:2], len(columns)), dim=2), grid.shape)
