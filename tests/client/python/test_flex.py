"""FlexAttention: forward and backward agree with the formula in f64, and nothing of it stays in torch."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import kiln
from kiln.torch.attend import attend, attend_backward, attention_of_scores, attention_scores

BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 4, 37, 45, 12


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 9)


def none_for_some(b, h, q, k):
    return (k < 20) & (q > 4)


def by_document(c):
    return lambda b, h, q, k: c["document"][b, q] == c["document"][b, k]


CASES = {
    "all": (None, None),
    "causal": (None, lambda c: causal),
    "window": (None, lambda c: window),
    "queries without a key": (None, lambda c: none_for_some),
    "captured by the mask": (None, by_document),
    "slopes": (lambda c: lambda s, b, h, q, k: s + c["slope"][h] * (k - q), lambda c: causal),
    "mask in the score": (lambda c: lambda s, b, h, q, k: torch.where(q >= k, s - 1.0, -math.inf), None),
    "soft cap": (lambda c: lambda s, b, h, q, k: 3 * torch.tanh(s / 3), lambda c: window),
    "a factor": (lambda c: lambda s, b, h, q, k: s * c["slope"][h], lambda c: none_for_some),
    "learned": (lambda c: lambda s, b, h, q, k: s + c["learned"][h, q - k + KEYS], lambda c: causal),
}


def torch_compile(function):
    return torch.compile(function, backend="kiln")


def kiln_compile(function):
    return kiln.compile(function)


def captures():
    document = torch.arange(64).div(7, rounding_mode="floor").expand(BATCH, -1).contiguous()
    return {"slope": torch.rand(HEADS) + 0.5, "document": document, "learned": torch.randn(HEADS, QUERIES + KEYS)}


def operands(kv_heads=HEADS, features=FEATURES, dtype=torch.float32):
    shapes = (HEADS, QUERIES, FEATURES), (kv_heads, KEYS, FEATURES), (kv_heads, KEYS, features)
    return [torch.randn(BATCH, *shape).to(dtype).requires_grad_() for shape in shapes]


def formula(query, key, value, score, mask):
    """In f64, over whole grids."""
    key, value = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(FEATURES)
    places = [torch.arange(n).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(scores.shape)]
    scores = scores if score is None else score(scores, *places)
    scores = scores if mask is None else torch.where(mask(*places), scores, -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ value


def run(name, backend, inputs, captured, **options):
    score, mask = (make and make(captured) for make in CASES[name])
    blocks = mask and create_block_mask(mask, BATCH, None, QUERIES, KEYS, device="cpu")

    def attention(query, key, value):
        return flex_attention(query, key, value, score_mod=score, block_mask=blocks, **options)

    return backend(attention)(*inputs)


def by_formula(name, inputs, captured):
    score, mask = (make and make(captured) for make in CASES[name])
    return formula(*inputs, score, mask)


def check(name, inputs, backend, rtol, **options):
    torch._dynamo.reset()
    captured = captures()
    captured["slope"] = captured["slope"].to(torch.promote_types(torch.float32, inputs[0].dtype))
    learned = captured["learned"].requires_grad_()
    wide = [x.detach().double().requires_grad_() for x in inputs]
    of_f64 = {**captured, "learned": learned.detach().double().requires_grad_(), "slope": captured["slope"].double()}
    before = dict(kiln.stats()["fallback_ops"])
    got, expected = run(name, backend, inputs, captured, **options), by_formula(name, wide, of_f64)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    leaves = [learned] if name == "learned" else []
    gradients = torch.autograd.grad((got * weights.to(got.dtype)).sum(), [*inputs, *leaves])
    wanted = torch.autograd.grad((expected * weights).sum(), [*wide, *([of_f64["learned"]] if leaves else [])])
    for a, b in zip((got, *gradients), (expected, *wanted), strict=True):
        assert (a.double() - b).norm() <= rtol * b.norm()
    assert kiln.stats()["fallback_ops"] == before


@pytest.mark.parametrize("backend", [torch_compile, kiln_compile], ids=lambda b: b.__name__)
@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradients_agree_with_the_formula_in_f64(name, backend):
    check(name, operands(), backend, 3e-6)


@pytest.mark.parametrize("name", ["causal", "slopes", "soft cap"])
@pytest.mark.parametrize("kv_heads, features, dtype, rtol", [
    (2, FEATURES, torch.float32, 3e-6), (1, 20, torch.float32, 3e-6), (2, FEATURES, torch.bfloat16, 1e-2),
    (HEADS, FEATURES, torch.float16, 2e-3), (HEADS, FEATURES, torch.float64, 1e-13),
])  # fmt: skip
def test_shared_heads_other_widths_and_dtypes(name, kv_heads, features, dtype, rtol):
    check(name, operands(kv_heads, features, dtype), torch_compile, rtol, enable_gqa=kv_heads < HEADS)


def test_the_gradient_of_what_all_scores_read_is_a_sum_without_their_roundings():
    torch._dynamo.reset()
    torch.manual_seed(0)
    query, key, value, weights = (torch.randn(1, 1, 1000, FEATURES) for _ in range(4))
    factor = torch.ones(1, requires_grad=True)
    wide = factor.detach().double().requires_grad_()

    def attention(query, key, value, factor):
        return flex_attention(query, key, value, score_mod=lambda s, b, h, q, k: s * factor[h])

    scores = query.double() @ key.double().transpose(-2, -1) / math.sqrt(FEATURES) * wide
    pairs = (torch_compile(attention)(query, key, value, factor), factor), (scores.softmax(-1) @ value.double(), wide)
    got, wanted = (torch.autograd.grad((out * weights).sum(), leaf)[0].item() for out, leaf in pairs)
    assert got == pytest.approx(wanted, rel=3e-6)


@pytest.mark.parametrize("name", ["window", "soft cap"])
def test_the_logarithm_of_the_sums_is_returned_and_differentiated(name):
    torch._dynamo.reset()
    inputs, captured = operands(), captures()
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out, lse = run(name, torch_compile, inputs, captured, return_lse=True)
    score, mask = (make and make(captured) for make in CASES[name])
    scores = wide[0] @ wide[1].transpose(-2, -1) / math.sqrt(FEATURES)
    places = [torch.arange(n).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(scores.shape)]
    scores = torch.where(mask(*places), scores if score is None else score(scores, *places), -math.inf)
    expected = scores.logsumexp(-1)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad((out.sum() + lse.square().sum()), inputs)
    wanted = torch.autograd.grad(((scores.softmax(-1) @ wide[2]).sum() + expected.square().sum()), wide)
    for a, b in zip(got, wanted, strict=True):
        assert (a.double() - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_a_graph_falls_back_to_agrees_with_the_formula(is_causal, monkeypatch):
    monkeypatch.setattr("kiln.torch.attend.SCORES_IN_CACHE", 10 * BATCH * HEADS * KEYS)  # several blocks of queries
    inputs = [x.detach().requires_grad_() for x in operands(2)]
    bias = torch.where(torch.rand(HEADS, 1, KEYS) < 0.3, -math.inf, torch.randn(HEADS, 1, KEYS))
    bias[..., 0] = 0.5  # the formula's gradients of a query without keys are no numbers
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = formula(*wide, lambda s, *_: s + bias.double(), causal if is_causal else None)
    out, lse = attend(*inputs, bias, 1 / math.sqrt(FEATURES), is_causal)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    scores = attention_scores(*inputs[:2], 1 / math.sqrt(FEATURES)) + bias
    torch.testing.assert_close(attention_of_scores(scores, inputs[2], is_causal), (out, lse))
    grad = torch.randn_like(out)
    got = attend_backward(grad, *inputs, out, lse, bias, 1 / math.sqrt(FEATURES), is_causal)
    for a, b in zip(got, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        assert (a.double() - b).norm() <= 3e-6 * b.norm()


def test_other_backends_and_eager_refuse_gradients_as_before():
    for backend in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        torch._dynamo.reset()
        with pytest.raises(NotImplementedError, match="backward on CPU"):
            run("causal", backend, operands(), captures())
