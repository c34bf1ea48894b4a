"""Complex numbers as pairs of real ones (kiln/torch/complex_numbers.py): values, gradients, and that no complex tensor is met
between two nodes of Kiln's."""

import math

import alike
import pytest
import torch
from complex_models import Mixing, Operator, Rotary, rotary
from conftest import OVER_DOUBLE
from processes import report_of

import kiln
from capture import assert_close, captured, compiled
from kiln.torch import backend, programs
from kiln.torch.complex_numbers import put_pairs
from kiln.torch.rows.complex_rules import RULES
from kiln.torch.pairs import as_complex, as_pairs, each_in_pairs, in_pairs
from kiln.torch.rows.complex_numbers import FORMULAS, PRODUCTS

aten = torch.ops.aten
FOURIER = {"aten._fft_r2c.default", "aten._fft_c2r.default", "aten._fft_c2c.default"}


def c64(*shape):
    return torch.randn(*shape, dtype=torch.complex64)


def f32(*shape):
    return torch.randn(*shape)


def i64(*shape, below):
    return torch.randint(0, below, shape)


def each(*names):
    return lambda *tensors: tuple(getattr(aten, name)(*tensors) for name in names)


X, Y = (3, 1, 5), (4, 1)  # broadcast to (3, 4, 5)
CASES = {
    "sums": (lambda x, y: (x + y, x - y, aten.rsub(x, y), aten.add(x, y, alpha=2), aten.sub(x, y, alpha=-0.5), x + 2, x - 3j, -x), lambda: [c64(*X), c64(*Y)]),
    "products": (lambda x, y: (x * y, x / y, x * 2, x / 3, x * 2j, 1j / x, aten.addcmul(x, y, y, value=2), aten.addcdiv(x, y, y)), lambda: [c64(*X), c64(*Y)]),
    "real operands": (lambda x, y, n: (x + y, y * x, x / y, y / x, x * n, y - x, y * 2j, torch.where(y > 0, x, y)), lambda: [c64(*X), f32(*Y), i64(*Y, below=9)]),
    "functions": (each(*"abs angle sgn exp log sqrt rsqrt reciprocal sin cos tan sinh cosh tanh exp2 expm1 log2 log10 sigmoid square".split()), lambda: [c64(7, 5)]),
    "powers": (lambda x, y: (*(x**e for e in (0, 1, 2, 3, 5, -1, -2, 0.5, 1.5, 1 + 2j)), x**y, 2.0**x, x ** y.real), lambda: [c64(*X), c64(*Y)]),
    "comparisons": (lambda x, y: (x == y, x != y, x == 1, x.isnan(), x.isinf(), (x * 0).any(), x.all(1)), lambda: [torch.complex(*(i64(40, below=2).float() for _ in "ab")).view(8, 5), torch.complex(*(i64(40, below=2).float() for _ in "ab")).view(8, 5)]),
    "parts": (lambda x, y: (x.real + 1, x.imag * 2, torch.view_as_real(x * 2), torch.complex(x.real, x.imag * 3), torch.polar(y.abs(), y), torch.view_as_complex(torch.view_as_real(x) + 1), x.conj() * 2, aten.conj_physical(x)), lambda: [c64(3, 5), f32(4)]),
    "matrices": (lambda a, b, c, v: (a @ b, aten.addmm(c, a, b), aten.addmm(c[0], a, b, beta=0.5, alpha=2j), a @ v, torch.dot(v, v), torch.vdot(v, v), a @ a.mH, torch.outer(v, v)), lambda: [c64(5, 7), c64(7, 3), c64(5, 3), c64(7)]),
    "batched matrices": (lambda a, b, c: (a @ b, aten.baddbmm(c, a, b, beta=2, alpha=0.5), a.mT @ a.conj(), torch.einsum("bij,bjk,bik->bi", a, b, c)), lambda: [c64(2, 5, 7), c64(2, 7, 3), c64(2, 5, 3)]),
    "reductions": (lambda x: (x.sum(), x.sum((0, -1)), x.sum(1, True), x.mean(), x.mean(-1), x.cumsum(1), x.var(1), x.std(), x.norm(), torch.linalg.vector_norm(x, 1, (0, 2)), x[0, 0, 0].sum()), lambda: [c64(3, 4, 5)]),
    "views": (lambda x: tuple(y * 2 for y in (x.view(4, 6), x.unsqueeze(-1), x[:, :1].squeeze(1), x[1:, ::2, -3:], x.permute(2, 0, 1), x.mT, x.t() if x.dim() < 3 else x[0].t(), x.select(-1, 2), x[None].expand(3, 2, 3, 4), x.diagonal(0, 0, 2), x.unfold(2, 2, 1))), lambda: [c64(2, 3, 4)]),
    "pieces": (lambda x: tuple(p * 2 for p in (*x.split(3, -1), *x.split_with_sizes([1, 6], 1), *x.unbind(0), *x.chunk(2))), lambda: [c64(4, 7)]),
    "joined": (lambda x, y: (torch.cat([x, y, x], -1), torch.stack([x, x * 2], -1), torch.cat([torch.empty(0, dtype=x.dtype), x])), lambda: [c64(3, 2), f32(3, 4)]),
    "rearranged": (lambda x: (x.flip(0, -1), x.roll((1, -2), (0, -1)), x.repeat(2, 1, 2), torch.nn.functional.pad(x, (1, 2, 0, 1)), x.tril(), x.triu(1), x.mT.contiguous(), x.rot90(), x.clone()), lambda: [c64(2, 3, 4)]),
    "elements": (lambda x, i, j: (x[i], x[:, i], x[i, j], x.index_select(1, j[0]), x.gather(1, j), aten.index_put(x, [i[:, 0]], x[0]), aten.index_put(x, [i, j], x[0, 0], True), x.scatter_add(0, i, x[:3, :2])), lambda: [c64(4, 4), i64(3, 2, below=4), i64(3, 2, below=4)]),
    "put into": (lambda x, y: (aten.select_scatter(x, y, -1, 2), aten.slice_scatter(x, x[:2] * 2, 0, 1, 3), aten.select_backward(y, [3, 5], -1, 2), aten.slice_backward(x, [3, 9], 1, 2, 7, 1), aten.diagonal_scatter(x, y * 2)), lambda: [c64(3, 5), c64(3)]),
    "numbers": (lambda x: (torch.zeros_like(x) + x, aten.full([2, 3], 1 - 2j), x.new_ones(3), torch.ones_like(x), torch.full_like(x, 2.5), aten.zeros([4], dtype=x.dtype), x.masked_fill(x.real > 0, 3 - 1j), torch.where(x.real > 0, x, 0)), lambda: [c64(3, 4)]),
    "other dtypes": (lambda x, y: (aten._to_copy(x, dtype=torch.complex128), y.to(x.dtype), aten._to_copy(x, dtype=torch.float64), aten._to_copy(x, dtype=torch.bool)), lambda: [c64(3, 4), f32(5)]),
    "permuted operands": (lambda x, y: (x.t() * y, x.t() + 1, (x * 2).t() @ y.t(), torch.exp(x.t())), lambda: [c64(3, 4), c64(4, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_ops_say_what_torch_computes(name, dtype):
    function, inputs = CASES[name]
    real = torch.float32 if dtype is torch.complex64 else torch.float64
    values = [x.to(dtype) if x.is_complex() else x.to(real) if x.is_floating_point() else x for x in inputs()]
    got, expected, stats = compiled(function, *values)
    assert_close(got, expected, factor=8)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0


def test_every_formula_has_a_case():
    made = set()
    for function, inputs in CASES.values():
        made |= {n.target for n in captured(lambda *x, function=function: function(*x), *inputs()).graph.nodes}
    scalars = {op for op in FORMULAS if op._overloadname == "Scalar" and op is not aten.pow.Scalar}
    assert {*FORMULAS, *PRODUCTS} - made - scalars == set()


SPECIAL = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan, 1e30, -3e38, 1e-30]


@pytest.mark.parametrize("name", "mul div eq ne abs angle reciprocal exp log sqrt rsqrt isnan isinf".split())
def test_parts_that_are_no_numbers_are_as_torchs(name):
    z = torch.tensor([complex(a, b) for a in SPECIAL for b in SPECIAL if name != "exp" or abs(b) < 1e9])
    operands = [z.repeat_interleave(len(z)), z.repeat(len(z))] if name in ("mul", "div", "eq", "ne") else [z]
    got, expected, _ = compiled(lambda *x: getattr(aten, name)(*x), *operands)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("entry", [lambda f: torch.compile(f, backend=backend), kiln.compile], ids=["torch.compile", "kiln.compile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotary_embeddings_are_in_kiln(entry, dtype):
    x, angles = torch.randn(3, 7, 5, 14).to(dtype).requires_grad_(), torch.randn(7, 7, requires_grad=True)
    alike.check(rotary, [x, angles], entry(rotary), tolerance=1e-2 if dtype is torch.bfloat16 else 1e-5)
    assert kiln.stats()["fallback_ops"] == {} and kiln.stats()["nodes_compiled"] > 10


@pytest.mark.parametrize("entry", [lambda m: torch.compile(m, backend=backend), kiln.compile], ids=["torch.compile", "kiln.compile"])
@pytest.mark.parametrize("make", [lambda: (Rotary(), torch.randn(2, 9, 30)), lambda: (Mixing(11), torch.randn(3, 7, 11)),
                                  lambda: (Operator(5, 4), torch.randn(2, 5, 22))], ids=["rotary", "FNet", "FNO"])  # fmt: skip
def test_a_step_leaves_only_fourier_transforms_to_torch(make, entry):
    model, x = make()
    steps = []
    for run in (entry(model), model):
        model.zero_grad()
        inputs = x.clone().requires_grad_()
        out = run(inputs)
        out.square().sum().backward()
        steps.append([out.detach(), inputs.grad, *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-4)
    assert kiln.stats()["fallback_ops"].keys() <= FOURIER and kiln.stats()["checks_failed"] == 0


def test_gradients_of_ops():
    def function(x, y, w):
        z = torch.exp(x / 3) * y.conj() / (2 + torch.tanh(y)) + torch.polar(w, w * 2)
        z = torch.cat([z.abs() * z, torch.sqrt(z[..., :2]), z.pow(2).flip(-1)], -1)
        return (z @ z.mH).angle().sin().sum(-1), z.real.mean(), torch.view_as_real(z[:, 1:]).var(), (z.sgn() * 1j).imag

    inputs = [c64(4, 5).requires_grad_(), c64(5).requires_grad_(), torch.rand(4, 1).requires_grad_()]
    alike.check(function, inputs, torch.compile(function, backend=backend))
    assert kiln.stats()["fallback_ops"] == {}


def test_lengths_that_change_are_in_kiln():
    model = Rotary()
    run = torch.compile(model, backend=backend, dynamic=True)
    for length in (9, 14, 31):
        x = torch.randn(2, length, 30)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert kiln.stats()["fallback_ops"] == {} and kiln.stats()["graphs_eager"] == 0


def test_no_complex_tensor_is_between_nodes_of_kilns():
    gm = captured(lambda x, y: (torch.exp(x * y).abs(), torch.fft.fft(x * y) * y), c64(4), c64(4))
    put_pairs(gm.graph)
    gm.graph.lint()
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"].count(aten._fft_c2c.default) == 1
    for node in gm.graph.find_nodes(op="call_function", target=as_complex):
        assert all(user.target in (aten._fft_c2c.default, "output") for user in node.users)
    before = str(gm.graph)
    put_pairs(gm.graph)
    assert str(gm.graph) == before


def test_what_no_rule_says_stays_in_torch_alone():
    assert aten.asin.default not in RULES
    got, expected, stats = compiled(lambda x: torch.exp(torch.asin(x * 2)) + 1, c64(3, 4))
    assert_close(got, expected, factor=8)
    assert stats["fallback_ops"] == {"aten.asin.default": 1} and stats["nodes_compiled"] >= 3


class Refused(Exception):
    code_name, op = "unimplemented", ""


def test_an_op_that_cannot_be_built_is_torchs_own(monkeypatch):
    create = programs.create_program

    def refusing(text, *arguments, **options):
        if "atan2(" in text:
            raise Refused
        return create(text, *arguments, **options)

    monkeypatch.setattr(programs, "create_program", refusing)
    got, expected, stats = compiled(lambda x: torch.exp((x * x).angle()) + 1, c64(3, 4))
    assert_close(got, expected, factor=8)
    assert stats["fallback_ops"] == {"aten.angle.default": 1} and stats["nodes_compiled"] > 0


def test_functions_of_pairs_are_torchs():
    x, y = c64(3, 4), c64(4, 5)
    assert torch.equal(as_complex(as_pairs(x)), x) and as_pairs(x).data_ptr() == x.data_ptr()
    assert torch.equal(as_complex(as_pairs(x.mH)), x.mH) and torch.equal(as_pairs(x.conj().imag.to(x.dtype))[..., 0], -x.imag)
    assert torch.equal(as_complex(torch.ones(2, 3).t()), torch.full((3,), 1 + 1j))
    assert torch.equal(in_pairs(aten.mm.default, as_pairs(x), as_pairs(y)), as_pairs(x @ y))
    assert torch.equal(each_in_pairs(aten.abs.default, as_pairs(x)), x.abs())


def test_results_that_are_inputs_are_copies():
    def function(x):
        return x.to(torch.complex128), x.sum(()), torch.view_as_complex(x.real.unsqueeze(-1).expand(3, 2).contiguous())

    alike.check(function, [c64(3)], torch.compile(function, backend=backend))
    number = torch.tensor(1 + 2j)
    got = torch.compile(lambda z: z.sum(), backend=backend)(number)
    got.mul_(0)
    assert number == 1 + 2j


def test_what_is_written_to_is_as_in_eager():
    def function(z, x):
        z.mul_(2j).add_(x)
        torch.view_as_real(z)[..., 1].mul_(3)
        x.copy_((z * z.conj()).real)
        return z.sum(0), z[1:].conj() * 2

    with torch.no_grad():
        alike.check(function, [c64(3, 4), f32(3, 4)], torch.compile(function, backend=backend))
    assert kiln.stats()["fallback_ops"] == {}


def test_an_input_is_not_written_to_before_a_view_of_it_is_read():
    def function(x):
        y = torch.tanh(x)
        z = torch.logaddexp(torch.view_as_complex(x), torch.view_as_complex(y))
        x.copy_(y * 3)
        return z

    run = torch.compile(function, backend=backend)
    with torch.no_grad():
        for _ in range(2):  # the first time outputs are made apart, to be checked
            alike.check(function, [f32(5, 2)], run)
    assert kiln.stats()["fallback_ops"] == {"aten.logaddexp.default": 1}


def test_sizes_that_are_asked_for_may_change():
    def function(x):
        return (x + 1j).reshape(x.shape[0] * x.shape[1], -1).abs().sum(-1), x.new_zeros(x.shape[1]) + 2

    run = torch.compile(function, backend=backend, dynamic=True)
    for length in (3, 5, 8):
        x = c64(2, length, 4)
        torch.testing.assert_close(run(x), function(x))


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
@pytest.mark.parametrize("model", ["Rotary", "Operator"])
def test_the_next_process_compiles_nothing(tmp_path, model):
    environment = {"KILN_CACHE_DIR": str(tmp_path / "cache")}
    first, second = (report_of("complex_process.py", model, **environment) for _ in range(2))
    assert first["fallback_ops"].keys() == second["fallback_ops"].keys() <= FOURIER
    assert first["captures_loaded"] == second["compilations"] == 0 < first["compilations"]
    assert second["captures_loaded"] > 0 and second["graphs_eager"] == 0
