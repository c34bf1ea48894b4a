"""Optimizers' steps, compiled: by kiln.compile, and by torch.compile(optimizer.step), beside torch's own."""

import copy

import pytest
import torch

import kiln

SHAPES = [(6, 5), (5,), (6, 5), ()]
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "Adam, fused": (torch.optim.Adam, {"fused": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "Rprop": (torch.optim.Rprop, {}),
}


class Pair:
    """The same parameters twice, each under an optimizer: one to be compiled, one of torch's own."""

    def __init__(self, make, options: dict, shapes=SHAPES, dtype=torch.float32) -> None:
        torch.manual_seed(7)
        self.params = [[torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]]
        self.params.append(copy.deepcopy(self.params[0]))
        self.mine, self.torchs = (make(params, **options) for params in self.params)

    def set_gradients(self) -> None:
        for mine, torchs in zip(*self.params):
            mine.grad = torch.randn_like(mine)
            torchs.grad = mine.grad.clone()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.set_gradients()
            self.mine.step()
            self.torchs.step()

    def assert_equal(self, rtol=1e-5, atol=1e-6) -> None:
        for mine, torchs in zip(*self.params):
            torch.testing.assert_close(mine, torchs, rtol=rtol, atol=atol)
            states = self.mine.state[mine], self.torchs.state[torchs]
            assert states[0].keys() == states[1].keys()
            for name, value in states[1].items():
                torch.testing.assert_close(states[0][name], value, rtol=rtol, atol=atol)


def nodes() -> int:
    return kiln.stats()["nodes_compiled"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_is_torchs(name, capfd):
    # Rprop looks for elements by what their signs are: of a number, how many there are is not known beforehand.
    pair, before = Pair(*OPTIMIZERS[name], shapes=SHAPES[: -1 if name == "Rprop" else None]), nodes()
    assert kiln.compile(pair.mine) is pair.mine
    pair.step(4)
    pair.assert_equal()
    assert nodes() > before, "some of it ran in Kiln"
    assert "is torch's" not in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    pair = Pair(torch.optim.AdamW, {}, dtype=dtype)
    kiln.compile(pair.mine)
    pair.step(3)
    pair.assert_equal(*((1e-12, 1e-12) if dtype == torch.float64 else (2e-2, 2e-2)))


def test_parameters_and_state_are_written_in_place():
    pair = Pair(torch.optim.AdamW, {})
    kiln.compile(pair.mine)
    pair.step(2)
    param = pair.params[0][0]
    tensors = [param, *pair.mine.state[param].values()]
    places, version = [t.data_ptr() for t in tensors], param._version
    pair.step()
    assert [t.data_ptr() for t in (param, *pair.mine.state[param].values())] == places
    assert all(a is b for a, b in zip(tensors, (param, *pair.mine.state[param].values())))
    assert param._version > version, "autograd sees that it was written to"


def test_a_scheduler_changes_the_rate_without_a_new_program():
    pair = Pair(torch.optim.AdamW, {"lr": 0.1})
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (pair.mine, pair.torchs)]
    kiln.compile(pair.mine)
    pair.step(2)
    before = nodes()
    for _ in range(4):
        for scheduler in schedulers:
            scheduler.step()
        pair.step()
    pair.assert_equal()
    assert nodes() == before


def test_options_that_change_all_the_time_are_left_to_torch(capfd):
    pair = Pair(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    kiln.compile(pair.mine)
    for i in range(12):
        for optimizer in (pair.mine, pair.torchs):
            optimizer.param_groups[0]["momentum"] = 0.5 + 0.01 * i
        pair.step()
    pair.assert_equal()
    assert capfd.readouterr().err.count("its options change from step to step") == 1


def test_groups_have_options_of_their_own_and_gradients_may_be_missing():
    def make(params):
        return torch.optim.AdamW([{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:], "lr": 0.1}])

    pair = Pair(make, {})
    kiln.compile(pair.mine)
    pair.step(2)
    pair.set_gradients()
    pair.params[0][1].grad = pair.params[1][1].grad = None
    pair.mine.step(), pair.torchs.step()
    pair.step(1)
    pair.assert_equal()


def test_a_parameter_that_joins_later_has_its_state_made_by_torch():
    pair = Pair(torch.optim.AdamW, {})
    kiln.compile(pair.mine)
    pair.step(2)
    torch.manual_seed(1)
    new = torch.nn.Parameter(torch.randn(6, 5))
    for params, optimizer in zip(pair.params, (pair.mine, pair.torchs)):
        params.append(torch.nn.Parameter(new.detach().clone()))
        optimizer.add_param_group({"params": params[-1:]})
    pair.step(3)
    pair.assert_equal()


def test_closures_hooks_and_saved_state():
    pair, called = Pair(torch.optim.AdamW, {}), []
    kiln.compile(pair.mine)
    pair.mine.register_step_post_hook(lambda *_: called.append("after"))
    pair.step(2)
    pair.set_gradients()
    assert pair.mine.step(lambda: 5.0) == 5.0
    pair.torchs.step()
    assert called == ["after"] * 3
    pair.mine.load_state_dict(copy.deepcopy(pair.torchs.state_dict()))
    pair.step(2)
    pair.assert_equal()


class Together(torch.optim.SGD):
    """Scales every gradient by the norm of all."""

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            p.sub_(p.grad / norm)


class Counting(torch.optim.SGD):
    """Keeps a number in its state."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            count = self.state[p]["count"] = self.state[p].get("count", 0) + 1
            p.sub_(p.grad / count)


@pytest.mark.parametrize("make, why", [(Together, "not independent of one another"), (Counting, "state that is no tensor")])
def test_what_cannot_be_had_is_torchs_and_said_once(make, why, capfd):
    pair = Pair(make, {"lr": 0.1})
    kiln.compile(pair.mine)
    pair.step(3)
    for mine, torchs in zip(*pair.params):
        assert torch.equal(mine, torchs)
    assert capfd.readouterr().err.count(why) == 1


def test_sparse_gradients_are_torchs_and_said_once(capfd):
    torch.manual_seed(3)
    tables = [torch.nn.Embedding(9, 4, sparse=True)]
    tables.append(copy.deepcopy(tables[0]))
    optimizers = [torch.optim.SGD(table.parameters(), lr=0.1) for table in tables]
    kiln.compile(optimizers[0])
    for _ in range(3):
        for table, optimizer in zip(tables, optimizers):
            optimizer.zero_grad()
            table(torch.tensor([1, 5, 1])).square().sum().backward()
            optimizer.step()
    assert torch.equal(tables[0].weight, tables[1].weight)
    assert capfd.readouterr().err.count("a tensor that is sparse, complex or on a device") == 1


def test_torch_compile_writes_in_place():
    pair = Pair(torch.optim.AdamW, {})
    pair.mine.step = torch.compile(pair.mine.step, backend="kiln")
    pair.step(3)
    param, before = pair.params[0][0], nodes()
    places = [t.data_ptr() for t in (param, *pair.mine.state[param].values())]
    pair.step(2)
    assert [t.data_ptr() for t in (param, *pair.mine.state[param].values())] == places
    assert nodes() == before
    pair.assert_equal()
