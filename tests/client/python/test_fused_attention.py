"""torch's fused attention on NVIDIA becomes Kiln's, forward and backward. There is no such device here: graphs are traced with the
ops, without running them, and run on the host, where torch does not have them: what is right then was Kiln's."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.torch import compile_graph
from kiln.torch.fused_attention import KINDS, LSE_ROWS, fused_attention, fused_attention_backward, separate_fused_attention

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def attention(monkeypatch):
    """It is torch's unless that is configured."""
    monkeypatch.setenv("KILN_ATTENTION", "kiln")


BIASED = ["efficient", "cudnn"]


def forward(kind, q, k, v, bias, causal, dropout=0.0):
    if kind == "flash":
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal)
    op = getattr(aten, f"_scaled_dot_product_{kind}_attention")
    return op(q, k, v, bias, True, dropout, causal)


def step(kind, causal=False, dropout=0.0, bias_gradient=False):
    """Everything that a training step has of the ops."""

    def run(grad, q, k, v, *bias):
        bias = bias[0] if bias else None
        out, lse, *rest = forward(kind, q, k, v, bias, causal, dropout)
        if kind == "flash":
            ragged, (seed, offset) = rest[:4], rest[4:6]
            grads = aten._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, lse, *ragged, dropout, causal, seed, offset)
        elif kind == "efficient":
            wanted = [True, True, True, bias_gradient]
            grads = aten._scaled_dot_product_efficient_attention_backward(
                grad, q, k, v, bias, out, lse, *rest[:2], dropout, wanted, causal)  # fmt: skip
        else:
            ragged, seeds = rest[:4], rest[4:6]
            grads = aten._scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, lse, *seeds, bias, *ragged, dropout, causal)
        return out, lse, *grads[:3]

    return run


def right(grad, q, k, v, bias=None, causal=False):
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    out = scores.softmax(-1) @ v
    out.backward(grad.double())
    return out.detach(), scores.logsumexp(-1).detach(), q.grad, k.grad, v.grad


def tensors(rows, keys, has_bias, dtype=torch.float32):
    shapes = [(2, 3, rows, 16), (2, 3, rows, 16), (2, 3, keys, 16), (2, 3, keys, 16)]
    return [torch.randn(shape, dtype=dtype) for shape in shapes] + [torch.randn(2, 3, rows, keys, dtype=dtype)] * has_bias


def targets(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("rows, keys, causal", [(64, 64, True), (37, 37, True), (37, 50, False), (1, 33, False)])
@pytest.mark.parametrize("kind, has_bias", [(kind, False) for kind in KINDS] + [(kind, True) for kind in BIASED])
def test_a_step_runs_in_kiln(kind, has_bias, rows, keys, causal):
    inputs = tensors(rows, keys, has_bias)
    graph = make_fx(step(kind, causal), tracing_mode="fake")(*inputs)
    before = kiln.stats()["nodes_compiled"]
    out, lse, *grads = compile_graph(graph, inputs)(list(inputs))
    assert kiln.stats()["nodes_compiled"] >= before + 2
    assert lse.shape[2] == (-(-rows // LSE_ROWS) * LSE_ROWS if kind == "efficient" else rows)
    lse = lse.squeeze(-1) if kind == "cudnn" else lse
    assert lse[:, :, rows:].isinf().all()
    expected = right(*inputs, causal=causal)
    for got, want in zip((out, lse[:, :, :rows], *grads), expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * want.abs().max().item())


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_dropout_needs_is_made_by_nobody(kind):
    graph = make_fx(step(kind), tracing_mode="fake")(*tensors(37, 37, False)).graph
    separate_fused_attention(graph)
    assert fused_attention in targets(graph) and fused_attention_backward in targets(graph)
    assert not {KINDS[kind].forward, KINDS[kind].backward} & set(targets(graph))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_whose_backward_is_compiled_apart_is_kilns(kind):
    """Its backward is given all that torch's op gave, of which it reads (out, lse)."""

    def run(q, k, v):
        return tuple(t for t in forward(kind, q, k, v, None, True) if isinstance(t, torch.Tensor))

    _, *inputs = tensors(37, 37, False)
    graph = make_fx(run, tracing_mode="fake")(*inputs)
    (output,) = graph.graph.find_nodes(op="output")
    expected = [node.meta["val"] for node in output.args[0]]
    assert len(expected) > 2
    out, lse, *others = compile_graph(graph, inputs)(list(inputs))
    assert KINDS[kind].forward not in targets(graph.graph) and fused_attention in targets(graph.graph)
    want = right(torch.zeros(inputs[0].shape), *inputs, causal=True)[:2]
    lse = lse.squeeze(-1) if kind == "cudnn" else lse[:, :, :37]
    for got, exact in zip((out, lse), want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)
    assert [(t.shape, t.dtype) for t in others] == [(t.shape, t.dtype) for t in expected[2:]]


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_stays_torchs(kind):
    graph = make_fx(step(kind, dropout=0.1), tracing_mode="fake")(*tensors(37, 37, False)).graph
    separate_fused_attention(graph)
    assert KINDS[kind].forward in targets(graph) and KINDS[kind].backward in targets(graph)


def test_the_gradient_of_a_bias_stays_torchs_and_has_its_forward():
    graph = make_fx(step("efficient", bias_gradient=True), tracing_mode="fake")(*tensors(37, 37, True)).graph
    separate_fused_attention(graph)
    assert KINDS["efficient"].forward in targets(graph) and KINDS["efficient"].backward in targets(graph)


def test_unless_configured_all_stays_torchs(monkeypatch):
    monkeypatch.delenv("KILN_ATTENTION")
    graph = make_fx(step("flash"), tracing_mode="fake")(*tensors(37, 37, False)).graph
    separate_fused_attention(graph)
    assert KINDS["flash"].forward in targets(graph) and KINDS["flash"].backward in targets(graph)


def test_causal_of_other_lengths_stays_torchs():
    graph = make_fx(step("flash", causal=True), tracing_mode="fake")(*tensors(37, 50, False)).graph
    separate_fused_attention(graph)
    assert KINDS["flash"].forward in targets(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_in_torch_each_is_the_op_that_it_was(kind):
    """As far as this host can tell: the ops are given what they take, and give what is expected of them."""
    with FakeTensorMode():
        grad, q, k, v = (torch.empty(2, 3, 37, 16, device="cuda", dtype=torch.float16) for _ in range(4))
        out, lse = fused_attention(q, k, v, None, 0.25, True, kind)
        assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
        grads = fused_attention_backward(grad, q, k, v, out, lse, None, 0.25, True, kind)
        assert [g.shape for g in grads] == [q.shape] * 3
