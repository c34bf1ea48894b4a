"""Rows of sampling an image at points, in two and three dims, and of its gradients: what a point read takes its part of the
gradient, and how what was read changes between pixels moves the point."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..builder import Builder
from ..text import Value
from .functions import Arithmetic
from .table import Family, require, result_type

FAMILY = Family()
row = FAMILY.row

BILINEAR, NEAREST = range(2)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass
class Points:
    """Where an image is read: for each of its dims, outermost first, places in pixels [batch, 1, points], and how far these move
    with the grid."""

    places: list[Value]
    slopes: list[Value]
    extents: tuple


def points_of(b: Builder, a: Arithmetic, image: Value, grid: Value, mode: int, padding: int, aligned: bool) -> Points:
    require(mode in (BILINEAR, NEAREST), "sampling by cubes")
    require(grid.dtype == image.dtype in ("f32", "f64"), "places in half precision, which torch rounds to it")
    require(all(isinstance(e, int) for e in (*image.shape, *grid.shape)), "a symbolic extent")
    batch, count, extents = image.shape[0], math.prod(grid.shape[1:-1]), image.shape[2:]
    grid = b.reshape(grid, (batch, count, len(extents)))
    columns = (b.slice(grid, 2, i, i + 1, 1) for i in reversed(range(len(extents))))  # a grid's are innermost first
    sources = [source(a, b.reshape(c, (batch, 1, count)), e, padding, aligned) for c, e in zip(columns, extents)]
    places, slopes = map(list, zip(*sources))
    return Points([a.round(p) for p in places] if mode == NEAREST else places, slopes, extents)


def source(a: Arithmetic, place: Value, extent: int, padding: int, aligned: bool) -> tuple[Value, Value]:
    """Where in pixels a place of [-1, 1] lies after padding, and how far that moves with it."""
    half = (extent - 1) / 2 if aligned else extent / 2
    place = a.add(a.mul(place, half), (extent - 1) / 2)
    slope = a.full_like(place, half)
    if padding == REFLECTION:
        place, turn = reflected(a, place, *((0, extent - 1) if aligned else (-0.5, extent - 0.5)))
        slope = a.mul(slope, turn)
    if padding == ZEROS:
        return place, slope
    is_inside = a.is_("logical_and", a.is_("gt", place, 0), a.is_("lt", place, extent - 1))
    return a.minimum(a.maximum(place, 0), extent - 1), a.choose(is_inside, slope, 0)


def reflected(a: Arithmetic, place: Value, low: float, high: float) -> tuple[Value, Value]:
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
class Corner:
    """A pixel beside each point: where it lies among all, if it is there, and its part along each dim, with which way that grows."""

    place: Value
    is_there: Value
    parts: list[Value]
    signs: list[int]

    def weight(self, a: Arithmetic, but: int | None = None) -> Value | None:
        """The product of the parts along all dims, or all but one."""
        parts = [p for d, p in enumerate(self.parts) if d != but]
        product = parts[0] if parts else None
        for part in parts[1:]:
            product = a.mul(product, part)
        return product


def corners(b: Builder, a: Arithmetic, points: Points, mode: int) -> list[Corner]:
    lows = points.places if mode == NEAREST else [a.floor(p) for p in points.places]
    found = []
    for steps in itertools.product((0, 1), repeat=len(lows)) if mode == BILINEAR else [(0,) * len(lows)]:
        at = [a.add(low, step) if step else low for low, step in zip(lows, steps)]
        ends = [a.is_(name, p, end) for p, e in zip(at, points.extents) for name, end in (("ge", 0), ("lt", e))]
        is_there, place = ends[0], None
        for end in ends[1:]:
            is_there = b.pointwise("bitwise_and", is_there, end)
        for p, extent in zip(at, points.extents):
            p = b.cast(a.choose(is_there, p, 0), "i64")
            place = p if place is None else b.pointwise("add", b.pointwise("mul", place, b.full(extent, "i64")), p)
        if mode == NEAREST:
            parts = [a.full_like(p, 1) for p in at]
        else:
            parts = [a.sub(p, low) if step else a.sub(a.add(low, 1), p) for p, low, step in zip(points.places, lows, steps)]
        found.append(Corner(place, is_there, parts, [1 if step else -1 for step in steps]))
    return found


@row("grid_sampler_3d.default")
def grid_sampler(b, node):
    image, grid, mode, padding, aligned = node.args
    image, grid, (dtype, shape) = b.value(image), b.value(grid), result_type(node)
    a = Arithmetic(b, dtype)
    points, total = points_of(b, a, image, grid, mode, padding, aligned), None
    pixels = flat(b, image)
    for corner in corners(b, a, points, mode):
        read = a.choose(corner.is_there, a.mul(read_at(b, pixels, corner), corner.weight(a)), 0)
        total = read if total is None else a.add(total, read)
    return b.reshape(total, shape)


def flat(b: Builder, image: Value) -> Value:
    return b.reshape(image, (*image.shape[:2], math.prod(image.shape[2:])))


def read_at(b: Builder, pixels: Value, corner: Corner) -> Value:
    shape = (*pixels.shape[:2], corner.place.shape[2])
    return b.op("gather", (pixels, b.expand(corner.place, shape)), pixels.dtype, shape, dim=2)


@row("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sampler_backward(b, node):
    grad, image, grid, mode, padding, aligned, wanted = node.args
    grad, image, grid = b.value(grad), b.value(image), b.value(grid)
    a = Arithmetic(b, image.dtype)
    points = points_of(b, a, image, grid, mode, padding, aligned)
    grad, pixels = flat(b, grad), flat(b, image)
    given, moves = b.full(0, a.dtype, pixels.shape), [None] * len(points.extents)
    for corner in corners(b, a, points, mode):
        part = a.choose(corner.is_there, a.mul(grad, corner.weight(a)), 0)
        given = b.op("scatter_add", (given, b.expand(corner.place, grad.shape), part), a.dtype, given.shape, dim=2)
        read = b.reduce("sum", a.choose(corner.is_there, a.mul(grad, read_at(b, pixels, corner)), 0), [1], True)
        for d, sign in enumerate(corner.signs if mode == BILINEAR else ()):
            move = a.mul(a.mul(read, corner.weight(a, but=d)), sign)
            moves[d] = move if moves[d] is None else a.add(moves[d], move)
    result = b.reshape(given, image.shape), moved(b, a, grid, points, moves)
    return tuple(g if is_wanted else None for g, is_wanted in zip(result, wanted))


def moved(b: Builder, a: Arithmetic, grid: Value, points: Points, moves: list) -> Value:
    """The grid's gradient of the points' moves in pixels."""
    if moves[0] is None:
        return b.full(0, a.dtype, grid.shape)
    shape = (grid.shape[0], math.prod(grid.shape[1:-1]), 1)
    columns = [b.reshape(a.mul(move, slope), shape) for move, slope in zip(moves, points.slopes)]
    return b.reshape(b.op("concat", columns[::-1], a.dtype, (*shape[:2], len(columns)), dim=2), grid.shape)
