"""Nodes that Kiln lacks stay in torch and break nothing around them; borders cost no copies."""

import torch

import kiln
from capture import assert_close, captured, compiled
from kiln._reasons import Reason
from kiln.torch import CompiledGraph, compile_graph
from kiln.torch.partition import partition, why_not
from kiln.torch.place import Place

aten = torch.ops.aten


def plan_of(function, *inputs):
    gm = captured(function, *inputs)
    return gm, partition(gm.graph)


def test_a_covered_graph_is_one_subgraph_without_steps_in_torch():
    _, plan = plan_of(lambda x, w: torch.relu(x @ w).sum(), torch.randn(3, 4), torch.randn(4, 5))
    assert list(plan.subgraphs) == [0] and plan.reasons == {}


def test_a_node_without_a_row_splits_into_two_subgraphs_only():
    def function(x):
        a = torch.relu(x)
        b = torch.special.bessel_j0(a)  # Kiln has none
        return a * 2 + 1, b + a, torch.tanh(a * 3)

    gm, plan = plan_of(function, torch.randn(3, 4))
    assert sorted(plan.subgraphs) == [0, 1]
    assert [n.target for n in plan.reasons] == [aten.special_bessel_j0.default]
    got, expected, stats = compiled(function, torch.randn(3, 4))
    assert_close(got, expected)
    assert stats["fallback_ops"] == {"aten.special_bessel_j0.default": 1} and stats["nodes_fallback"] == 1
    assert {"node": "aten.special_bessel_j0.default", "reason": "no row"} in kiln.explain()


def test_alternating_nodes_run_in_the_right_order():
    def function(x, y):
        for _ in range(4):
            x = torch.special.bessel_j0(x) + y
            y = torch.tanh(y) * x
        return x, y

    got, expected, _ = compiled(function, torch.randn(6), torch.randn(6))
    assert_close(got, expected, factor=4)


def test_independent_chains_share_subgraphs():
    def function(x):
        outs = []
        for i in range(5):
            outs.append(torch.special.bessel_j0(x * i) + 1)
        return tuple(outs)

    _, plan = plan_of(function, torch.randn(6))
    assert sorted(plan.subgraphs) == [0, 1]
    assert len(plan.subgraphs[0].outputs) == 5


def test_views_at_the_border_are_torchs_and_not_counted():
    def function(x):
        y = (x + 1).transpose(0, 1)
        return y, y.reshape(2, 6)[:, 1:], x.view(-1), torch.special.bessel_j0(y[1])

    gm, plan = plan_of(function, torch.randn(3, 4))
    (subgraph,) = plan.subgraphs.values()
    assert [n.target for n in subgraph.nodes if n not in plan.views][0] is aten.add.Tensor
    got, expected, stats = compiled(function, torch.randn(3, 4))
    assert_close(got, expected)
    assert stats["nodes_fallback"] == 1


def test_a_copy_of_an_input_is_a_copy():
    got, _, _ = compiled(lambda x: (x.clone(), x.t().contiguous(), x + 1), torch.randn(3, 4))
    x = torch.randn(3, 4)
    run = compile_graph(captured(lambda x: (x.clone(), x + 1), x), ())
    copy, _ = run([x])
    x.zero_()
    assert not torch.equal(copy, x)


def test_an_output_and_its_copy_are_two_tensors():
    run = compile_graph(captured(lambda x: ((y := x + 1), y.clone()), torch.randn(3, 4)), ())
    y, copy = run([torch.randn(3, 4)])
    assert torch.equal(y, copy) and y.data_ptr() != copy.data_ptr()


def test_outputs_that_are_inputs_or_none_pass_through():
    x = torch.randn(3)
    run = compile_graph(captured(lambda x: (x, None, x + 1), x), ())
    same, nothing, _ = run([x])
    assert same is x and nothing is None


def test_empty_parts_of_a_cat_take_nothing_from_it():
    def some(x, y):
        return torch.cat([x[..., :8].tanh() * 2, x[..., 8:], x[..., 1:3]], -1) * y

    got, expected, stats = compiled(some, torch.randn(2, 3, 8), torch.randn(10))
    assert_close(got, expected)
    assert stats["nodes_fallback"] == 0, kiln.explain()


def test_empty_tensors_stay_in_torch_and_cost_nothing():
    got, expected, stats = compiled(lambda x: (x + 1, aten.native_layer_norm(x, [4], None, None, 1e-5)[0]), torch.empty(0, 4))
    assert_close(got, expected)
    assert stats["nodes_fallback"] == 0, kiln.explain()
    got, expected, _ = compiled(lambda x, y: (torch.cat([x[:0], y]) + 1, (x[:0] * 2)), torch.randn(3, 4), torch.randn(2, 4))
    assert_close(got, expected)


def test_an_empty_tensor_made_in_torch_splits_nothing():
    def function(x):
        y = torch.relu(x)
        nothing = torch.special.bessel_j0(y[:, 4:])
        return torch.cat([torch.tanh(y), nothing], 1).sum(), aten.slice_backward(nothing, [3, 4], 1, 4, 4, 1) + y

    _, plan = plan_of(function, torch.randn(3, 4))
    assert list(plan.subgraphs) == [0] and len(plan.subgraphs[0].inputs) == 1
    got, expected, _ = compiled(function, torch.randn(3, 4))
    assert_close(got, expected)


def test_pieces_of_a_tuple_that_torch_makes_are_torchs():
    gm = captured(lambda x: [piece + 1 for piece in (x * 2).split(2, 1)], torch.randn(3, 4))
    (split,) = gm.graph.find_nodes(op="call_function", target=aten.split.Tensor)
    plan = partition(gm.graph, {split: Reason("a reason")})
    assert len(split.users) == 2 and split.users.keys() <= plan.reasons.keys()


def test_other_dtypes_stay_in_torch():
    got, expected, stats = compiled(lambda x: (x.short() + 1, torch.asin(x.to(torch.complex64)), x + 1), torch.randn(4))
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert stats["fallback_ops"].keys() == {"aten._to_copy.default", "aten.add.Tensor", "aten.asin.default"}


def test_permuted_and_overlapping_inputs_are_read_in_place():
    x, row = torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 4)
    got, expected, stats = compiled(lambda x, r: (x * r, x.t() + 1), x, row)
    assert_close(got, expected)
    assert stats["relayouts"] == 0


def test_every_reason_is_a_sentence_not_a_crash():
    gm = captured(lambda x: (torch.special.bessel_j0(x), torch.linalg.norm(x, 3), x.unfold(0, 2, 1)), torch.randn(5))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert "Error" not in (why_not(node, Place(torch.device("cpu"))) or "")


def test_a_thousand_nodes_compile_in_a_second():
    def function(x):
        for _ in range(1000):
            x = torch.tanh(x)
        return x

    import time

    gm = captured(function, torch.randn(3))
    begin = time.process_time()
    run = compile_graph(gm, ())
    assert time.process_time() - begin < 3
    assert run([torch.zeros(3)]) is not None


def test_a_compiled_graph_is_kept_as_plain_data():
    import pickle

    def function(x, w):
        a = torch.dropout(torch.relu(x @ w), 0.5, True)
        return torch.special.bessel_j0(a) + torch.tensor([1.0, 2.0, 3.0]), a.view(-1)[1:], float("inf") - a

    inputs = [torch.randn(4, 5), torch.randn(5, 3)]
    first = compile_graph(captured(function, *inputs), inputs)
    again = CompiledGraph.load(pickle.loads(pickle.dumps(first.dump())))
    torch.manual_seed(3)
    expected = first(list(inputs))
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(again(list(inputs)), expected, strict=True))


def test_an_empty_constant_is_not_kept():
    run = compile_graph(captured(lambda x: (torch.cat([torch.tensor([]), x * 2]),), torch.randn(4)), ())
    x = torch.randn(4)
    assert torch.equal(CompiledGraph.load(run.dump())([x])[0], x * 2)
