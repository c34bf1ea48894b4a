"""Sorting and what chooses by order: torch's values, and places that hold them, whatever is equal, infinite or no number."""

import pytest
import torch
from conftest import OVER_DOUBLE

import kiln
from capture import compiled
from kiln.torch.rows import row_of


aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
# Compared element by element, and sorted as rows.
LENGTHS = (9, 300)


def rows(dtype, length, count=3):
    """With equal elements; floating ones also infinite, -0, and NaN."""
    x = torch.randint(0, length // 2, (count, length))
    if not dtype.is_floating_point:
        return x.to(dtype)
    x = (x - length // 4).to(dtype) / 4
    for i, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0, torch.nan)):
        x[i % count, 2 * i :: 8] = value
    x[-1] = torch.arange(length).to(dtype).flip(0)  # none of these
    return x


def check(function, *inputs):
    """Values as torch's; places as where a stable sort would find them."""
    got, expected, stats = compiled(function, *inputs)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0
    for g, e in zip(got, expected, strict=True):
        assert (g.dtype, g.shape, g.stride()) == (e.dtype, e.shape, e.stride())
        torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable(dtype, length, descending):
    x = rows(dtype, length)
    check(lambda x: (*aten.sort.stable(x, stable=True, dim=1, descending=descending),
                     *aten.sort.stable(x.t(), stable=True, dim=-2, descending=descending)), x)  # fmt: skip


CHOICES = {
    "sort.default": lambda f, x: (*f(x), *f(x, 0, True)),
    "topk.default": lambda f, x: (*f(x, 4), *f(x, 2, 0, False), *f(x, 5, -1, False, False), *f(x, 3, -2)),
    "kthvalue.default": lambda f, x: (*f(x, 4), *f(x, 2, 0, True), *f(x, 1)),
    "median.dim": lambda f, x: (*f(x, 1), *f(x, -2, True)),
    "nanmedian.dim": lambda f, x: (*f(x, -1), *f(x, 0, True)),
    "mode.default": lambda f, x: (*f(x), *f(x, 0, True)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CHOICES)
def test_values_are_torchs_and_places_those_that_a_row_says(name, length, dtype):
    x, use = rows(dtype, length), CHOICES[name]
    op = getattr(getattr(aten, name.split(".")[0]), name.split(".")[1])
    try:
        expected = use(op, x)
    except RuntimeError as error:
        pytest.skip(f"torch itself: {error}")
    choice = row_of(op).settled
    has_own_meaning = name == "mode.default" and dtype.is_floating_point  # of what has NaN
    for i, (mine, torchs) in enumerate(zip(use(choice, x), expected, strict=True)):
        assert (mine.dtype, mine.shape) == (torchs.dtype, torchs.shape)
        if i % 2 == 0 and not has_own_meaning and not (name == "topk.default" and i == 4):  # topk need not sort what it gives
            assert torch.equal(mine.nan_to_num(7) if dtype.is_floating_point else mine,
                               torchs.nan_to_num(7) if dtype.is_floating_point else torchs)  # fmt: skip
    got, _, stats = compiled(lambda x: use(op, x), x)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0
    for g, mine, torchs in zip(got, use(choice, x), expected, strict=True):
        assert g.stride() == torchs.stride()
        torch.testing.assert_close(g, mine, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("length", "k"), [(8, 2), (9, 9), (64, 1), (64, 40), (300, 4), (300, 5), (300, 299), (5000, 78), (5000, 900)])
def test_topk_chooses_of_equal_elements_what_torch_chooses(length, k, dtype):
    if dtype is torch.bool:
        pytest.skip("torch has no topk of it")
    for x in (rows(dtype, length), torch.zeros(2, length, dtype=dtype)):
        check(lambda x: (*x.topk(k), *x.topk(k, largest=False), *x.topk(k, sorted=False), *x.t().topk(k, 0)), x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point], ids=str)
def test_modes_are_torchs(dtype):
    x = rows(dtype, 300).nan_to_num(3.0)
    (values, places), expected = row_of(aten.mode.default).settled(x), aten.mode(x)[0]
    assert torch.equal(values, expected) and torch.equal(x.gather(1, places[:, None])[:, 0], expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_medians_of_all_elements(length):
    x = rows(torch.float32, length)
    check(lambda x, y, n: (aten.median(x), aten.nanmedian(x), aten.median(y), aten.nanmedian(y * torch.nan), aten.median(n)),
          x, x.nan_to_num(0), rows(torch.int64, length))  # fmt: skip


def test_scalars_and_single_elements():
    def choose(s, x):
        return (*aten.sort(s), *aten.sort.stable(s, stable=True), *aten.topk(s, 1), *aten.kthvalue(s, 1), *aten.median.dim(s, 0),
                *aten.nanmedian.dim(s, -1), *aten.mode(s), aten.median(s), *aten.sort(x, 1), *aten.topk(x, 1), *aten.mode(x))  # fmt: skip

    check(choose, torch.tensor(2.5), torch.randn(4, 1))


def test_nothing_is_sorted():
    check(lambda x, y: (*aten.sort(x + 1, 0), *aten.topk(y, 0), *aten.topk(x, 0, 0), y * 2), torch.empty(3, 0), torch.randn(2, 3))


def test_what_is_computed_is_sorted_and_read():
    """By a router's and a sampler's steps, which read through what is chosen."""

    def route(scores, x):
        weights, experts = torch.topk(scores.softmax(-1), 2)
        order = experts.flatten().argsort(stable=True)
        return weights / weights.sum(-1, keepdim=True), x[order // 2] * 2

    check_near(route, torch.randn(150, 16), torch.randn(150, 8))

    def sample(logits):
        ordered, places = logits.sort(dim=-1, descending=True)
        kept = ordered.softmax(-1).cumsum(-1) <= 0.9
        return torch.zeros_like(kept).scatter(1, places, kept), ordered

    check_near(sample, torch.randn(2, 1000))


def check_near(function, *inputs):
    got, expected, stats = compiled(function, *inputs)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e)


@pytest.mark.parametrize("length", LENGTHS)
def test_gradients_go_to_what_was_chosen(length):
    def loss(x, weights):
        outs = (x.sort(1)[0], x.topk(4, 0)[0], x.kthvalue(3)[0], x.median(1)[0], x.median(), x.nanmedian(1)[0], x.msort())
        return sum((out * weights[: out.numel()].view(out.shape)).sum() for out in outs)

    weights, gradients = torch.randn(5 * length), []
    for function in (loss, torch.compile(loss, backend="kiln", fullgraph=True)):
        x = torch.randperm(5 * length, generator=torch.Generator().manual_seed(3)).view(5, length).float().requires_grad_()
        function(x, weights).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert kiln.stats()["fallback_ops"] == {} and kiln.stats()["checks_failed"] == 0


def test_equal_elements_pass_the_check_of_a_first_run():
    """torch names any of several equal elements."""
    torch.compiler.reset()
    x = torch.zeros(16, 40).index_fill(1, torch.arange(0, 40, 3), 1.0)
    got = torch.compile(lambda x: (*x.topk(5), *x.kthvalue(20), *x.median(1)), backend="kiln", fullgraph=True)(x)
    assert kiln.stats()["checks_failed"] == 0 and kiln.stats()["fallback_ops"] == {}
    for values, places in zip(got[::2], got[1::2], strict=True):
        places = places if places.dim() == 2 else places[:, None]
        assert torch.equal(x.gather(1, places).view(values.shape), values)
