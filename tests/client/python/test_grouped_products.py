"""Products of groups of rows whose ends are in the data, as mixtures of experts have them: values and gradients, whatever the ends
are, and that models with experts train in Kiln's programs."""

import copy

import pytest
import torch

import kiln
from capture import captured, compiled
from conftest import OVER_DOUBLE

moe = pytest.importorskip("transformers.integrations.moe")
aten = torch.ops.aten
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# By name: how many rows are in each of five groups, of 40; some are in none.
GROUPS = {
    "about equal": (8, 8, 8, 8, 8),
    "some empty": (0, 17, 0, 23, 0),
    "all in one": (0, 0, 40, 0, 0),
    "some rows in none": (3, 9, 0, 1, 12),
    "all in none": (0, 0, 0, 0, 0),
}


def ends_of(sizes, dtype=torch.int32):
    return torch.tensor(sizes).cumsum(0).to(dtype)


def by_groups(left, right, ends):
    """The definition, in f64; zero where a row is in no group."""
    left, right = left.double(), right.double()
    pieces = list(zip([0, *ends.tolist()], ends.tolist()))
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, a:b] @ right[a:b] for a, b in pieces])
    if left.dim() == 3:
        return by_groups(right.t(), left.transpose(1, 2), ends).t()
    rows = [left[a:b] @ right[g] for g, (a, b) in enumerate(pieces)]
    return torch.cat([*rows, left.new_zeros(left.shape[0] - pieces[-1][1], right.shape[2])])


def is_near(got, expected, dtype):
    assert (got.dtype, got.shape) == (dtype, expected.shape)
    scale = expected.abs().max().clamp(min=1).item()
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=BOUNDS[dtype] * scale)


def check(function, expected, dtype, *inputs):
    """Every result is right, lies as in torch, and nothing was left to torch."""
    got, eager, stats = compiled(function, *inputs)
    for g, e, t in zip(got, expected, eager, strict=True):
        is_near(g, e, dtype)
        assert g.stride() == t.stride()
    assert stats["nodes_fallback"] == 0 and stats["graphs_eager"] == 0 and stats["checks_failed"] == 0, stats


# torch's function refuses what does not lie in steps of 16 bytes, and traces bf16 alone.
FORMS = {
    "rows": ((40, 72), (5, 72, 88)),
    "rows by columns as they lie": ((40, 72), (5, 88, 72)),
    "columns": ((5, 88, 72), (72, 40)),
    "sums": ((72, 40), (40, 88)),
    "sums of columns as they lie": ((40, 72), (40, 88)),
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("form", FORMS)
def test_torchs_function(form, groups):
    left, right = (torch.randn(shape).bfloat16() for shape in FORMS[form])
    if form == "rows by columns as they lie":
        right = right.transpose(1, 2)
    if form == "sums of columns as they lie":
        left = left.t()
    ends = ends_of(GROUPS[groups])
    check(lambda *x: (aten._grouped_mm(*x),), [by_groups(left, right, ends)], torch.bfloat16, left, right, ends)


def test_torchs_function_without_groups():
    left, right = torch.randn(3, 16, 24).bfloat16(), torch.randn(3, 24, 8).bfloat16()
    check(lambda *x: (aten._grouped_mm(*x),), [left.double() @ right.double()], torch.bfloat16, left, right)


def gradients(function):
    def run(left, right, ends, grad):
        left, right = (t.detach().requires_grad_() for t in (left, right))
        out = function(left, right, ends)
        return (out.detach(), *torch.autograd.grad(out, (left, right), grad))

    return run


@pytest.mark.parametrize("groups", ["about equal", "some empty"])
@pytest.mark.parametrize("form", ["rows", "columns", "sums of columns as they lie"])
def test_gradients_of_torchs_function(form, groups):
    left, right = (torch.randn(shape).bfloat16() for shape in FORMS[form])
    left = left.t() if form == "sums of columns as they lie" else left
    ends = ends_of(GROUPS[groups])
    grad = torch.randn(by_groups(left, right, ends).shape).bfloat16()
    expected = gradients(by_groups)(left.double(), right.double(), ends, grad.double())
    check(gradients(aten._grouped_mm), expected, torch.bfloat16, left, right, ends, grad)


# Rows, what they are multiplied along, columns, and how many are in each group.
SIZES = ((40, 33, 47, GROUPS["some empty"]), (7, 130, 1, (2, 0, 5)), (300, 65, 129, (150, 1, 149)), (1, 1, 5, (0, 1)))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_experts_and_their_gradients(sizes, is_transposed, dtype):
    rows, depth, columns, groups = sizes
    x, weight, grad = torch.randn(rows, depth), torch.randn(len(groups), depth, columns), torch.randn(rows, columns)
    x, weight, grad = (t.to(dtype) for t in (x, weight, grad))
    if is_transposed:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    ends = ends_of(groups, torch.int64 if is_transposed else torch.int32)
    expected = gradients(by_groups)(x.double(), weight.double(), ends, grad.double())
    check(gradients(torch.ops.transformers.grouped_mm_fallback), expected, dtype, x, weight, ends, grad)


@pytest.mark.skipif(OVER_DOUBLE, reason="what kernels make of ends is theirs")
@pytest.mark.parametrize("ends", [(-5, 70, 3), (30, 10, 40), (99, 99, 99), (-1, -1, -1)], ids=str)
def test_ends_that_are_none_reach_no_other_memory(ends):
    """What has number i is in the first group whose end is larger than i."""
    x, weight = torch.randn(40, 24), torch.randn(3, 24, 40)
    ends = torch.tensor(ends)
    groups = torch.searchsorted(ends.cummax(0).values, torch.arange(40), right=True)
    expected = torch.stack([x[i] @ weight[g] if g < 3 else torch.zeros(40) for i, g in enumerate(groups)])
    run = kiln.torch.compile_graph(_graph_of_experts(x, weight), ())
    run([x, weight, ends_of((10, 10, 20), torch.int64)])  # which the check of a first run compares with torch
    is_near(run([x, weight, ends])[0], expected.double(), torch.float32)


def _graph_of_experts(x, weight):
    return captured(lambda *i: (torch.ops.transformers.grouped_mm_fallback(*i),), x, weight, ends_of((10, 10, 20), torch.int64))


@pytest.mark.skipif(OVER_DOUBLE, reason="programs for many sizes are libkiln's")
def test_further_numbers_of_rows_are_right_and_asked_of_nobody():
    dtype, weight = torch.float32, torch.randn(4, 40, 72)
    run = torch.compile(lambda *x: torch.ops.transformers.grouped_mm_fallback(*x), backend="kiln", dynamic=True)
    misses = []
    for rows in (300, 411, 333, 500):
        x, grad, ends = torch.randn(rows, 40), torch.randn(rows, 72), ends_of((rows // 3, 0, 7, rows // 2))
        expected = gradients(by_groups)(x.double(), weight.double(), ends, grad.double())
        for g, e in zip(gradients(run)(x, weight, ends, grad), expected, strict=True):
            is_near(g, e, dtype)
        misses.append(kiln.stats()["misses"])
    assert misses == misses[:1] * 4 and kiln.stats()["nodes_fallback"] == kiln.stats()["checks_failed"] == 0


# ---- models


def mixtral(dtype):
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(
        vocab_size=90, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, experts_implementation="grouped_mm", dtype=dtype)).to(dtype)  # fmt: skip


def qwen(dtype):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=90, hidden_size=64, intermediate_size=48, moe_intermediate_size=40, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        experts_implementation="grouped_mm", dtype=dtype)).to(dtype)  # fmt: skip


def gpt_oss(dtype):
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM(GptOssConfig(
        vocab_size=90, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        experts_implementation="grouped_mm", dtype=dtype)).to(dtype)  # fmt: skip


def step(run, model, tokens):
    model.zero_grad()
    loss = run(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.skipif(OVER_DOUBLE, reason="whole models")
@pytest.mark.parametrize(("make", "dtype", "entry"), [
    (mixtral, torch.float32, "backend"), (mixtral, torch.bfloat16, "compile"), (qwen, torch.float32, "compile"),
    (qwen, torch.bfloat16, "backend"), (gpt_oss, torch.float32, "compile")], ids=str)  # fmt: skip
def test_models_train_with_their_experts_in_kiln(make, dtype, entry):
    model = make(dtype)
    tokens = torch.randint(0, 90, (2, 21))
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")  # torch's grouped products take no f64
    loss, grads = step(exact, exact, tokens)
    run = torch.compile(model, backend="kiln") if entry == "backend" else kiln.compile(model)
    for _ in range(2):
        got_loss, got = step(run, model, tokens)
    stats = kiln.stats()
    assert not [op for op in stats["fallback_ops"] if "grouped" in str(op)], stats["fallback_ops"]
    assert stats["checks_failed"] == 0 and stats["nodes_compiled"] > 0
    assert abs(got_loss.double() - loss) <= (1e-5 if dtype == torch.float32 else 0.05) * loss
    assert got.keys() == grads.keys()
    if dtype == torch.float32:  # what is routed otherwise in bf16 has other gradients
        for name, grad in grads.items():
            torch.testing.assert_close(got[name].double(), grad, rtol=0, atol=1e-4 * grad.abs().max().clamp(min=1e-6).item())
