"""Products of signed bytes, equal to torch's bit for bit, and of floats with quantised weights."""

import pytest
import torch

import kiln
from capture import compiled

aten = torch.ops.aten


def signed_bytes(*shape):
    """All values, the extremes often."""
    drawn = torch.randint(-128, 128, shape, dtype=torch.int8)
    extreme = torch.where(torch.rand(shape) < 0.5, -128, 127).to(torch.int8)
    return torch.where(torch.rand(shape) < 0.2, extreme, drawn)


def assert_equal(function, *inputs):
    got, expected, stats = compiled(function, *inputs)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == 0
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype and torch.equal(g, e)


SHAPES = [(1, 1, 1), (1, 65, 33), (3, 40, 130), (17, 33, 3), (40, 50, 257), (64, 96, 512)]


@pytest.mark.parametrize("m, n, k", SHAPES)
def test_products_of_bytes_are_torchs(m, n, k):
    a, b, bias = signed_bytes(m, k), signed_bytes(k, n), signed_bytes(n)
    rows, columns = b.t().contiguous().t(), a.t().contiguous().t()  # the same numbers lying otherwise

    def products(a, b, rows, columns, bias):
        return (aten._int_mm(a, b), aten._int_mm(a, rows), aten._int_mm(columns, b), aten.mm(a, rows), aten.bmm(a[None], b[None]),
                aten.addmm(bias, a, b, alpha=-3, beta=2))  # fmt: skip

    assert_equal(products, a, b, rows, columns, bias)


def test_sums_beyond_32_bits_wrap_as_torchs():
    least = torch.full((2, 140_000), -128, dtype=torch.int8)
    assert_equal(lambda a, b: aten._int_mm(a, b.t()), least, least)


def test_what_follows_a_product_of_bytes_shares_its_kernel():
    def linear(x, w, row, column, bias):
        return aten._int_mm(x, w.t()).to(torch.float32) * row * column + bias

    inputs = signed_bytes(9, 70), signed_bytes(33, 70), torch.rand(9, 1), torch.rand(33), torch.rand(33)
    got, expected, _ = compiled(linear, *inputs)
    torch.testing.assert_close(got[0], expected[0])


def test_an_out_argument_is_written():
    a, b = signed_bytes(20, 30), signed_bytes(30, 17)
    out = torch.empty(20, 17, dtype=torch.int32)
    torch.compile(lambda a, b, out: torch._int_mm(a, b, out=out), backend="kiln")(a, b, out)
    assert torch.equal(out, torch._int_mm(a, b)) and kiln.stats()["nodes_compiled"] > 0


@pytest.mark.parametrize("scales", [{"alpha": 1.5}, {"beta": 0.5}, {"alpha": 300}])
def test_factors_that_bytes_do_not_hold_are_left_to_torch(scales):
    def product(c, a, b):
        return torch.addmm(c, a, b, **scales)

    inputs = signed_bytes(5), signed_bytes(3, 8), signed_bytes(8, 5)
    run = torch.compile(product, backend="kiln")
    if "alpha" in scales and scales["alpha"] == 300:
        with pytest.raises(RuntimeError, match="without overflow"):
            run(*inputs)
        return
    assert torch.equal(run(*inputs), product(*inputs))


def per_channel(x, w, scale):
    return torch.mm(x, w.t().to(x.dtype)) * scale


def per_channel_of_columns(x, w, scale):
    return torch.mm(x, w.to(x.dtype)) * scale


def per_group(x, w, scale):
    n, k = w.shape
    groups = scale.shape[1]
    return torch.mm(x, (w.view(n, groups, k // groups).to(x.dtype) * scale[:, :, None]).view(n, k).t())


def halves_of_bytes(x, packed, scale):
    """Two weights a byte, the lower half the first."""
    n, k = packed.shape[0], packed.shape[1] * 2
    w = torch.stack([(packed & 0xF).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8], -1)
    groups = scale.shape[1]
    return torch.mm(x, (w.view(n, groups, k // groups).to(x.dtype) * scale[:, :, None]).view(n, k).t())


TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def assert_near(function, x, w, scale):
    """Near what the same function gives in f64; of half precision the weights may be rounded on the way, as in torch."""
    (got,), _, stats = compiled(function, x, w, scale)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == 0
    exact = function(x.double(), w, scale.double())
    assert got.dtype == x.dtype
    error = (got.double() - exact).abs().max() / exact.abs().max()
    assert error <= TOLERANCE[x.dtype] * (1 + x.shape[1] / 2048), error


DTYPES = list(TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 75, 130), (1, 64, 256), (3, 33, 65), (40, 70, 129)])
def test_bytes_times_a_scale_of_each_channel(dtype, m, n, k):
    x, w, scale = torch.randn(m, k, dtype=dtype), signed_bytes(n, k), torch.rand(n, dtype=dtype) + 0.1
    assert_near(per_channel, x, w, scale)
    assert_near(per_channel_of_columns, x, w.t().contiguous(), scale)
    assert_near(per_channel_of_columns, x, torch.cat([w, w]).t()[:, ::2].contiguous().t()[::1].t()[:k, :n], scale)
    assert_near(lambda x, w, s: per_channel(x, w[:, ::2], s), torch.randn(m, k, dtype=dtype), signed_bytes(n, 2 * k), scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, groups, size", [(1, 33, 3, 32), (1, 16, 4, 64), (2, 20, 5, 6), (40, 70, 2, 48)])
def test_weights_times_a_scale_of_each_group(dtype, m, n, groups, size):
    x, scale = torch.randn(m, groups * size, dtype=dtype), torch.rand(n, groups, dtype=dtype) + 0.1
    assert_near(per_group, x, signed_bytes(n, groups * size), scale)
    assert_near(halves_of_bytes, x, torch.randint(0, 256, (n, groups * size // 2), dtype=torch.uint8), scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, k", [(1, 64, 320), (5, 40, 304), (33, 64, 128)])
def test_torchs_own_product_with_bytes(dtype, m, n, k):
    x, w, scale = torch.randn(m, k, dtype=dtype), signed_bytes(n, k), torch.rand(n, dtype=dtype) + 0.1
    (got,), (expected,), stats = compiled(lambda x, w, s: aten._weight_int8pack_mm(x, w, s), x, w, scale)
    assert stats["fallback_ops"] == {} and got.dtype == expected.dtype
    exact = (x.double() @ w.double().t()) * scale.double()
    assert (got.double() - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
