"""Dropout whose masks kernels draw: `random: fast`."""

import pytest
import torch
from test_joint import saved_by
from torch.nn import functional

import kiln
from kiln import _session
from kiln.torch import backend


@pytest.fixture(autouse=True)
def fast(fresh):
    _session.session().random = "fast"


def drop(shape, p=0.3, dtype=torch.float32, function=functional.dropout):
    """(input, result, gradient) of dropout of ones, or of what `function` makes of them."""
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    y = torch.compile(lambda x: function(x, p), backend=backend)(x)
    y.sum().backward()
    return x, y.detach(), x.grad


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1, 3), (33, 65), (3, 5, 257)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_forward_and_backward_keep_the_same_elements(shape, dtype):
    _, y, grad = drop(shape, dtype=dtype)
    scaled = torch.ones((), dtype=dtype) * (1 / 0.7)
    assert torch.equal(y, grad) and ((y == 0) | (y == scaled)).all()
    stats = kiln.stats()
    assert stats["checks_failed"] == 0 and stats["nodes_fallback"] == 0, stats


def test_a_seed_gives_a_mask_and_two_masks_differ():
    def twice(x, p):
        return torch.stack([functional.dropout(x, p), functional.dropout(x, p)])

    torch._dynamo.reset()
    torch.manual_seed(3)
    _, first, _ = drop((50, 40), function=twice)
    torch.manual_seed(3)
    _, again, _ = drop((50, 40), function=twice)
    _, other, _ = drop((50, 40), function=twice)
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first[0], first[1])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_as_many_are_kept_as_asked_for_wherever_they_lie(p):
    count = 400
    _, y, _ = drop((count, count), p)
    kept = (y != 0).double()
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * deviation / count
    for dim in (0, 1):  # neighbours, too, are kept independently
        both = kept.narrow(dim, 0, count - 1) * kept.narrow(dim, 1, count - 1)
        assert abs(both.mean() - (1 - p) ** 2) < 10 * deviation / count
        assert ((kept.mean(dim) - (1 - p)).abs() < 6 * deviation / count**0.5).all()


def test_where_elements_lie_changes_nothing():
    torch.manual_seed(1)
    _, y, _ = drop((6, 10))
    torch.manual_seed(1)
    _, transposed, _ = drop((10, 6), function=lambda x, p: functional.dropout(x.t(), p))
    assert torch.equal(y, transposed)


def test_nothing_and_everything_is_dropped():
    assert drop((9, 4), 0.0)[1].eq(1).all() and drop((9, 4), 1.0)[1].eq(0).all()


def test_no_mask_is_saved(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))
    saved = saved_by(model, monkeypatch, torch.randn(6, 8))
    assert [shape for name, shape in saved if "draw" in name or "mask" in name] == [()]


def test_attention_with_dropout_has_the_gradients_of_its_masks():
    """Linear in the values: the sum of results is the values times their gradient."""
    q, k = torch.randn(2, 2, 3, 17, 8).unbind()
    v = torch.randn(2, 3, 17, 8, requires_grad=True)
    y = torch.compile(functional.scaled_dot_product_attention, backend=backend)(q, k, v, dropout_p=0.4)
    y.sum().backward()
    torch.testing.assert_close((v * v.grad).sum(), y.sum())
    assert kiln.stats()["checks_failed"] == 0
