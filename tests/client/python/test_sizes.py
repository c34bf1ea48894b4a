"""Graphs whose extents are symbols: further sizes are right, and cost no code generation where kernels take sizes from launches."""

import pytest
import torch
from torch.nn import functional as F

import kiln

HEADS, DEPTH = 3, 16


def grow(keys, values, key, value, query):
    keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
    return keys, values, F.scaled_dot_product_attention(query, keys, values)


def cache_of(length):
    rows = [torch.randn(2, HEADS, n, DEPTH) for n in (length, length, 1, 1, 1)]
    return tuple(rows)


def rows(x, weight, bias):
    normed = F.layer_norm(x, x.shape[-1:], weight, bias)
    return F.gelu(normed) + x, normed.transpose(1, 2).contiguous(), x.flatten(0, 1).softmax(-1)


def rows_of(length, batch=3, width=40):
    return torch.randn(batch, length, width), torch.randn(width), torch.randn(width)


def padded(x, y):
    joined = torch.cat([x, y, x[:, 1:]], 1)
    return F.pad(joined, (0, 0, 2, 3)), joined.flip(1), torch.stack([x, x * 2], 2)


def padded_of(length):
    return torch.randn(2, length, 5), torch.randn(2, 4, 5)


def products(x, weight, bias):
    hidden, tokens = F.gelu(F.linear(x, weight, bias)), x.flatten(0, 1) / 24
    return hidden @ weight + x, hidden.flatten(0, 1).t() @ tokens, torch.matmul(x, x.transpose(1, 2))


def products_of(length):
    return torch.randn(3, length, 40), torch.randn(72, 40) / 8, torch.randn(72)


CASES = {"cache": (grow, cache_of), "rows": (rows, rows_of), "padded": (padded, padded_of), "products": (products, products_of)}


def compare(compiled, function, arguments):
    got, expected = compiled(*arguments), function(*arguments)
    for ours, theirs in zip(got, expected):
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_further_sizes_agree_with_eager(case):
    function, make = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for length in (7, 2, 3, 1, 64, 65, 129, 31, 200, 0, 5):
        compare(compiled, function, make(length))
    assert kiln.stats()["checks_failed"] == 0


@pytest.mark.parametrize("case", CASES)
def test_further_sizes_are_generated_once_for_a_range(case):
    function, make = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for length in (70, 83):
        compare(compiled, function, make(length))
    before = kiln.stats()
    for length in range(71, 83):
        compare(compiled, function, make(length))
    after = kiln.stats()
    assert after["programs"] >= before["programs"] + 12
    assert after["compilations"] == before["compilations"]


def test_numbers_that_are_extents_are_kilns():
    """As the gradient of a mean is divided by how many there are."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.mean((1, 2)) * x.shape[1], backend="kiln", dynamic=True)
    for length in (5, 8):
        x = torch.randn(2, length, length + 1, requires_grad=True)
        out = compiled(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        mean = x.detach().mean((1, 2))
        torch.testing.assert_close(out.detach(), mean * length)
        torch.testing.assert_close(gradient, (2 * mean * length / (length + 1)).reshape(2, 1, 1).expand(x.shape))
    assert kiln.stats()["fallback_ops"] == {}


def test_further_steps_of_training_are_generated_once_for_a_range():
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(40, 96, bias=False), torch.nn.GELU(), torch.nn.Linear(96, 40, bias=False))
    compiled = torch.compile(model, backend="kiln", dynamic=True)

    def gradients(module, x, grad):
        model.zero_grad()
        x.grad = None
        module(x).backward(grad)
        return [x.grad, *[each.grad for each in model.parameters()]]

    def step(length):
        x, grad = torch.randn(3, length, 40, requires_grad=True), torch.randn(3, length, 40)
        for ours, theirs in zip(gradients(compiled, x, grad), gradients(model, x, grad)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    for length in (70, 83):
        step(length)
    before = kiln.stats()
    for length in range(71, 83):
        step(length)
    after = kiln.stats()
    assert after["programs"] > before["programs"] and after["checks_failed"] == 0
    assert after["compilations"] == before["compilations"]
