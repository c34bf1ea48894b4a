"""Convolutions of every kind: values, gradients and strides as torch has them."""

import collections
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import kiln
from capture import compiled
from conftest import OVER_DOUBLE
from kiln import _session
from kiln.torch import processor
from kiln.torch.rows.convolution import why_torchs

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def convolution(monkeypatch):
    """Where there is AMX those of halves are torch's unless that is configured."""
    monkeypatch.setenv("KILN_CONVOLUTION", "kiln")

#        name: (x, weight, stride, padding, dilation, transposed, output_padding, groups)
KINDS = {
    "a kernel of 3": ((2, 5, 9, 7), (6, 5, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "a kernel of 1": ((2, 5, 9, 7), (6, 5, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "a stride": ((2, 5, 19, 23), (20, 5, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
    "a kernel of 1 with a stride": ((2, 5, 9, 8), (6, 5, 1, 1), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    "other numbers in each dim": ((1, 4, 17, 40), (5, 4, 2, 5), [1, 3], [0, 2], [2, 1], False, [0, 0], 1),
    "a stride and a dilation": ((2, 3, 16, 16), (4, 3, 3, 3), [2, 2], [2, 2], [2, 2], False, [0, 0], 1),
    "a padding wider than the kernel": ((1, 2, 4, 4), (3, 2, 2, 2), [1, 1], [3, 2], [1, 1], False, [0, 0], 1),
    "groups": ((2, 12, 9, 10), (24, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "depthwise": ((2, 20, 9, 33), (20, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 20),
    "depthwise with a stride": ((2, 6, 15, 18), (12, 1, 5, 5), [2, 2], [2, 2], [1, 1], False, [0, 0], 6),
    "patches": ((2, 3, 16, 24), (10, 3, 4, 4), [4, 4], [0, 0], [1, 1], False, [0, 0], 1),
    "a row of samples": ((3, 4, 50), (7, 4, 5), [2], [2], [1], False, [0], 1),
    "a row of samples, far apart": ((3, 4, 50), (7, 4, 3), [1], [4], [4], False, [0], 1),
    "a volume": ((1, 3, 5, 6, 18), (4, 3, 3, 2, 3), [1, 2, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
    "transposed": ((2, 6, 7, 5), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], True, [0, 0], 1),
    "transposed with a stride": ((2, 6, 7, 5), (6, 4, 4, 4), [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    "transposed, with more beside it": ((2, 6, 7, 5), (6, 2, 3, 3), [2, 3], [1, 0], [1, 1], True, [1, 2], 2),
    "transposed, a row of samples": ((2, 6, 17), (6, 4, 5), [3], [1], [2], True, [1], 1),
    "nothing at all": ((0, 3, 8, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def tensors(kind, dtype=torch.float32):
    x, weight, *options = kind
    bias = weight[1] * options[-1] if options[3] else weight[0]
    return torch.randn(x, dtype=dtype), torch.randn(weight, dtype=dtype), torch.randn(bias, dtype=dtype), options


def is_near(got, expected, dtype):
    assert got.shape == expected.shape and got.stride() == expected.stride() and got.dtype == expected.dtype
    bound = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    scale = expected.double().abs().max().clamp(min=1).item() if expected.numel() else 1
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=bound * scale)


def check(dtype, function, *inputs):
    """Every result is right, and was computed by a program of Kiln's: nothing was left to torch."""
    got, expected, stats = compiled(function, *inputs)
    for g, e in zip(got, expected, strict=True):
        is_near(g, e, dtype)
    assert "convolution" not in str(stats["fallback_ops"]) and stats["graphs_eager"] == 0, stats


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_forward(name, dtype):
    x, weight, bias, options = tensors(KINDS[name], dtype)

    def function(x, weight, bias):
        return aten.convolution(x * 2, weight, bias, *options), torch.relu(aten.convolution(x, weight, None, *options))

    check(dtype, function, x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_gradients(name, dtype):
    x, weight, bias, options = tensors(KINDS[name], dtype)
    grad = torch.randn_like(aten.convolution(x, weight, bias, *options))

    def function(grad, x, weight):
        return aten.convolution_backward(grad, x, weight, [bias.shape[0]], *options, [True, True, True])

    check(dtype, function, grad, x, weight)


def test_one_gradient_alone():
    x, weight, _, options = tensors(KINDS["groups"])
    grad = torch.randn_like(aten.convolution(x, weight, None, *options))
    for mask in ([True, False, False], [False, True, False], [False, False, True]):

        def function(grad, x, weight):
            return aten.convolution_backward(grad, x, weight, [24], *options, mask)[mask.index(True)] * 2

        check(torch.float32, function, grad, x, weight)


@pytest.mark.parametrize("name", ["a kernel of 3", "a stride", "groups", "depthwise", "transposed with a stride", "a volume"])
def test_channels_last(name):
    x, weight, bias, options = tensors(KINDS[name])
    layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x, weight = x.to(memory_format=layout), weight.to(memory_format=layout)

    def function(x, weight, bias):
        return torch.relu(aten.convolution(x, weight, bias, *options))

    check(torch.float32, function, x, weight, bias)


def test_an_image_without_a_batch():
    conv = nn.Conv2d(3, 5, 3, padding="same")
    x = torch.randn(3, 8, 9)
    is_near(torch.compile(conv, backend="kiln")(x), conv(x), torch.float32)


def test_another_size_of_image():
    conv = torch.compile(nn.Conv2d(3, 5, 3, padding=1), backend="kiln", dynamic=True)
    for size in (8, 11, 14):
        x = torch.randn(2, 3, size, size + 1)
        is_near(conv(x), conv._orig_mod(x), torch.float32)


@pytest.mark.parametrize("make, extents", [
    (lambda: nn.Conv2d(5, 20, 3, stride=2, padding=1), (12, 15)), (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2), (9, 10)),
    (lambda: nn.Conv2d(6, 12, 5, stride=3, groups=6), (11, 12)), (lambda: nn.Conv1d(4, 7, 5, stride=2), (21,)),
    (lambda: nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1), (5, 6)),
])  # fmt: skip
def test_another_size_of_image_than_a_stride_divides(make, extents):
    layer = make()
    step = torch.compile(lambda x: layer(x).tanh(), backend="kiln", dynamic=True)
    for more in (0, 1, 3):
        x = torch.randn(2, layer.in_channels, *(extent + more for extent in extents), requires_grad=True)
        out, expected = step(x), layer(x).tanh()
        is_near(out, expected, torch.float32)
        for got, wanted in zip(*(torch.autograd.grad(y.square().sum(), (x, *layer.parameters())) for y in (out, expected))):
            is_near(got, wanted, torch.float32)
    assert kiln.stats()["fallback_ops"] == {}, kiln.explain()


def test_training():
    def model():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.GELU(),
            nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), nn.Flatten(), nn.Linear(4 * 12 * 10, 3))

    ours, theirs = model(), model()
    step = torch.compile(ours, backend="kiln")
    x = torch.randn(4, 3, 12, 10)
    for _ in range(3):
        for network, run in ((ours, step), (theirs, theirs)):
            network.zero_grad()
            run(x).square().mean().backward()
            with torch.no_grad():
                for p in network.parameters():
                    p -= 0.1 * p.grad
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def forward_and_gradients(dtype):
    """What stays in torch of a convolution and its gradients."""
    x, weight = torch.randn(1, 3, 8, 9, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype)
    options = [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def function(x, weight):
        out = torch.relu(aten.convolution(x, weight, None, *options)) + 1
        return out, *(2 * g for g in aten.convolution_backward(out, x, weight, None, *options, [True, True, False])[:2])

    got, expected, stats = compiled(function, x, weight)
    for g, e in zip(got, expected, strict=True):
        is_near(g, e, dtype)
    return {name for name in stats["fallback_ops"] if "convolution" in name}


OF_TORCH = {"aten.convolution.default", "aten.convolution_backward.default"}


@pytest.mark.parametrize("has_amx", [False, True])
@pytest.mark.parametrize("chosen", ["auto", "kiln", "torch", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_who_computes_them(monkeypatch, has_amx, chosen, dtype):
    monkeypatch.setattr(processor, "has", lambda feature: has_amx and feature == "amx_tile")
    if chosen is None:
        monkeypatch.delenv("KILN_CONVOLUTION")
    else:
        monkeypatch.setenv("KILN_CONVOLUTION", chosen)
    is_half = dtype in (torch.bfloat16, torch.float16)
    is_torchs = chosen == "torch" or (chosen != "kiln" and is_half and has_amx)
    assert forward_and_gradients(dtype) == (OF_TORCH if is_torchs else set())


@pytest.mark.skipif(OVER_DOUBLE, reason="nothing is built over libkiln's double")
@pytest.mark.parametrize("here", [False, True])
def test_who_computes_them_where_the_graph_is_built_for(monkeypatch, here):
    """Not here: the processor of the target decides."""
    monkeypatch.setenv("KILN_CONVOLUTION", "auto")
    monkeypatch.setattr(processor, "_capabilities", lambda: {"amx_tile": here})
    targets = {name: collections.Counter() for name in ("x86-64-v3", "x86-64-v4-bf16", "x86-64-v4-amx")}
    monkeypatch.setattr(_session.session(), "targets", targets)
    forward_and_gradients(torch.bfloat16)
    assert [found["nodes_left"] for found in targets.values()] == [0, 0, len(OF_TORCH)]


def test_those_of_a_graph_that_is_built_for_a_device_are_torchs():
    for target, is_device in (("sm_90a", True), ("pvc", True), ("x86-64-v3", False)):
        with processor.of_target(target):
            assert ("on a device" in (why_torchs(torch.ones(1)) or "")) == is_device


#  x, weight, stride, padding, groups: ordinary images, of which oneDNN's kernels for AVX-512 have a fixed order of sums
SAME_ORDER = [((2, 3, 40, 36), (16, 3, 3, 3), 2, 1, 1), ((2, 40, 12, 12), (24, 40, 3, 3), 1, 1, 1), ((3, 20, 15, 15), (32, 20, 5, 5), 2, 2, 1),
              ((2, 64, 12, 12), (64, 16, 3, 3), 1, 1, 4), ((2, 36, 15, 17), (36, 1, 3, 3), 1, 1, 36), ((2, 24, 18, 18), (24, 1, 3, 3), 2, 1, 24),
              ((2, 150, 9, 9), (40, 150, 1, 1), 1, 0, 1)]


@pytest.mark.skipif(OVER_DOUBLE, reason="nothing is computed over libkiln's double")
@pytest.mark.skipif(not processor.has("avx512_f"), reason="other processors have other kernels in torch, with another order of sums")
@pytest.mark.parametrize("x, weight, stride, padding, groups", SAME_ORDER, ids=str)
def test_the_same_bits_as_eager(x, weight, stride, padding, groups):
    """So ReLUs behind find the same signs, and a network's gradients are as eager's also where it is ill-conditioned."""
    def function(x, weight):
        return torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)

    got, expected, _ = compiled(function, torch.randn(x), torch.randn(weight))
    assert torch.equal(got[0], expected[0])


@pytest.mark.skipif(OVER_DOUBLE, reason="nothing is kept over libkiln's double")
def test_another_process_finds_the_kernels(tmp_path):
    script = """
import torch, kiln
torch.manual_seed(0)
conv = torch.nn.Conv2d(6, 8, 3, stride=2, padding=1)
x = torch.randn(2, 6, 13, 11, requires_grad=True)
torch.compile(conv, backend="kiln")(x).square().sum().backward()
stats = kiln.stats()
print(stats["misses"], stats["hits_mapped"] > 0, "convolution" in str(stats["fallback_ops"]), x.grad.double().sum().item())
"""
    environment = dict(os.environ, KILN_CACHE_DIR=str(tmp_path))
    first, second = (
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2))
    assert int(first[0]) > 0 and second[:3] == ["0", "True", "False"] and first[3] == second[3]
