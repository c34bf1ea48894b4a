"""What cannot be built is left to torch, and nothing else with it (kiln/torch/split.py)."""

import pathlib
import re

import alike
import pytest
import torch
from torch import nn

import kiln
from capture import captured
from conftest import OVER_DOUBLE
from kiln import regional
from kiln._reasons import CAUSES
from kiln.torch import backend, captures, programs
from kiln.torch.fallback import fallback_graph
from kiln.torch.partition import partition, prepare
from kiln.torch.split import ABOUT_THE_GRAPH, share_of_work
from kiln.torch.subgraphs import EagerSubgraph


class Refused(Exception):
    """What kiln.Error is of a graph that no backend can build."""

    def __init__(self, op=""):
        super().__init__(f"no kernel of {op or 'this'}")
        self.code_name, self.op = ("unimplemented", op) if op else ("internal", "")


def refuse(monkeypatch, is_refused):
    """From now on a program cannot be had of a text for which is_refused(text) gives an op, or "" for an error that names none."""
    create = programs.create_program

    def refusing(text, *arguments, **options):
        op = is_refused(text)
        if op is not None:
            raise Refused(op)
        return create(text, *arguments, **options)

    monkeypatch.setattr(programs, "create_program", refusing)


def outside(function, *inputs):
    """Ops that ran in torch, and whether results are torch's."""
    torch._dynamo.reset()
    before = kiln.stats()["fallback_ops"]
    results = torch.compile(function, backend=backend)(*inputs)
    torch.testing.assert_close(results, function(*inputs))
    return {op: n - before.get(op, 0) for op, n in kiln.stats()["fallback_ops"].items() if n > before.get(op, 0)}


def chain(x):
    y = torch.tanh(x * 2).sum(0)
    z = torch.sigmoid(y) + torch.tanh(x[0] - 1)
    return torch.exp(z).cumsum(0), torch.sin(z)


def test_a_subgraph_is_split_at_the_op_that_is_missing(monkeypatch):
    refuse(monkeypatch, lambda text: "cumsum" if "cumsum(" in text else None)
    assert outside(chain, torch.randn(4, 5)) == {"aten.cumsum.default": 1}


def test_only_the_nodes_of_an_op_that_cannot_be_had_are_left(monkeypatch):
    refuse(monkeypatch, lambda text: "tanh" if "tanh(" in text and "[4, 5]" in text else None)
    assert outside(lambda x, y: (torch.tanh(x), torch.tanh(y) + 1), torch.randn(4, 5), torch.randn(3)) == {"aten.tanh.default": 1}


def test_an_error_that_names_no_op_costs_the_node_alone(monkeypatch):
    refuse(monkeypatch, lambda text: "" if "sin(" in text else None)
    assert outside(chain, torch.randn(4, 5)) == {"aten.sin.default": 1}


def test_many_missing_ops_cost_no_other_node(monkeypatch):
    missing = ("tanh", "sin", "exp", "cumsum", "sigmoid", "mul")
    refuse(monkeypatch, lambda text: next((op for op in missing if f" {op}(" in text), None))
    left = outside(chain, torch.randn(4, 5))
    assert sum(left.values()) == 7 and "aten.sub.Tensor" not in left and "aten.add.Tensor" not in left


def test_a_missing_daemon_is_no_nodes_fault(monkeypatch):
    class Unavailable(Exception):
        code_name = "unavailable"

    def unavailable(*_, **__):
        raise Unavailable("no daemon")

    asked = []
    monkeypatch.setattr(programs, "create_program", lambda text, *_, **__: asked.append(text) or unavailable())
    outside(chain, torch.randn(4, 6))  # of no other test: what they found lacking is kept
    assert len(asked) == 1


def test_a_graph_of_which_little_is_kilns_is_torchs_own(monkeypatch):
    monkeypatch.setenv("KILN_CONVOLUTION", "torch")
    weight = torch.randn(64, 64, 3, 3)

    def convolutions(x):
        for _ in range(2):
            x = torch.nn.functional.conv2d(x, weight, padding=1)
        return x[:, 0, 0, 0] + 1

    calls = []

    def noting(gm, inputs):
        calls.append((gm, backend(gm, inputs)))
        return calls[-1][1]

    x = torch.randn(2, 64, 12, 12)
    torch.testing.assert_close(torch.compile(convolutions, backend=noting)(x), convolutions(x))
    ((gm, function),) = calls
    assert function.__self__ is gm and kiln.stats()["nodes_compiled"] == 0
    assert any("less than" in entry["reason"] for entry in kiln.explain())


class Convolutions(nn.Module):
    """Nearly all of its work is torch's, but for that of a product in training, if it is there."""

    def __init__(self, trains_product=False):
        super().__init__()
        self.first, self.second = (nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))
        self.product = nn.Linear(1024, 1024) if trains_product else None

    def forward(self, x):
        x = self.second(self.first(x))
        if self.product is not None and self.training:
            return self.product(x.reshape(-1, 1024))
        return x[:, 0, 0, 0] + 1


def unreached(*_):
    raise AssertionError("the entry was not called as without Kiln")


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
def test_an_entry_all_of_whose_graphs_are_torchs_is_called_as_without_kiln_in_the_next_process_too(monkeypatch):
    monkeypatch.setenv("KILN_CONVOLUTION", "torch")
    x = torch.randn(2, 64, 16, 16)
    for is_known in (False, True):
        regional._captures.clear()  # as in a new process
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        module = Convolutions()
        model = kiln.compile(module)
        model(x).sum().backward()
        assert (torch._dynamo.utils.counters["frames"]["ok"] == 0) is is_known and kiln.stats()["nodes_compiled"] == 0
        with monkeypatch.context() as patched:
            patched.setattr(captures.adapter().Capture, "__call__", unreached)
            alike.check(Convolutions.forward.__get__(module), [x], model, module, module)


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
def test_an_evaluation_that_is_torchs_says_nothing_of_training(monkeypatch):
    monkeypatch.setenv("KILN_CONVOLUTION", "torch")
    regional._captures.clear()
    module = Convolutions(trains_product=True)
    model, x = kiln.compile(module), torch.randn(2, 64, 16, 16)
    with torch.no_grad():
        model.eval()(x)
        assert kiln.stats()["nodes_compiled"] == 0
    model.train()(x).sum().backward()
    assert kiln.stats()["nodes_compiled"] > 0


def test_shares_of_work_follow_products(monkeypatch):
    monkeypatch.setenv("KILN_CONVOLUTION", "torch")
    graph = captured(lambda x, w: torch.nn.functional.conv2d(x, w) + 1, torch.randn(2, 64, 12, 12), torch.randn(64, 64, 3, 3)).graph
    heavy = share_of_work(partition(graph))
    graph = captured(lambda x, w: torch.nn.functional.conv2d(x, w) + 1, torch.randn(2, 2, 12, 12), torch.randn(4, 2, 1, 1)).graph
    assert heavy < 0.1 < share_of_work(partition(graph)) < 1


def test_codes_are_those_that_libkiln_has():
    header = pathlib.Path(__file__).parents[3] / "client/include/kiln.h"
    known = {name.lower() for name in re.findall(r"KILN_(\w+) = \d+", header.read_text())}
    assert set(CAUSES) | set(ABOUT_THE_GRAPH) < known and not set(CAUSES) & set(ABOUT_THE_GRAPH)


def test_a_fallback_leaves_products_that_are_outputs_as_they_are():
    """A product without a bias is looked at by way of _unsafe_view, whose schema does not say that it is a view."""
    gate, up, x = torch.randn(8, 6), torch.randn(8, 6), torch.randn(2, 3, 6)

    def function(x, gate, up):
        flat = x.view(6, 6)
        products = flat @ gate.t(), flat @ up.t()
        views = [torch.ops.aten._unsafe_view(product, [2, 3, 8]) for product in products]
        return *products, torch.nn.functional.silu(views[0]) * views[1]

    graph = captured(function, x, gate, up).graph
    (subgraph,) = partition(graph, None, prepare(graph)).subgraphs.values()
    assert any("_unsafe_view" in str(n.target) for n in fallback_graph(graph, subgraph).nodes)
    for got, want in zip(EagerSubgraph(graph, subgraph)([x, gate, up]), function(x, gate, up), strict=True):
        assert torch.equal(got, want)


def test_a_fallback_writes_only_to_what_it_made_and_nothing_else_reads():
    def function(x, y):
        once = (x.t().exp() + y).tanh()
        twice = once * 2
        view = twice.t()
        return (twice - 1).abs() + twice.sin(), view.cos(), (y * y).to(torch.float64) + 1, torch.where(x > 0, x, -x).neg()

    graph = captured(function, torch.randn(4, 6), torch.randn(6, 4)).graph
    (subgraph,) = partition(graph, None, prepare(graph)).subgraphs.values()
    fallback = fallback_graph(graph, subgraph)
    changing = {str(n.target) for n in fallback.nodes if "_." in str(n.target)}
    assert changing == {f"aten.{name}_.{overload}" for name, overload in (
        ("add", "Tensor"), ("tanh", "default"), ("mul", "Tensor"), ("abs", "default"), ("neg", "default"))}  # fmt: skip
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    before = x.clone(), y.clone()
    for got, want in zip(EagerSubgraph(graph, subgraph)([x, y]), function(x, y), strict=True):
        assert torch.equal(got, want) and got.stride() == want.stride()
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])
