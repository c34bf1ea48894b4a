"""Rows of the derivatives of activations, and of GLU; formulas as in ATen's native/cpu/Activation.cpp."""

from __future__ import annotations

from ..builder import Builder, floor_quotient, meta_of
from ..text import Value
from .table import Family, arg, number, require, result_type, scaled, wrap

FAMILY = Family()
row = FAMILY.row


def compared(b: Builder, name: str, x: Value, bound: float) -> Value:
    return b.pointwise(name, x, b.full(bound, x.dtype), dtype="bool")


def product(b: Builder, *factors: Value) -> Value:
    result = factors[0]
    for factor in factors[1:]:
        result = b.pointwise("mul", result, factor)
    return result


def first_and_gate(b: Builder, x: Value, dim: int) -> tuple:
    """The first half of x along a dim, and the second through a sigmoid."""
    half = floor_quotient(x.shape[dim], 2)
    first, second = (b.slice(x, dim, start, start + half, half) for start in (0, half))
    return first, b.pointwise("sigmoid", second)


@row("glu.default")
def glu(b, node):
    x = b.value(node.args[0])
    return product(b, *first_and_gate(b, x, wrap(arg(node, 1, "dim", -1), len(x.shape))))


@row("glu_backward.default")
def glu_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    dim = wrap(node.args[2], len(x.shape))
    first, gate = first_and_gate(b, x, dim)
    closed = b.pointwise("sub", b.full(1, x.dtype), gate)
    return b.op("concat", (product(b, grad, gate), product(b, grad, first, gate, closed)), *result_type(node), dim=dim)


@row("gelu_backward.default")
def gelu_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    return b.pointwise("gelu_backward", grad, x, approximate=node.kwargs.get("approximate", "none"))


@row("silu_backward.default", "tanh_backward.default", "sigmoid_backward.default")
def activation_backward(b, node):
    return b.pointwise(node.target._schema.name.split("::")[1], b.value(node.args[0]), b.value(node.args[1]))


@row("threshold_backward.default")
def threshold_backward(b, node):
    grad, x, threshold = b.value(node.args[0]), b.value(node.args[1]), number(node.args[2])
    if threshold == 0:
        return b.pointwise("relu_backward", grad, x)
    below = b.pointwise("le", x, b.full(threshold, x.dtype), dtype="bool")
    return b.pointwise("select", below, b.full(0, grad.dtype), grad)


@row("leaky_relu_backward.default")
def leaky_relu_backward(b, node):
    grad, x, slope = b.value(node.args[0]), b.value(node.args[1]), float(number(node.args[2]))
    return b.pointwise("select", compared(b, "gt", x, 0), grad, scaled(b, grad, slope))


@row("elu_backward.default")
def elu_backward(b, node):
    grad, x = b.value(node.args[0]), b.value(node.args[5])
    alpha, scale, input_scale = (float(number(a)) for a in node.args[1:4])
    if node.args[4]:  # x is the result
        slope = b.pointwise("add", x, b.full(alpha * scale, x.dtype))
    else:
        slope = scaled(b, b.pointwise("exp", scaled(b, x, input_scale)), alpha * scale)
    below = product(b, scaled(b, grad, input_scale), slope)
    return b.pointwise("select", compared(b, "le", x, 0), below, scaled(b, grad, scale))


@row("softplus_backward.default")
def softplus_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    beta, threshold = (float(number(a)) for a in node.args[2:4])
    x = scaled(b, x, beta)
    curved = product(b, grad, b.pointwise("sigmoid", x))
    return b.pointwise("select", compared(b, "gt", x, threshold), grad, curved)


def inside(b: Builder, grad: Value, x: Value, low: float, high: float) -> Value:
    """grad where x lies between the bounds, 0 elsewhere."""
    is_inside = b.pointwise("bitwise_and", compared(b, "gt", x, low), compared(b, "lt", x, high))
    return b.pointwise("select", is_inside, grad, b.full(0, grad.dtype))


@row("hardtanh_backward.default")
def hardtanh_backward(b, node):
    return inside(b, *(b.value(a) for a in node.args[:2]), *(float(number(a)) for a in node.args[2:4]))


@row("hardsigmoid_backward.default")
def hardsigmoid_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    return inside(b, scaled(b, grad, 1 / 6), x, -3, 3)


@row("hardswish_backward.default")
def hardswish_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    slope = b.pointwise("add", b.pointwise("div", x, b.full(3, x.dtype)), b.full(0.5, x.dtype))
    above = b.pointwise("select", compared(b, "lt", x, 3), product(b, grad, slope), grad)
    return b.pointwise("select", compared(b, "le", x, -3), b.full(0, grad.dtype), above)


@row("mish_backward.default")
def mish_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    tanh = b.pointwise("tanh", b.pointwise("softplus", x, beta=1.0, threshold=20.0))
    curve = b.pointwise("sub", b.full(1, x.dtype), product(b, tanh, tanh))
    slope = b.pointwise("add", tanh, product(b, x, b.pointwise("sigmoid", x), curve))
    return product(b, grad, slope)


def exp_of_minus_abs(b: Builder, x: Value) -> Value:
    return b.pointwise("exp", b.pointwise("neg", b.pointwise("abs", x)))


@row("log_sigmoid_forward.default")
def log_sigmoid_forward(b, node):
    x = b.value(node.args[0])
    require(meta_of(node)[1].shape == meta_of(node)[0].shape, "a buffer of another shape")
    return b.pointwise("log_sigmoid", x), exp_of_minus_abs(b, x)


@row("log_sigmoid_backward.default")
def log_sigmoid_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    return product(b, grad, b.pointwise("sigmoid", b.pointwise("neg", x)))
