"""Symbols of extents are found in what a call gives, whatever expressions its tensors show them in."""

import pytest
import sympy
import torch
from torch.nn import functional
from torch.utils._sympy.functions import FloorDiv, Max, Mod, PythonMod

import kiln
from kiln.torch import backend
from kiln.torch.binding import Binding
from kiln.torch.text import Unsupported

A, B = sympy.symbols("s0 s1", integer=True, positive=True)


def bound(shapes, sizes=(), dims=(), arguments=()):
    """The values of A and B for these arguments."""
    layouts = [("f32", tuple(shape), (1,) * len(shape)) for shape in shapes]
    binding = Binding([A, B], list(dims or (A, B)), layouts, list(sizes))
    return binding.values(binding.read(list(arguments)))


@pytest.mark.parametrize("shapes, sizes", [
    ([(A, B)], []), ([(2 * A, B + 3)], []), ([(A + B,), (4, B)], []), ([(A + B, A - B)], []), ([(2 * A + B, A + B)], []),
    ([(A * B, 5), (A,)], []), ([(A * B + A,), (4 * B,)], []), ([(A, 4)], [B]), ([(A + B,)], [A]), ([], [A + B, 3 * A]),
])  # fmt: skip
def test_symbols_are_found_alone_in_sums_in_products_and_in_sizes(shapes, sizes):
    for values in ((7, 3), (12, 5), (1, 1)):
        by_symbol = dict(zip((A, B), values))
        number = lambda dim: int(sympy.sympify(dim).subs(by_symbol))  # noqa: E731
        arguments = [torch.empty([number(d) for d in shape]) for shape in shapes] + [number(size) for size in sizes]
        assert bound(shapes, sizes, arguments=arguments) == values


QUARTERS, REST = FloorDiv(A, 4), PythonMod(-A, 4)


@pytest.mark.parametrize("symbols, shapes, sizes", [
    ([A, QUARTERS], [(A, 5)], []), ([QUARTERS, B], [(4 * QUARTERS, B)], []), ([QUARTERS], [], [A]), ([A, REST], [(A + REST,)], [A]),
    ([A, REST, FloorDiv(A + REST, 4)], [(2 * A, 3)], []), ([Max(A, B), Mod(A, B)], [(A,), (B,)], []),
])  # fmt: skip
def test_quotients_and_remainders_are_symbols_of_their_own(symbols, shapes, sizes):
    for values in ((7, 3), (12, 5), (1, 1)):
        number = lambda dim: int(sympy.sympify(dim).subs(dict(zip((A, B), values))))  # noqa: E731
        layouts = [("f32", tuple(shape), (1,) * len(shape)) for shape in shapes]
        binding = Binding(symbols, symbols, layouts, sizes)
        arguments = [torch.empty([number(d) for d in shape]) for shape in shapes] + [number(size) for size in sizes]
        assert binding.values(binding.read(arguments)) == tuple(map(number, symbols))


def test_numbers_that_no_symbols_have_are_refused():
    binding = Binding([A], [A], [("f32", (2 * A, 4), (4, 1))], [])
    assert binding.values((6,)) == (3,)
    with pytest.raises(ValueError, match="have no values"):
        binding.values((7,))


def test_of_symbols_that_nothing_needs_apart_any_of_their_sum_will_do():
    a, b = bound([(A + B, 4)], dims=[A + B, 3 * A + 3 * B + 1], arguments=[torch.empty(9, 4)])
    assert a + b == 9
    with pytest.raises(Unsupported, match="no input says the extent s0"):
        bound([(A + B, 4)], dims=[A + B, A])
    with pytest.raises(Unsupported):  # 9 = 2*s0 + 3*s1 has no solution to be had by division
        bound([(2 * A + 3 * B,)], dims=[2 * A + 3 * B])


def run(function, calls):
    """Agrees with eager, gradients too where a call's tensors have them, in one graph; what Kiln left to torch."""
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for arguments in calls:
        results = []
        for f in (compiled, function):
            mine = [a.clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in arguments]
            leaves = [a for a in mine if isinstance(a, torch.Tensor) and a.requires_grad]
            out = f(*mine)
            results.append([out.detach(), *(torch.autograd.grad(out.square().sum(), leaves) if leaves else [])])
        for got, expected in zip(*results):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not [e for e in kiln.explain() if str(e.get("node", "")).startswith("a subgraph")], kiln.explain()
    return kiln.stats()["fallback_ops"]


def between(x):
    return torch.special.bessel_j0(x)  # Kiln has none: what comes of it is an input of the next subgraph


LENGTHS = (3, 5, 7)


@pytest.mark.parametrize("function, columns", [
    (lambda x: between(torch.cat([x, x])).exp() * 2, lambda n: 4), (lambda x: between(x.flatten(0, 1)).exp() + 1, lambda n: 2 * n),
])  # fmt: skip
def test_an_input_with_an_expression_for_an_extent_is_compiled(function, columns):
    calls = [(torch.randn(n, columns(n)),) for n in LENGTHS]
    assert run(function, calls) == {"aten.special_bessel_j0.default": 1}


def test_gradients_of_a_sum_of_extents_are_compiled():
    leaf = lambda *shape: torch.randn(*shape, requires_grad=True)  # noqa: E731
    calls = [(leaf(n, 4), leaf(n + 1, 4), leaf(4, 5)) for n in LENGTHS]
    assert run(lambda x, y, w: torch.cat([x, y]).matmul(w).relu(), calls) == {}


@pytest.mark.parametrize("function", [
    lambda x, n: torch.ones(n, 4) + x, lambda x, n: x.expand(n, 4) * 2, lambda x, n: (torch.arange(n) * 2).sum() + x,
    lambda x, n: torch.ones(n + 1, 4).sum(0) * x,
])  # fmt: skip
def test_a_size_that_is_an_argument_is_passed_on(function):
    assert run(function, [(torch.randn(4), n) for n in LENGTHS]) == {}


def windowed(x, w):
    """Rows are added until windows of four are full, and taken off again."""
    batch, length, width = x.shape
    whole = functional.pad(x, (0, 0, 0, -length % 4))
    windows = whole.view(batch * (whole.shape[1] // 4), 4, width)
    return (windows @ w).softmax(1).view(batch, -1, 5)[:, :length]


def test_windows_of_a_length_that_is_made_up_to_a_multiple_are_compiled():
    leaf = lambda *shape: torch.randn(*shape, requires_grad=True)  # noqa: E731
    assert run(windowed, [(leaf(2, n, 3), leaf(3, 5)) for n in (5, 8, 14)]) == {}


def test_half_of_an_extent_is_compiled():
    assert run(lambda x: x[: x.shape[0] // 2].exp().sum(0), [(torch.randn(n, 4),) for n in (6, 9, 15)]) == {}


IMAGES = ((2, 3, 8, 9), (2, 3, 11, 10), (3, 3, 7, 13))


@pytest.mark.parametrize("pool", [
    lambda x: functional.max_pool2d(x.sin(), 2).exp(), lambda x: functional.max_pool2d(x.sin(), 3, 2, 1),
    lambda x: functional.max_pool1d(x.flatten(2).sin(), 3, 2), lambda x: functional.max_pool3d(x[:, None].cos(), (1, 2, 2)),
])  # fmt: skip
def test_a_pool_over_sizes_that_a_stride_does_not_divide_is_compiled(pool):
    assert run(pool, [(torch.randn(*shape, requires_grad=True),) for shape in IMAGES]) == {}


@pytest.mark.parametrize("counts_padding", [False, True])
def test_averages_over_sizes_that_a_stride_does_not_divide_are_compiled(counts_padding):
    average = lambda x: functional.avg_pool2d(x.sin(), 3, 2, 1, count_include_pad=counts_padding)  # noqa: E731
    assert run(average, [(torch.randn(*shape),) for shape in IMAGES]) == {}
