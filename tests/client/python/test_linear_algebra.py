"""Triangular systems: of few unknowns a program solves them, as exactly as LAPACK; of more, torch does."""

import pytest
import torch

import kiln
from kiln.torch.rows.linear_algebra import MAX_UNKNOWNS

COMPILERS = {"torch.compile": lambda f, **options: torch.compile(f, backend="kiln", fullgraph=True, **options), "kiln.compile": kiln.compile}
SIZES = range(1, MAX_UNKNOWNS + 1)


def matrices(*shape, dtype=torch.float64):
    """Well-conditioned, and what is not read of them is not 0."""
    return torch.randn(*shape, shape[-1], dtype=dtype) + 3 * torch.eye(shape[-1], dtype=dtype)


def factors(*shape, dtype=torch.float64):
    x = matrices(*shape, dtype=dtype)
    return torch.linalg.cholesky(x @ x.mT)


def run(function, *operands):
    """(results, gradients)."""
    leaves = [t.detach().clone().requires_grad_() for t in operands]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in results)
    return *(t.detach() for t in results), *torch.autograd.grad(loss, leaves)


def is_kilns(compiled, function, *operands, tolerance=1e-11):
    """Whether the op is, in a graph that gives what the function gives."""
    counts = kiln.stats()
    for a, b in zip(run(compiled, *operands), run(function, *operands), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))
    made = {name: kiln.stats()[name] - counts[name] for name in ("nodes_compiled", "nodes_fallback", "checks_failed")}
    assert made["checks_failed"] == 0
    return made["nodes_compiled"] > 0 and made["nodes_fallback"] == 0


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("unknowns", SIZES)
@pytest.mark.parametrize("upper, left, unitriangular", [(False, True, False), (True, True, True), (True, False, False), (False, False, True)])
def test_triangular_systems_and_their_gradients_are_torchs(upper, left, unitriangular, unknowns, compiler):
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, right, upper=upper, left=left, unitriangular=unitriangular)

    right = torch.randn(3, unknowns, 5) if left else torch.randn(3, 5, unknowns)
    assert is_kilns(COMPILERS[compiler](function), function, matrices(3, unknowns), right.double())


@pytest.mark.parametrize("shapes", [((), ()), ((), (4,)), ((2, 1), (3,)), ((65,), (65,))], ids=str)
@pytest.mark.parametrize("unitriangular", [False, True])
def test_batches_are_broadcast(shapes, unitriangular):
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix.mT, right, upper=True, unitriangular=unitriangular)

    outer, of_right = shapes
    assert is_kilns(COMPILERS["torch.compile"](function), function, matrices(*outer, 3), torch.randn(*of_right, 3, 2).double())


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unknowns", SIZES)
def test_solves_by_cholesky_factors_are_torchs(unknowns, upper):
    def function(factor, right):
        return torch.cholesky_solve(right, factor, upper), torch.cholesky_inverse(factor, upper)

    factor = factors(4, unknowns)
    assert is_kilns(COMPILERS["torch.compile"](function), function, factor.mT if upper else factor, torch.randn(4, unknowns, 3).double())


def test_a_factor_that_torch_makes_has_a_gradient_of_programs():
    def function(x, right):
        return torch.cholesky_solve(right, torch.linalg.cholesky(x @ x.mT + torch.eye(4, dtype=x.dtype)))

    counts = kiln.stats()["nodes_fallback"]
    is_kilns(COMPILERS["torch.compile"](function), function, matrices(7, 4), torch.randn(7, 4, 2).double(), tolerance=1e-10)
    assert 1 <= kiln.stats()["nodes_fallback"] - counts <= 3  # the factor, and that it could be had


def test_residuals_of_ill_conditioned_systems_are_as_small_as_lapacks():
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, right, upper=False)

    matrix = torch.randn(500, MAX_UNKNOWNS, MAX_UNKNOWNS).tril()
    matrix = matrix * torch.logspace(0, -4, MAX_UNKNOWNS).unsqueeze(1)
    right, compiled = torch.randn(500, MAX_UNKNOWNS, 3), COMPILERS["torch.compile"](function)

    def residuals(x):
        difference = (matrix.double() @ x.double() - right).flatten(1).norm(dim=1)
        return difference / (matrix.flatten(1).norm(dim=1) * x.flatten(1).norm(dim=1))

    mine, theirs = (residuals(f(matrix, right)) for f in (compiled, function))
    assert torch.linalg.cond(matrix.double()).median() > 1e4
    assert mine.max() <= 4 * theirs.max() and mine.mean() <= 2 * theirs.mean()


def test_singular_systems_have_no_finite_solution_where_lapacks_have_none():
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, right, upper=False)

    matrix = matrices(6, 3)
    matrix[::2, 1, 1] = 0
    right = torch.randn(6, 3, 2).double()
    got, wanted = COMPILERS["torch.compile"](function)(matrix, right), function(matrix, right)
    assert torch.equal(got.isfinite(), wanted.isfinite()) and not wanted.isfinite().all()
    torch.testing.assert_close(got[1::2], wanted[1::2])


def test_of_more_unknowns_torch_solves():
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, torch.tanh(right), upper=False) + 1

    assert not is_kilns(COMPILERS["torch.compile"](function), function, matrices(2, MAX_UNKNOWNS + 1), torch.randn(2, MAX_UNKNOWNS + 1, 3).double())


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 2)], ids=str)
def test_systems_of_nothing(shape):
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, right, upper=False), right.sum() + 1

    operands = torch.randn(shape[0], shape[1], shape[1]), torch.randn(shape)
    for a, b in zip(COMPILERS["torch.compile"](function)(*operands), function(*operands), strict=True):
        assert torch.equal(a, b)


def test_batches_that_change_take_no_graph_each():
    def function(matrix, right):
        return torch.linalg.solve_triangular(matrix, right, upper=False)

    compiled, made = COMPILERS["torch.compile"](function, dynamic=True), []
    for batch, columns in ((5, 3), (9, 2), (40, 7)):
        matrix = matrices(batch, 4)
        torch._dynamo.mark_static(matrix, 1)
        torch._dynamo.mark_static(matrix, 2)
        right = torch.randn(batch, 4, columns).double()
        torch._dynamo.mark_static(right, 1)
        torch.testing.assert_close(compiled(matrix, right), function(matrix, right))
        made.append((kiln.stats()["graphs"], kiln.stats()["nodes_fallback"]))
    assert made == [(made[0][0], 0)] * 3
