"""Rows of batch norm and its gradient. Sums are kept in f64, and numbers rounded where torch's kernels round them: the gradient
with respect to what is normalised is often what remains of numbers that cancel, and it is as small as torch's only with torch's
roundings. Where its kernels have several ways the one for images in row-major order is meant; those for rows and channels last sum in
other orders, one of them in f32, and are seldom closer to exact numbers."""

from __future__ import annotations

import math

from torch import fx

from ..builder import Builder, layout_of
from ..text import Value, is_dense
from .table import Family, number, require, result_types

FAMILY = Family()
row = FAMILY.row

TOTAL = "f64"
# Of rows torch's kernel sums in f32, in order: of fewer than these its roundings are still in the last bits of their statistics.
FEW_ROWS = 8


@row("_native_batch_norm_legit_no_training.default")
def batch_norm(b, node):
    x, weight, bias, mean, variance, _, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias), b.value(mean), b.value(variance))
    dtype, shape = result_types(node)[0]
    # The saved statistics of inference are empty and nobody reads them.
    return (b.op("batch_norm", operands, dtype, shape, eps=float(number(eps))),)


def is_in_order(node: fx.Node) -> bool:
    """Whether it is dense with its channels second, or last of an image's or a volume's dims. Of other orders torch's trace says
    other strides than its kernels give."""
    _, shape, strides = layout_of(node)
    channels_last = [0, *range(2, len(shape)), 1]
    orders = [range(len(shape)), channels_last] if len(shape) in (4, 5) else [range(len(shape))]
    return any(is_dense([shape[d] for d in order], [strides[d] for d in order]) for order in orders)


class Batch:
    """An input [batch, channels, …], and sums over all but its channels."""

    def __init__(self, b: Builder, node: fx.Node, *parameters: Value | None) -> None:
        self.b, self.x = b, b.value(node)
        self.dtype, shape = self.x.dtype, self.x.shape
        # Of halves torch's sums are f32, and its trace says another dtype of their statistics than its kernels give.
        require(self.dtype in ("f32", "f64"), "a batch norm of halves in training")
        require(all(p is None or p.dtype == self.dtype for p in parameters), "a batch norm with parameters of another dtype")
        require(is_in_order(node), "a batch norm in training of what is neither in row-major order nor channels last")
        self.reduced = [d for d in range(len(shape)) if d != 1]
        self.extent = math.prod(shape[d] for d in self.reduced)
        self.beside = (shape[1], *(1 for _ in shape[2:]))

    def is_few_rows(self) -> bool:
        rows, _, *image = self.x.shape
        return all(extent == 1 for extent in image) and isinstance(rows, int) and rows < FEW_ROWS

    def sum(self, value: Value) -> Value:
        """One number for each channel, in f64."""
        return self.b.reduce("sum", self.b.cast(value, TOTAL), self.reduced, False)

    def over_count(self, value: Value) -> Value:
        """Divided by the number of elements of a channel."""
        return self.b.pointwise("div", value, self.b.extent(self.extent, value.dtype))

    def each(self, value: Value) -> Value:
        """A number for each channel, to stand beside the input."""
        return self.b.reshape(value, self.beside)

    def narrow(self, value: Value) -> Value:
        return self.b.cast(value, self.dtype)

    def deviation(self, mean: Value) -> Value:
        return self.b.pointwise("sub", self.x, self.each(mean))


def fused(batch: Batch, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once, as torch's kernels do where the processor can."""
    b = batch.b
    x, y, z = (b.cast(v, TOTAL) for v in (x, y, z))
    return batch.narrow(b.pointwise("add", b.pointwise("mul", x, y), z))


def reciprocal_deviation(batch: Batch, variance: Value, eps: float) -> Value:
    b = batch.b
    return batch.narrow(b.pointwise("rsqrt", b.pointwise("add", b.cast(variance, TOTAL), b.full(eps, TOTAL))))


def statistics(batch: Batch, eps: float) -> tuple[Value, Value, Value]:
    """Mean, reciprocal deviation, and the sum of squares of deviations from that mean as it was rounded."""
    b = batch.b
    mean = batch.narrow(batch.over_count(batch.sum(batch.x)))
    deviation = batch.deviation(mean)
    squares = batch.narrow(batch.sum(b.pointwise("mul", deviation, deviation)))
    variance = batch.over_count(squares)
    rstd = reciprocal_deviation(batch, variance, eps)
    if eps == 0:  # torch has 0 for a channel that is one number everywhere.
        is_constant = b.pointwise("eq", variance, b.full(0, batch.dtype), dtype="bool")
        rstd = b.pointwise("select", is_constant, b.full(0, batch.dtype), rstd)
    return mean, rstd, squares


def normalised(batch: Batch, mean: Value, rstd: Value, weight: Value | None, bias: Value | None) -> Value:
    """x * alpha + beta: two numbers for each channel, rounded."""
    b = batch.b
    alpha = rstd if weight is None else b.pointwise("mul", rstd, weight)
    below = b.pointwise("neg", mean)
    beta = b.pointwise("mul", below, alpha) if bias is None else fused(batch, below, alpha, bias)
    return fused(batch, batch.x, batch.each(alpha), batch.each(beta))


def followed(batch: Batch, old: Value, new: Value, momentum: float) -> Value:
    """The running statistic after a step. Momentum is a number of the input's dtype, also where the new one is f64."""
    b, momentum = batch.b, batch.b.full(momentum, batch.dtype)
    kept = b.pointwise("mul", b.pointwise("sub", b.full(1, batch.dtype), momentum), old)
    step = b.pointwise("mul", b.cast(momentum, new.dtype), new)
    return batch.narrow(b.pointwise("add", step, b.cast(kept, new.dtype)))


def trained(b: Builder, node: fx.Node, eps, *running: Value) -> tuple[Batch, tuple, Value]:
    """x with its batch; out, mean and reciprocal deviation; the sum of squares."""
    weight, bias = b.optional(node.args[1]), b.optional(node.args[2])
    batch = Batch(b, node.args[0], weight, bias, *running)
    mean, rstd, squares = statistics(batch, float(number(eps)))
    return batch, (normalised(batch, mean, rstd, weight, bias), mean, rstd), squares


@row("_native_batch_norm_legit.no_stats", is_norm=True, gives_statistics=True)
def batch_norm_of_a_batch(b, node):
    _, _, _, is_training, _, eps = node.args
    require(bool(is_training), "a batch norm without any statistics")
    return trained(b, node, eps)[1]


@row("_native_batch_norm_legit_functional.default", is_norm=True, gives_statistics=True)
def batch_norm_with_running_statistics(b, node):
    _, _, _, mean, variance, is_training, momentum, eps = node.args
    running = b.value(mean), b.value(variance)
    if not is_training:
        (dtype, shape), *saved = result_types(node)[:3]
        operands = (b.value(node.args[0]), b.optional(node.args[1]), b.optional(node.args[2]), *running)
        require(operands[0].dtype in ("f32", "f64"), "a batch norm of halves beside its running statistics")
        out = b.op("batch_norm", operands, dtype, shape, eps=float(number(eps)))
        return out, *(b.full(0, *each) for each in saved), *running
    batch, results, squares = trained(b, node, eps, *running)
    require(not batch.is_few_rows(), "running statistics of a few rows")
    others = b.pointwise("sub", b.extent(batch.extent, batch.dtype), b.full(1, batch.dtype))
    news = results[1], b.cast(b.pointwise("div", squares, others), TOTAL)
    return *results, *(followed(batch, old, new, float(number(momentum))) for old, new in zip(running, news))


def input_gradient(batch: Batch, grad: Value, deviation: Value, total: Value, along: Value, rstd: Value) -> Value:
    """The gradient without what is constant in a channel, and without what lies along its deviations."""
    b = batch.b
    constant = batch.narrow(batch.over_count(total))
    slope = batch.over_count(b.pointwise("mul", b.pointwise("mul", batch.narrow(along), rstd), rstd))
    rest = b.pointwise("sub", grad, batch.each(constant))
    return fused(batch, deviation, batch.each(b.pointwise("neg", slope)), rest)


@row("native_batch_norm_backward.default", reads_statistics=True)
def batch_norm_backward(b, node):
    grad, x, weight, running_mean, running_var, mean, rstd, is_training, eps, _ = node.args
    grad, weight = b.value(grad), b.optional(weight)
    mean, rstd = (b.value(v) for v in ((mean, rstd) if is_training else (running_mean, running_var)))
    batch = Batch(b, x, grad, weight, mean, rstd)
    if not is_training:
        rstd = reciprocal_deviation(batch, rstd, float(number(eps)))
    deviation = batch.deviation(mean)
    total, along = batch.sum(grad), batch.sum(b.pointwise("mul", deviation, grad))
    of_x = input_gradient(batch, grad, deviation, total, along, rstd) if is_training else grad
    of_x = b.pointwise("mul", of_x, batch.each(rstd))
    of_x = of_x if weight is None else b.pointwise("mul", of_x, batch.each(weight))
    # Also what is not wanted: torch's trace has types for it, and nobody reads it.
    return of_x, batch.narrow(b.pointwise("mul", along, b.cast(rstd, TOTAL))), batch.narrow(total)
