"""Half precision: every row says what torch computes there too, and models are trained in it, as a whole, under autocast, and with
weights in f32."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import OVER_DOUBLE
from processes import report_of
from torch import nn

import kiln
from capture import compiled
from kiln.torch import backend
from test_rows import CASES

# Of the largest value, in units of the dtype's last place: torch rounds after each op, Kiln once a kernel, and sums of
# a few dozen terms are kept in f32 by both.
ROUNDINGS = 4


# Says f32 by name; jumps by 1 where a quotient is rounded before it is floored; places of pixels and bins are torch's to round;
# torch's trace of running statistics says another dtype than its kernels give.
LEFT_OUT = {"softmax gradient", "division modes", "histograms", "batch_norm that only reads statistics",
            *(n for n in CASES if "sampling" in n)}  # fmt: skip


def halved(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in CASES if n not in LEFT_OUT and any(t.dtype == torch.float32 for t in CASES[n][1]())])
def test_row_agrees_with_torch(name, dtype):
    function, inputs = CASES[name]
    inputs = [halved(t, dtype) for t in inputs()]
    try:
        function(*inputs)
    except RuntimeError as error:
        pytest.skip(f"torch itself: {error}")
    got, expected, stats = compiled(function, *inputs)
    assert stats["graphs_eager"] == 0 and stats["fallback_ops"] == {}, kiln.explain()
    for g, e in zip(got, expected, strict=True):
        if e is None:
            continue
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        if not e.is_floating_point():
            assert torch.equal(g, e)
            continue
        finite = e[e.isfinite()].double()
        scale = finite.abs().max().item() if finite.numel() else 1.0
        atol = ROUNDINGS * torch.finfo(e.dtype).eps * scale
        torch.testing.assert_close(g.double(), e.double(), rtol=0, atol=atol, equal_nan=True)


class Block(torch.nn.Module):
    """A transformer's, with a table in front and a loss behind."""

    def __init__(self, width=48, heads=3):
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(50, width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down, self.heads = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width), heads

    def forward(self, ids):
        x = self.table(ids)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        scores = (x @ self.table.weight.to(x.dtype).t()).float()
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids.roll(1, 1).flatten())


class HalfInside(torch.nn.Module):
    """Weights in f32, each cast where it is used."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.up, self.down = dtype, torch.nn.Linear(33, 65), torch.nn.Linear(65, 17)

    def forward(self, x):
        y = torch.nn.functional.linear(x.to(self.dtype), self.up.weight.to(self.dtype), self.up.bias.to(self.dtype))
        y = torch.nn.functional.linear(torch.relu(y), self.down.weight.to(self.dtype), self.down.bias.to(self.dtype))
        return y.float().square().mean()


def step(model, call, x, autocast=False):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = call(x)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_no_farther(got, eager, exact, half):
    """From what f64 gives, than torch's own halves are, or a few roundings: what all share, as a loss, is right by luck or is not."""
    distance = lambda result, e: ((result.double() - e).norm() / e.norm()).item()  # noqa: E731
    for g, own, e in zip(got, eager, exact, strict=True):
        assert g.dtype == own.dtype
        assert distance(g, e) <= max(1.5 * distance(own, e), ROUNDINGS * torch.finfo(half).eps)


def check_training(entry, model, x, half, autocast=False, exact_model=None):
    exact_model = exact_model or copy.deepcopy(model).double()
    exact = step(exact_model, exact_model, x.double() if x.is_floating_point() else x)
    eager = step(model, model, x, autocast)
    call = entry(model)
    for _ in range(2):
        assert_no_farther(step(model, call, x, autocast), eager, exact, half)
    stats = kiln.stats()
    assert stats["graphs_eager"] == 0 and stats["fallback_ops"] == {}, kiln.explain()
    assert stats["nodes_compiled"] > 10


entries = pytest.mark.parametrize("entry", [lambda m: torch.compile(m, backend=backend), kiln.compile], ids=["backend", "compile"])
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@entries
@dtypes
def test_a_model_of_halves_is_trained(entry, dtype):
    check_training(entry, Block().to(dtype), torch.randint(0, 50, (2, 19)), dtype)


@entries
def test_a_model_is_trained_under_autocast(entry):
    check_training(entry, Block(), torch.randint(0, 50, (2, 19)), torch.bfloat16, autocast=True)


NORMS = {
    "layers": lambda x, weight, bias: F.layer_norm(x, x.shape[2:], weight[:5], bias[:5]),
    "layers without a bias": lambda x, weight, bias: F.layer_norm(x, x.shape[2:], weight[:5]) + bias[:5],
    "groups": lambda x, weight, bias: F.group_norm(x, 4, weight, bias),
}


@entries
@dtypes
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_whose_weights_are_wider_than_what_they_weigh(entry, dtype, name):
    inputs = torch.randn(3, 8, 5) * 3 + 2, torch.randn(8), torch.randn(8)

    def step(norm, *given):
        leaves = [t.clone().requires_grad_() for t in given]
        result = norm(*leaves)
        (result * result.detach().sin()).sum().backward()
        return [result.detach(), *(t.grad for t in leaves)]

    x, *weights = inputs[0].to(dtype), *inputs[1:]
    eager, exact = step(NORMS[name], x, *weights), step(NORMS[name], *(t.double() for t in (x, *weights)))
    call = entry(NORMS[name])
    for _ in range(2):
        assert_no_farther(step(call, x, *weights), eager, exact, dtype)
    stats = kiln.stats()
    assert stats["graphs_eager"] == stats["checks_failed"] == 0 and stats["fallback_ops"] == {}, kiln.explain()


@entries
@pytest.mark.parametrize("of_weights", [torch.bfloat16, torch.float32], ids=str)
def test_batch_norm_of_halves_is_torchs_and_what_it_gives_is_taken(entry, of_weights, capfd):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).bfloat16()
    model[1].to(of_weights)
    exact, compiled_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    x = torch.randn(2, 3, 9, 9, dtype=torch.bfloat16)

    def step(model, call, x):
        model.zero_grad()
        call(x).square().mean().backward()
        return [*(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers() if b.is_floating_point())]

    call = entry(compiled_model)
    for _ in range(2):
        assert_no_farther(step(compiled_model, call, x), step(model, model, x), step(exact, exact, x.double()), torch.bfloat16)
    assert "expected a" not in capfd.readouterr().err


@entries
@dtypes
def test_weights_in_f32_are_cast_where_they_are_used(entry, dtype):
    model, exact = HalfInside(dtype), HalfInside(torch.float64).double()
    exact.load_state_dict(model.state_dict())
    check_training(entry, model, torch.randn(19, 33), dtype, exact_model=exact)


def process(folder, name, *options, **variables):
    """What captured_process.py says."""
    report = report_of("captured_process.py", name, *options, KILN_CACHE_DIR=str(folder), **variables)
    assert report["error"] < 0.05 and report["stats"]["checks_failed"] == 0, report
    assert report["stats"]["fallback_ops"] == {}, report
    return report


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
@pytest.mark.parametrize("options", [["--dtype", "float16"], ["--dtype", "bfloat16", "--whole"], ["--autocast"], ["--autocast", "--whole"]],
                         ids=" ".join)  # fmt: skip
def test_a_second_process_compiles_nothing(options, tmp_path):
    cold = process(tmp_path, "encoder", *options)
    warm = process(tmp_path, "encoder", *options, KILN_NO_DAEMON="1")
    assert cold["stats"]["compilations"] > 0 and warm["stats"]["compilations"] == 0, warm["explain"]
    assert warm["stats"]["nodes_compiled"] == cold["stats"]["nodes_compiled"]


@pytest.mark.skipif(OVER_DOUBLE, reason="kernels are libkiln's")
def test_a_processor_that_has_less_runs_nothing_of_one_that_has_more(tmp_path):
    def targets(**variables):
        report = process(tmp_path, "encoder", "--dtype", "bfloat16", "--whole", **variables)
        assert report["stats"]["compilations"] > 0, report["explain"]
        return {entry["parts"]["target"] for entry in report["explain"] if "parts" in entry}

    order = ["x86-64-v4-amx", "x86-64-v4-bf16", "x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "x86-64-v2"]  # what is lesser runs where there is more
    (best,) = targets()
    for lesser in order[order.index(best) + 1 :]:
        assert targets(KILN_CPU_FEATURES=lesser) == {lesser}
