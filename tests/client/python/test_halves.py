"""Half precision, which the host leaves to torch and devices have: every row says what torch computes there too."""

import pytest
import torch

import kiln
from capture import captured, compiled
from kiln.torch import compile_graph, place
from test_rows import CASES

# Of the largest value, in units of the dtype's last place: torch rounds after each op, Kiln once a kernel, and sums of
# a few dozen terms are kept in f32 by both.
ROUNDINGS = 4


# Says f32 by name; jumps by 1 where a quotient is rounded before it is floored.
LEFT_OUT = {"softmax gradient", "division modes"}


@pytest.fixture
def allowed(monkeypatch):
    monkeypatch.setattr(place, "HALVES", frozenset())


def halved(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in CASES if n not in LEFT_OUT and any(t.dtype == torch.float32 for t in CASES[n][1]())])
def test_row_agrees_with_torch(allowed, name, dtype):
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


def test_the_host_leaves_halves_to_torch():
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    run = compile_graph(captured(lambda x: (x + x,), x), (x,))
    assert torch.equal(run([x])[0], x + x)
    assert kiln.stats()["fallback_ops"] == {"aten.add.Tensor": 1}
    assert {entry["reason"] for entry in kiln.explain()} == {"dtype torch.bfloat16 on the host"}
