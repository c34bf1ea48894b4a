"""Captures a function as AOTAutograd would, without decompositions, and compiles it."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.torch import compile_graph


def captured(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def compiled(function, *inputs):
    """(results, results in torch, stats) of the compiled function, as tuples."""
    expected = function(*inputs)
    run = compile_graph(captured(function, *inputs), inputs)
    got = run(list(inputs))
    as_tuple = lambda r: r if isinstance(r, (tuple, list)) else (r,)  # noqa: E731
    return as_tuple(got), as_tuple(expected), kiln.stats()


def assert_close(got, expected, factor=1.0):
    """Equal types, and values to within rounding: 2e-6 for f32, 1e-12 for f64, 1e-3 for bf16, relative to the largest; integers equal."""
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        if e is None:
            assert g is None
            continue
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        assert g.stride() == e.stride() or e.numel() < 2 or 1 in e.shape, (g.stride(), e.stride())
        if e.is_complex():
            g, e = (torch.view_as_real(t.resolve_conj()) for t in (g, e))
        if not e.is_floating_point():
            assert torch.equal(g, e)
            continue
        tolerance = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 1e-3}[e.dtype] * factor
        finite = e[e.isfinite()]
        scale = finite.abs().max().item() if finite.numel() else 1.0
        torch.testing.assert_close(g, e, rtol=10 * tolerance, atol=tolerance * max(scale, 1e-30), equal_nan=True)
