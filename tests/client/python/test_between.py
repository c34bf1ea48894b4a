"""Ops between captures run in Kiln one by one, and mean what they mean in torch, whoever else looks on."""

import gc
import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kiln
from kiln.torch.between import MAX_VARIANTS, Between, run_capture


def counted():
    stats = kiln.stats()
    return stats["nodes_compiled"], stats["fallback_ops"]


def positions_and_mask(embedded, positions):
    """As models do between their blocks: positions, a look at the data, a sum, a tuple of results."""
    places = torch.arange(positions.shape[1])
    steps = torch.diff(positions, dim=-1, prepend=positions[:, :1] - 1)
    if not (steps == 1).all():
        embedded = embedded * 2
    largest, where = embedded.max(-1)
    return places, (embedded + places.unsqueeze(-1))[:, 1:], largest, where


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_ops_run_in_kiln_and_python_looks_at_the_data(mode):
    between, embedded = Between(), torch.randn(2, 7, 5)
    in_order, packed = torch.arange(7).expand(2, 7), torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * 2)
    with mode():
        for positions in (in_order, packed, in_order):
            got = between.run(positions_and_mask, (embedded, positions), {})
            for g, e in zip(got, positions_and_mask(embedded, positions), strict=True):
                assert torch.equal(g, e) and g.dtype == e.dtype and g.stride() == e.stride()
                assert g.is_inference() == e.is_inference()
    compiled, fallback = counted()
    assert compiled >= 6 and fallback == {}


def test_views_are_no_work_also_where_torch_does_not_say_that_they_are_views():
    x, weight = torch.randn(2, 3, 4), torch.randn(5, 4)
    got = Between().run(lambda: torch.ops.aten._unsafe_view(torch.tanh(x), [6, 4]) @ weight.t(), (), {})
    torch.testing.assert_close(got, torch.tanh(x).view(6, 4) @ weight.t())
    assert counted() == (2, {})


def test_tensors_are_freed_as_python_frees_them():
    """A program is made of its operands' types: no cycle of what it was made with keeps them."""
    between, seen = Between(), []

    def function(x):
        y = torch.tanh(x)
        seen.extend(weakref.ref(t) for t in (x, y))
        return y.sum()

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):  # the first makes the programs, the second checks them
            between.run(function, (torch.randn(11, 13),), {})
            assert [tensor() for tensor in seen] == [None] * len(seen)
    finally:
        gc.enable()


def test_gradients_flow_through_them():
    x, scale = torch.randn(3, 4), torch.randn(4)
    grads = []
    for run in (lambda f, *a: f(*a), lambda f, *a: Between().run(f, a, {})):
        leaves = [t.clone().requires_grad_() for t in (x, scale)]
        out = run(lambda a, b: torch.tanh(a * b) + a, *leaves)
        assert out.requires_grad
        grads.append(torch.autograd.grad(out.sum(), leaves))
    for got, expected in zip(*grads):
        torch.testing.assert_close(got, expected)


def change_in_place(x, rows):
    """Of all kinds: whole, a part, a part by itself, at indices, of another dtype, and where nothing but a view changes."""
    y = (x * 2).neg_().add_(x, alpha=3)
    y[0] = 1
    y[..., ::2] /= 4
    y[rows] = x[1]
    y.masked_fill_(y > 2, 0.5).unsqueeze_(0)
    places = torch.zeros(3, dtype=torch.int64)
    places[1:] = x.detach()[0, :2]
    return y.clamp_(max=0.75), places


def test_what_changes_an_operand_is_computed_in_kiln_and_written_there():
    x, rows = torch.randn(3, 4), torch.tensor([2, 0])
    outcomes = []
    for run in (lambda f, *a: f(*a), lambda f, *a: Between().run(f, a, {})):
        leaf, memory = x.clone().requires_grad_(), x.clone()
        out, places = run(change_in_place, leaf, rows)
        changed, version = run(lambda m: m.mul_(2), memory), memory._version
        assert changed is memory and version > 0
        outcomes.append((out, places, memory, *torch.autograd.grad(out.sum(), leaf)))
    for expected, got in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, expected)
    compiled, fallback = counted()
    assert compiled >= 12 and fallback == {}


@pytest.mark.parametrize("change", [lambda x: x[1:].add_(x[:-1]), lambda x: x[:1].expand(3, 4).mul_(2)], ids=["overlap", "expanded"])
def test_what_torch_does_not_change_in_place_is_its_own_error(change):
    with pytest.raises(RuntimeError) as expected:
        change(torch.ones(3, 4))
    with pytest.raises(RuntimeError) as got:
        Between().run(change, (torch.ones(3, 4),), {})
    assert str(got.value) == str(expected.value)


def test_what_changes_its_operand_to_another_type_than_it_gives_runs_in_torch():
    x, y = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(Between().run(lambda a: a.clone().add_(y), (x,), {}), x.clone().add_(y))
    assert list(counted()[1]) == ["aten.add_.Tensor"]


def test_what_has_no_row_runs_in_torch_and_says_so():
    def function(x):
        return torch.special.bessel_j0(x + 1), torch.empty(3).uniform_()

    x = torch.randn(3, 4)
    outcomes = []
    for run in (lambda f, *a: f(*a), lambda f, *a: Between().run(f, a, {})):
        torch.manual_seed(3)
        outcomes.append(run(function, x))
    for expected, got in zip(*outcomes, strict=True):
        assert torch.equal(got, expected)
    compiled, fallback = counted()
    assert compiled == 1 and set(fallback) == {"aten.uniform_.default", "aten.special_bessel_j0.default"}
    assert {"node": "aten.uniform_.default", "reason": "between captures: no row"} in kiln.explain()
    assert kiln.stats()["nodes_between"] == sum(fallback.values())


def test_what_torch_takes_apart_runs_in_kiln():
    x = torch.randn(2, 3, 5)
    for function in (lambda: torch.nn.functional.pad(x, (1, 2), mode="reflect"), lambda: torch.aminmax(x, dim=1).max):
        torch.testing.assert_close(Between().run(function, (), {}), function())
    assert counted() == (2, {})


def test_statistics_that_an_op_changes_beside_its_result_are_changed_once():
    norm, x = torch.nn.BatchNorm1d(4), torch.randn(6, 4)
    Between().run(norm, (x,), {})
    assert torch.allclose(norm.running_mean, 0.1 * x.mean(0)) and int(norm.num_batches_tracked) == 1


def test_views_and_bare_memory_are_not_counted():
    Between().run(lambda x: (x.t()[1:].unsqueeze(0), torch.empty(3), x.detach(), x.sum().item()), (torch.randn(3, 4),), {})
    assert counted() == (1, {})


def test_an_op_that_counts_steps_is_left_to_torch():
    between = Between()
    for step in range(3 * MAX_VARIANTS):
        x = torch.randn(3, step + 1)
        assert torch.equal(between.run(lambda x: x + step, (x,), {}), x + step)
    assert len(between._programs) == MAX_VARIANTS


def test_the_first_call_has_a_program_for_each_of_its_variants():
    between = Between()
    for _ in range(2):
        between.run(lambda: [torch.ones(n + 1) + n for n in range(2 * MAX_VARIANTS)], (), {})
    assert counted() == (4 * MAX_VARIANTS, {})


def test_numbers_of_other_types_and_signs_are_other_programs():
    between, x = Between(), torch.zeros(3)
    for number in (1, True, 1.0, 0.0, -0.0):
        got = between.run(lambda: torch.full((2,), number), (), {})
        assert torch.equal(got, torch.full((2,), number)) and got.dtype == torch.full((2,), number).dtype
        got = between.run(lambda: torch.atan2(x, x + number), (), {})
        assert torch.equal(got, torch.atan2(x, x + number)), number


def test_an_index_out_of_range_is_torchs_own_error():
    between, table = Between(), torch.randn(4, 3)
    assert torch.equal(between.run(lambda i: table[i], (torch.tensor([3, -4]),), {}), table[[3, -4]])
    with pytest.raises(IndexError) as expected:
        table[torch.tensor([4])]
    with pytest.raises(IndexError) as got:
        between.run(lambda i: table[i], (torch.tensor([4, 0]),), {})
    assert str(got.value) == str(expected.value)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.ops.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_another_dispatch_mode_sees_every_op():
    def inside(x):
        with Seen() as seen:
            y = run_capture(torch.add, x, 1)  # not the innermost one: left alone
        return y, seen.ops

    x = torch.randn(3)
    with Seen() as outside:
        y, ops = Between().run(inside, (x,), {})
    assert torch.equal(y, x + 1) and ops == ["aten.add.Tensor"] and "aten.add.Tensor" in outside.ops


def test_fake_tensors_stay_fake():
    from torch._subclasses import FakeTensor, FakeTensorMode

    between = Between()
    for _ in range(2):
        with FakeTensorMode():
            out = between.run(lambda: torch.arange(5) + torch.ones(5), (), {})
        assert isinstance(out, FakeTensor)
        assert type(between.run(lambda: torch.arange(5) + torch.ones(5), (), {})) is torch.Tensor


def test_captures_and_models_within_are_not_looked_at():
    between, x = Between(), torch.randn(3)

    def function(x):
        y = run_capture(torch.mul, x, 3)
        return Between().run(lambda x: x + 1, (y,), {})  # the outermost model's serves those within

    assert torch.equal(between.run(function, (x,), {}), x * 3 + 1)
    assert [key[0] for key in between._programs] == [torch.ops.aten.add.Tensor]


def test_an_exception_ends_the_interception():
    def fail(x):
        raise ZeroDivisionError

    between = Between()
    with pytest.raises(ZeroDivisionError):
        between.run(fail, (None,), {})
    torch.randn(3) + 1
    assert between._programs == {}
    assert torch.equal(between.run(lambda x: x + 1, (torch.ones(2),), {}), torch.ones(2) + 1)


def test_threads_share_programs_and_not_interceptions():
    between, wrong = Between(), []

    def work(seed):
        x = torch.full((50,), float(seed))
        for _ in range(50):
            if not torch.equal(between.run(lambda x: x * 2 + 1, (x,), {}), x * 2 + 1):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(between._programs) == 2


def test_many_forms_of_operands():
    between, x = Between(), torch.randn(4, 6)
    for function in (
        lambda: torch.cat([x, x.t().reshape(6, 4).t(), x[:, :2].expand(4, 2)], 1),
        lambda: torch.where(x > 0, x, torch.tensor(-1.0)),
        lambda: x.t()[::2] + x[0, :3, None],
        lambda: x.to(torch.float64).sum(),
        lambda: torch.stack([x, x]).clone(),
        lambda: x.bool().any(-1),
        lambda: torch.zeros(0, 3) + 1,
        lambda: x.half() + 1,
        lambda: x.to_sparse().to_dense() + 0,
        lambda: torch.vmap(lambda a, b: a * b + 1)(x, x),
        lambda: torch.func.grad(lambda a: (a * a).sum())(x),
    ):
        torch.testing.assert_close(between.run(function, (), {}), function())
