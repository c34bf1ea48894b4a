"""Batch norm in training: values, statistics and gradients as torch has them, its running statistics to the bit."""

import copy

import pytest
import torch
from torch import nn

import kiln
from capture import assert_close, compiled

aten = torch.ops.aten

#        name: (shape, order of dims in memory)
INPUTS = {
    "a series": ((3, 5, 33), (0, 1, 2)),
    "images": ((3, 5, 9, 7), (0, 1, 2, 3)),
    "a volume": ((2, 3, 4, 5, 3), (0, 1, 2, 3, 4)),
    "one channel": ((8, 1, 4, 4), (0, 1, 2, 3)),
    "channels last": ((3, 5, 9, 7), (0, 2, 3, 1)),
    "a volume, channels last": ((2, 3, 4, 5, 3), (0, 2, 3, 4, 1)),
    "rows": ((12, 5), (0, 1)),
    "images of one pixel": ((12, 5, 1, 1), (0, 1, 2, 3)),
}


def of_order(shape, order, dtype=torch.float32):
    """Random numbers that lie in memory in this order of dims, far from 0."""
    return torch.randn([shape[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(shape))]) * 2 + 3


def tensors(name, dtype):
    """An input, a gradient, weights, biases and running statistics."""
    shape, order = INPUTS[name]
    parameters = [torch.randn(shape[1], dtype=dtype) for _ in range(3)]
    return [*(of_order(shape, order, dtype) for _ in range(2)), *parameters, torch.rand(shape[1], dtype=dtype) + 0.1]


def forward_and_backward(x, grad, weight, bias, mean, variance):
    out, saved, rstd, *running = aten._native_batch_norm_legit_functional(x, weight, bias, mean, variance, True, 0.3, 1e-3)
    gradients = aten.native_batch_norm_backward(grad, x, weight, *running, saved, rstd, True, 1e-3, [True, True, True])
    return out, saved, rstd, *running, *gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_training(name, dtype):
    got, expected, stats = compiled(forward_and_backward, *tensors(name, dtype))
    assert_close(got, expected, factor=4)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0


def test_a_gradient_of_another_layout():
    x, _, weight, bias, mean, variance = tensors("images", torch.float32)
    grad = torch.randn(3, 5, 1, 1).expand(x.shape)  # as that of a mean is
    got, expected, stats = compiled(forward_and_backward, x, grad, weight, bias, mean, variance)
    assert_close(got, expected, factor=4)
    assert stats["fallback_ops"] == {}


def test_without_parameters_and_without_eps():
    """One channel is the same everywhere: its reciprocal deviation is 0, not infinite."""

    def function(x, grad):
        out, mean, rstd = aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 0)
        return out, mean, rstd, *aten.native_batch_norm_backward(grad, x, None, None, None, mean, rstd, True, 0, [True, False, True])

    x = torch.cat([torch.randn(4, 2, 6), torch.full((4, 1, 6), 0.75)], 1)
    got, expected, stats = compiled(function, x, torch.randn(4, 3, 6))
    assert_close(got, expected, factor=4)
    assert got[2][2] == 0 and stats["fallback_ops"] == {}


def test_gradients_in_inference():
    def function(x, grad, weight, bias, mean, variance):
        both = [aten.native_batch_norm_backward(grad, x, w, mean, variance, None, None, False, 1e-3, [True, w is not None, False]) for w in (weight, None)]
        return *both[0], both[1][0]

    got, expected, stats = compiled(function, *tensors("images", torch.float32))
    assert_close(got, expected, factor=4)
    assert stats["fallback_ops"] == {}


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_statistics_of_images_are_torchs_to_the_bit(is_dynamic):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.BatchNorm2d(7), nn.ReLU(), nn.BatchNorm2d(7, momentum=0.3))
    theirs = copy.deepcopy(ours)
    step = torch.compile(ours, backend="kiln", dynamic=is_dynamic)
    for size in (9, 12, 10) if is_dynamic else (9, 9, 9):
        x = torch.randn(4, 7, size, size) * 3 + 5
        assert torch.equal(step(x), theirs(x))
    assert "batch_norm" not in str(kiln.stats()["fallback_ops"])
    for (name, buffer), expected in zip(ours.named_buffers(), theirs.buffers()):
        assert torch.equal(buffer, expected), name


@pytest.mark.parametrize("image", [(), (1, 1)], ids=str)
def test_running_statistics_of_a_few_rows_are_torchs_to_the_bit(image):
    def statistics(x, mean, variance):
        return aten._native_batch_norm_legit_functional(x, None, None, mean, variance, True, 0.3, 1e-3)[3:]

    for rows in (2, 3, 6):
        got, expected, _ = compiled(statistics, torch.randn(rows, 5, *image) * 3 + 5, torch.randn(5), torch.rand(5))
        assert all(map(torch.equal, got, expected))


STAYS = {
    "halves": ((3, 5, 9, 7), (0, 1, 2, 3), torch.bfloat16),
    "another order": ((3, 5, 9, 7), (1, 3, 0, 2), torch.float32),
    "a series, channels last": ((3, 5, 9), (0, 2, 1), torch.float32),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_in_torch(name):
    x = of_order(*STAYS[name])
    got, expected, stats = compiled(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0] * 2, x)
    assert torch.equal(got[0], expected[0])
    assert "batch_norm" in str(stats["fallback_ops"])
