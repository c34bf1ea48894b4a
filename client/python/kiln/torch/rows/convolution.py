"""Rows of convolutions and their gradients, transposed ones too."""

from __future__ import annotations

import torch
from torch import fx

from ... import _session
from .. import processor
from ..builder import Builder, meta_of, type_of
from ..place import Place
from ..text import FLOATING, Value
from .table import Family, number, require, result_type

FAMILY = Family()
row = FAMILY.row


def attributes_of(node: fx.Node, first: int) -> tuple[dict, bool]:
    """Kiln's attributes, and whether the convolution is transposed; stride is argument `first` of the node."""
    rank = len(meta_of(node.args[0]).shape) - 2
    stride, padding, dilation, transposed, _, groups = node.args[first : first + 6]

    def of_each(values) -> tuple:
        values = tuple(map(number, values))
        return values * rank if len(values) == 1 else values

    attributes = {"stride": of_each(stride), "padding": of_each(padding), "dilation": of_each(dilation), "groups": number(groups)}
    return attributes, bool(transposed)


def why_torchs(tensor: torch.Tensor) -> str | None:
    """Why `convolution: auto` leaves those of the tensor to torch, if it does: oneDNN's of halves use AMX where there is any, and where
    they were timed without it (docs/performance.md), Kiln's take less time; on a device Kiln's were never timed."""
    if Place(tensor.device).name or processor.builds_for_a_device():
        return "a convolution on a device, where nobody has timed Kiln's: `convolution: kiln` takes them"
    if tensor.dtype in (torch.bfloat16, torch.float16) and processor.builds_for_amx():
        return "a convolution of halves where the processor has AMX: torch's use it"
    return None


def check(tensor: torch.Tensor, weight: torch.Tensor, attributes: dict) -> None:
    chosen = _session.session().convolution
    require(chosen != "torch", "a convolution: the configuration leaves them to torch")
    why = None if chosen == "kiln" else why_torchs(tensor)
    require(why is None, why or "")
    require(all(p >= 0 for p in attributes["padding"]), "a negative padding")
    require(all(type(e) is int for e in weight.shape[2:]), "a convolution with a kernel of symbolic extents")


def input_gradient(b: Builder, grad: Value, weight: Value, result: tuple, attributes: dict) -> Value:
    dtype, shape = result
    return b.op("convolution_backward_input", (grad, weight), dtype, shape, extents=tuple(shape[2:]), **attributes)


def of_windows(b: Builder, name: str, operands: tuple, result: tuple, attributes: dict) -> Value:
    """An op whose result's last extents are how many windows there are, which it is told where symbols leave that open."""
    dtype, shape = result
    positions = tuple(shape[2:])
    told = {} if all(isinstance(extent, int) for extent in positions) else {"positions": positions}
    return b.op(name, operands, dtype, shape, **attributes, **told)


@row("convolution.default")
def convolution(b, node):
    attributes, transposed = attributes_of(node, 3)
    check(meta_of(node), meta_of(node.args[1]), attributes)
    x, weight, bias = b.value(node.args[0]), b.value(node.args[1]), b.optional(node.args[2])
    dtype, shape = result_type(node)
    require(dtype in FLOATING, "a convolution of integers")
    if transposed:
        out = input_gradient(b, x, weight, (dtype, shape), attributes)
    else:
        out = of_windows(b, "convolution", (x, weight), (dtype, shape), attributes)
    if bias is None:
        return out
    return b.pointwise("add", out, b.reshape(bias, (*bias.shape, *(1 for _ in shape[2:]))))


@row("convolution_backward.default")
def convolution_backward(b, node):
    attributes, transposed = attributes_of(node, 4)
    check(meta_of(node.args[0]), meta_of(node.args[2]), attributes)
    grad, x, weight = (b.value(a) for a in node.args[:3])
    require(grad.dtype in FLOATING, "a convolution of integers")
    wanted = node.args[10]
    types = [type_of(t) if is_wanted else None for t, is_wanted in zip(meta_of(node), wanted)]
    results: list = [None, None, None]
    if wanted[0] and transposed:
        results[0] = of_windows(b, "convolution", (grad, weight), types[0], attributes)
    elif wanted[0]:
        results[0] = input_gradient(b, grad, weight, types[0], attributes)
    if wanted[1]:
        dtype, shape = types[1]
        small, large = (x, grad) if transposed else (grad, x)
        results[1] = b.op("convolution_backward_weight", (small, large), dtype, shape, kernel=tuple(shape[2:]), **attributes)
    if wanted[2]:
        results[2] = b.reduce("sum", grad, [d for d in range(len(grad.shape)) if d != 1], False)
    return tuple(results)
