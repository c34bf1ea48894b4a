"""Gradients of gradients: as in eager, by both entries, and said where they cannot be had."""

import gc
import weakref

import alike
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import kiln
from conftest import OVER_DOUBLE
from kiln import regional
from kiln.torch import backend

ENTRIES = {"torch.compile": lambda m: torch.compile(m, backend=backend), "kiln.compile": kiln.compile}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Block(nn.Module):
    def __init__(self, width, between):
        super().__init__()
        self.norm, self.up, self.between, self.down = nn.LayerNorm(width), nn.Linear(width, 9), between, nn.Linear(9, width)

    def forward(self, x):
        return x + self.down(self.between(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Block(6, between) for _ in range(2))), nn.Linear(6, 3)

    def forward(self, x):
        return F.softmax(self.head(self.blocks(x)), -1)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * x  # a third of it: what eager differentiates, too


class Averaging(nn.Module):
    """Reads a buffer that it writes to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.rand(9))

    def forward(self, x):
        y = x * self.average.clone()
        self.average.mul_(0.5).add_(y.detach().mean(0))
        return torch.tanh(y) * 2


class Held(nn.Module):
    """Parts that have no gradient."""

    def forward(self, x):
        with torch.no_grad():
            scale = x.square().mean()
        return torch.sin(x) * scale + x.detach() * x


BETWEEN = {"gelu": nn.GELU(), "relu, in place": nn.ReLU(inplace=True), "dropout": nn.Dropout(0.4), "statistics": nn.BatchNorm1d(9),
           "a written buffer": Averaging(), "no_grad": Held()}  # fmt: skip


@entries
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_gradients_have_gradients(entry, between):
    alike.check_module(Stack(between).train(), [leaf(5, 6)], entry, twice=True, tolerance=1e-3)


def test_gradients_of_a_function_have_gradients():
    def as_eager(function, *inputs):
        alike.check(function, list(inputs), torch.compile(function, backend=backend), twice=True, tolerance=1e-4)

    as_eager(lambda x, y: (torch.tanh(x @ y), x.exp() * 2), leaf(4, 5), leaf(5, 3))
    as_eager(lambda x: ((y := torch.tanh(x).square()).t(), y), leaf(4, 5))
    as_eager(lambda x: (x[1:], x.sin().flatten()[2:]), leaf(4, 5))
    as_eager(lambda x: F.log_softmax(x.t()[1:], -1).sum(), torch.randn(5, 4).t().requires_grad_())


def test_extents_may_be_symbols():
    compiled = torch.compile(lambda x: torch.tanh(x) * x.shape[0], backend=backend, dynamic=True)
    for rows in (4, 7):
        alike.check(lambda x: torch.tanh(x) * x.shape[0], [leaf(rows, 5)], compiled, twice=True)


def test_a_hessian_is_eagers():
    def energy(x):
        return (torch.sin(x) * x.square().sum()).sum()

    x = torch.randn(6)
    torch.testing.assert_close(torch.autograd.functional.hessian(torch.compile(energy, backend=backend), x),
                               torch.autograd.functional.hessian(energy, x))  # fmt: skip


def test_forward_differentiation_is_eagers():
    def energy(x):
        return torch.sin(x) * x.square().sum()

    compiled, x, direction = torch.compile(energy, backend=backend), torch.randn(6), torch.randn(6)
    tangents = []
    for function in (energy, compiled):
        with forward_ad.dual_level():
            tangents.append(forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent)
    torch.testing.assert_close(*tangents)
    for transform in (torch.func.hessian, torch.func.jacfwd, torch.func.vmap):
        torch.testing.assert_close(transform(compiled)(x), transform(energy)(x))


def test_gradients_have_gradients_of_any_order():
    def derivative(function, x, order):
        y = function(x)
        for _ in range(order):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y

    x = leaf(5)
    for order in (2, 3, 4):
        compiled = torch.compile(torch.tanh, backend=backend)
        torch.testing.assert_close(derivative(compiled, x, order), derivative(torch.tanh, x, order))


class Penalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.critic(x).sum(), x, create_graph=True)
        return (gradient.norm(dim=1) - 1).square().mean()


@entries
def test_a_model_differentiates_what_is_compiled_of_it(entry):
    model, x = Penalized(), torch.randn(5, 4)
    parameters = list(model.critic.parameters())
    expected = torch.autograd.grad(model(x), parameters, allow_unused=True)
    compiled = entry(model)
    for _ in range(2):
        got = torch.autograd.grad(compiled(x), parameters, allow_unused=True, materialize_grads=True)
        for mine, eagers in zip(got, expected):
            torch.testing.assert_close(mine, torch.zeros_like(mine) if eagers is None else eagers, rtol=1e-4, atol=1e-6)


@entries
def test_a_gradient_penalty_trains(entry):
    torch.manual_seed(0)
    eager = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Softplus()) for _ in range(2)), nn.Linear(6, 1))
    twin = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Softplus()) for _ in range(2)), nn.Linear(6, 1))
    twin.load_state_dict(eager.state_dict())
    compiled, x = entry(twin), torch.randn(4, 6)

    def penalty(model):
        mixed = (x * 2).requires_grad_()
        (gradient,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
        (gradient.norm(dim=1) - 1).square().mean().backward()

    penalty(eager)
    penalty(compiled)
    for mine, eagers in zip(twin.parameters(), eager.parameters()):
        assert (mine.grad is None) == (eagers.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, eagers.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(OVER_DOUBLE, reason="nothing is kept over libkiln's double")
@pytest.mark.parametrize("between", [nn.GELU(), nn.Dropout(0.4), nn.BatchNorm1d(9)])
def test_a_capture_brings_gradients_of_gradients_along(between):
    def run():
        alike.check_module(Stack(between).train(), [leaf(5, 6)], kiln.compile, twice=True, tolerance=1e-3)

    run()
    torch._dynamo.reset()
    regional._captures.clear()
    loaded = kiln.stats()["captures_loaded"]
    run()
    assert kiln.stats()["captures_loaded"] > loaded


def test_inputs_are_let_go_by_an_ordinary_backward():
    x = leaf(4, 5)
    source = x * 1
    y = torch.compile(lambda t: torch.relu(t + 1), backend=backend)(source).sum()
    watch = weakref.ref(source)
    del source
    y.backward()
    gc.collect()
    assert watch() is None


def test_a_checkpoint_keeps_nothing_of_what_it_runs():
    compiled, watched = torch.compile(lambda t: torch.relu(t + 1), backend=backend), []

    def segment(x):
        source = x * 2
        watched.append(weakref.ref(source))
        return compiled(source)

    x = leaf(4, 5)
    y = checkpoint(segment, x, use_reentrant=False)
    assert watched[0]() is None
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * (x * 2 + 1 > 0))


def test_what_eager_saved_and_others_wrote_to_is_noticed():
    x = leaf(4, 5)
    source = x * 1
    y = torch.compile(lambda t: t * t.tanh(), backend=backend)(source)
    with torch.no_grad():
        source.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_where_the_graph_cannot_run_again_gradients_have_values_and_the_cause_is_said():
    x = leaf(4, 5)
    source = x * 1
    y = torch.compile(lambda t: torch.relu(t + 1).exp(), backend=backend)(source)
    with torch.no_grad():
        source.add_(1)  # eager's formulas do not read it
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), torch.exp(x.detach() + 1) * (x + 1 > 0))
    with pytest.raises(RuntimeError, match="its input 0, .* was modified after the forward.*torch.compiler.disable"):
        gradient.sum().backward()


def test_a_functions_own_gradients_have_none():
    x = leaf(4, 5)
    (gradient,) = torch.autograd.grad(torch.compile(lambda t: Cube.apply(t * 2), backend=backend)(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 8 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="autograd_function_apply"):
        gradient.sum().backward()


def test_an_input_may_be_written_to():
    def written(t):
        y = t.tanh()
        t.mul_(y)
        return t.sin() * y

    x = leaf(4, 5)
    results = []
    for function in (written, torch.compile(written, backend=backend)):
        source = x * 2
        (gradient,) = torch.autograd.grad((function(source) * source).sum(), x, create_graph=True)
        results.append((gradient, *torch.autograd.grad(gradient.square().sum(), x)))
    torch.testing.assert_close(*results)


def test_a_large_input_that_is_written_to_is_not_copied():
    x = leaf(300, 300)
    y = torch.compile(lambda t: t.mul_(2).sin(), backend=backend)(x * 1)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * torch.cos(2 * x.detach()))
    with pytest.raises(RuntimeError, match="it writes to an input of more than"):
        gradient.sum().backward()
