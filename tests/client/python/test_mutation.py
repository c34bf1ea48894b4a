"""Mutation and views: what shares memory, and what is written to, as in eager."""

import alike
import pytest
import torch
import torch.nn as nn

import kiln
from kiln.torch import backend, programs

ENTRIES = {"torch.compile": lambda m: torch.compile(m, backend=backend), "kiln.compile": kiln.compile}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def as_eager(function, *inputs, **options):
    alike.check(function, list(inputs), torch.compile(function, backend=backend), **options)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.norm(x) + x)


class Convolutional(nn.Module):
    """In-place ReLUs that are captures of their own, and blocks of them."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.relu = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.blocks, self.head = nn.Sequential(Residual(8), Residual(8)), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.blocks(self.relu(self.norm(self.stem(x)))).mean((2, 3)))


@entries
def test_an_inplace_module_may_write_to_another_captures_output(entry):
    alike.check_module(Convolutional().train(), [torch.randn(2, 3, 6, 6)], entry)


class Averaging(nn.Module):
    """Reads a buffer, then updates it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 9)
        self.register_buffer("average", torch.rand(9))

    def forward(self, x):
        y = self.linear(x) - self.average
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return torch.tanh(y) * torch.relu(y + self.average)


@entries
def test_a_buffer_may_be_written_after_it_was_read(entry):
    alike.check_module(Averaging(), [torch.randn(4, 9)], entry)


@entries
def test_what_the_caller_writes_to_between_forward_and_backward_is_not_saved_unless_eager_saves_it(entry):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(5))

        def forward(self, x):
            y = x + self.bias
            return y, torch.relu(y)

    model = Model()
    compiled = entry(model)
    x = torch.randn(3, 5, requires_grad=True)
    source = x * 1
    y, z = compiled(source)
    expected = (z > 0).float()
    with torch.no_grad():
        source.add_(1)
        model.bias.mul_(-3)
    y.mul_(0)
    z.sum().backward()
    assert torch.equal(x.grad, expected) and torch.equal(model.bias.grad, expected.sum(0))


def test_the_negative_bit_is_seen():
    negative = torch.randn(8, 8, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    as_eager(lambda x: x + 1, negative)
    as_eager(lambda x: torch.fft.fft(x).conj().imag * 2 + 1, torch.randn(4, 16))
    as_eager(lambda x, y: (x * y, x.t() @ y), negative, leaf(8, 8))


@entries
def test_a_module_sees_the_negative_bit(entry):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)))
    alike.check_module(model, [torch.randn(8, 8, dtype=torch.complex64).conj().imag], entry)
    alike.check_module(model, [torch.randn(8, 8)], entry)


def test_the_negative_bit_of_a_gradient_is_seen():
    x, twin = leaf(4, 5), None
    twin = x.detach().clone().requires_grad_()
    gradient = torch.randn(4, 5, dtype=torch.complex64).conj().imag
    torch.compile(torch.tanh, backend=backend)(x).backward(gradient)
    torch.tanh(twin).backward(gradient)
    torch.testing.assert_close(x.grad, twin.grad)


def complex_leaf(*shape):
    return torch.randn(*shape, dtype=torch.complex64, requires_grad=True)


def test_the_conjugate_bit_is_seen():
    conjugated = torch.randn(6, 5, dtype=torch.complex64).conj()
    assert conjugated.is_conj()
    as_eager(lambda z: z * 2 + 1, conjugated)
    as_eager(lambda z: (z.conj(), z.t(), z.real * 2, z.imag * 2), conjugated)
    as_eager(lambda z, x: (torch.tanh(z.imag) + x, torch.view_as_real(z @ z.mH).sum(-1) @ x), conjugated, leaf(6, 5))
    assert kiln.stats()["nodes_compiled"] > 0 and kiln.stats()["fallback_ops"].keys() <= {"aten._neg_view.default", "aten.clone.default"}


def test_gradients_go_through_conjugated_values():
    as_eager(lambda z, x: (z.conj() * torch.tanh(x)).imag.exp() * 0.1, complex_leaf(4, 5), leaf(4, 5))
    as_eager(lambda z, w: torch.relu((z @ w.mH).real).sum(0), complex_leaf(4, 5), complex_leaf(3, 5))


def test_the_conjugate_bit_of_a_gradient_is_seen():
    def function(z, x):
        return z * torch.tanh(x * 2)

    z, x = complex_leaf(4, 5), leaf(4, 5)
    gradient = torch.randn(4, 5, dtype=torch.complex64).conj()
    assert gradient.is_conj()
    wanted = torch.autograd.grad(function(z, x), (z, x), gradient)
    got = torch.autograd.grad(torch.compile(function, backend=backend)(z, x), (z, x), gradient)
    for mine, eagers in zip(got, wanted):
        torch.testing.assert_close(mine, eagers)


def test_zeros_without_memory_are_zeros():
    torch.testing.assert_close(torch.compile(torch.cos, backend=backend)(torch._efficientzerotensor((4, 5))), torch.ones(4, 5))


FALLBACKS = {
    "zeros_like of what no program reads": lambda x: (torch.zeros_like(x.exp()), torch.where(x > 0, x, torch.zeros_like(x @ x))),
    "full of a shape": lambda x: x.new_full((2, 3), 5.0) + x.sum(),
    "masked": lambda x: x.masked_fill(x > 0, 0.0).sum(0),
    "a loss": lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([0, 1, -100, 3])),
    "an embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1, 1, 3]), x, padding_idx=1),
    "norms": lambda x: torch.nn.functional.layer_norm(x, (4,)) + torch.nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("function", FALLBACKS.values(), ids=FALLBACKS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_subgraph_that_cannot_be_had_runs_in_torch(function, dynamic, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not today")

    monkeypatch.setattr(programs, "create_program", refuse)
    alike.check(function, [leaf(4, 4)], torch.compile(function, backend=backend, dynamic=dynamic))


def test_outputs_alias_inputs_and_each_other():
    as_eager(lambda x: (x, x.view(-1), x[1:], x.t(), x + 1), torch.randn(4, 3))
    as_eager(lambda x: (y := x * 2, y.t(), y[0], y), leaf(4, 3))
    as_eager(lambda x: (y := x * 2, y.view(-1).add_(1), y[:, 1]), leaf(4, 3))
    as_eager(lambda x: (x.add_(1), x.t()), torch.randn(4, 3))


def test_expanded_and_overlapping_inputs():
    as_eager(lambda x: x * 2 + 1, torch.randn(4, 1).expand(4, 5))
    as_eager(lambda x: (x @ x.t(), x.sum(0)), torch.randn(20).as_strided((4, 6), (3, 1)))
    base = torch.randn(30)
    as_eager(lambda x, y: (x.mul_(2), x + y), base[:20].view(4, 5), base[5:25].view(4, 5))


@entries
@pytest.mark.parametrize("is_trained", [False, True])
def test_an_expanded_input_may_be_written_in_part(entry, is_trained):
    class Model(nn.Module):
        def forward(self, x, y):
            x[0].view(-1)[1:3].zero_()
            return torch.tanh(x) * y

    inputs = [torch.randn(4, 1).expand(4, 5), torch.randn(5, requires_grad=is_trained)]
    alike.check(Model(), inputs, entry(Model()))


def test_inplace_on_views_of_intermediates_and_inputs():
    def function(x, y):
        z = x * 1
        z[:, 1:].mul_(2)
        z[0] = y[0]
        y.t().sin_()
        return z.relu_() + y

    as_eager(function, leaf(4, 5), torch.randn(4, 5))
    as_eager(lambda x: torch.relu(x * 1).clone().mul_(2).sin_(), leaf(4, 5))


def test_losses_functional_and_in_place():
    def function(x, y):
        loss = torch.nn.functional.mse_loss(x, y, reduction="none")
        return loss.mul_(0.5).mean() + torch.nn.functional.smooth_l1_loss(x, y)

    as_eager(function, leaf(4, 5), torch.randn(4, 5))


@entries
def test_a_batch_norms_buffers_follow(entry):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.BatchNorm1d(6, affine=False))
    alike.check_module(model.train(), [torch.randn(4, 6)], entry, calls=3)
    alike.check_module(model.eval(), [torch.randn(4, 6)], entry)


@entries
def test_no_grad_and_inference_mode_between_training_steps(entry):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU())
    twin = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU())
    twin.load_state_dict(model.state_dict())
    compiled = entry(twin)
    x = torch.randn(5, 6)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            wanted, got = model(x), compiled(x)
        torch.testing.assert_close(got, wanted)
        assert got.requires_grad == wanted.requires_grad and got.is_inference() == wanted.is_inference()
        if got.requires_grad:
            got.sum().backward()
            wanted.sum().backward()
    for mine, eagers in zip(twin.parameters(), model.parameters()):
        torch.testing.assert_close(mine.grad, eagers.grad, atol=1e-5, rtol=1e-5)


@entries
def test_retain_graph_and_hooks(entry):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    twin = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 6)

    def run(call, module):
        leaf = x.clone().requires_grad_()
        leaf.register_hook(lambda g: g * 3)
        module[0].weight.register_hook(lambda g: g.neg())
        y = call(leaf)
        y.register_hook(lambda g: g.expand_as(g) + 1)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        return [leaf.grad, *(p.grad for p in module.parameters())]

    for mine, eagers in zip(run(entry(twin), twin), run(model, model)):
        torch.testing.assert_close(mine, eagers, atol=1e-5, rtol=1e-5)


def test_a_view_of_a_written_input_has_its_place_where_extents_are_symbols():
    def function(x):
        y = x.unbind(0)[-1]
        x.clamp_(-2, 2)
        return y.reshape(-1), y * 2

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for rows in (3, 4):
        alike.check(function, [torch.randn(rows, 16, 8)[..., 1::2]], compiled)


@torch.no_grad()
def test_a_counter_that_is_stepped_and_returned_is_the_buffer_itself():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * self.count, self.count

    model = Counting()
    compiled, x = torch.compile(model, backend=backend), torch.randn(3)
    for step in (1, 2, 3):
        y, count = compiled(x)
        assert count is model.count and count == step and torch.equal(y, x * step)
    assert kiln.stats()["fallback_ops"] == {}
