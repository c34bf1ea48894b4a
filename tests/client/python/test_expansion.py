"""Nodes without a row in pieces that have rows (kiln/torch/expansion.py)."""

import pytest
import torch
from torch import nn

import kiln
from capture import assert_close, captured, compiled
from kiln.torch import compile_graph, programs
from kiln.torch.expansion import first_partition
from kiln.torch.partition import prepare
from kiln.torch.pieces import is_counted, name_of, whole_of
from kiln.torch.rows import NO_ROW, row_of

aten = torch.ops.aten


def f32(*shape):
    return torch.randn(*shape)


CASES = {
    "one result": (lambda x, y: aten.huber_loss(x, y, 1, 0.5), lambda: [f32(4, 5), f32(4, 5)]),
    "several results": (lambda x: aten.std_mean(x, [1], correction=1), lambda: [f32(4, 5)]),
    "one of several results": (lambda x: aten.aminmax(x, dim=1)[1], lambda: [f32(4, 5)]),
    "a result that is a view": (lambda x: aten.channel_shuffle(x * 2, 3), lambda: [f32(2, 6, 5)]),
    "strides of its own": (lambda x: aten._prelu_kernel(x.permute(0, 2, 1), x[0, 0, 0].view(1)), lambda: [f32(2, 6, 5)]),
    "pieces between others": (lambda x, y: aten.xlogy(torch.exp(x), torch.exp(y)).sum(0) * 2, lambda: [f32(4, 5), f32(4, 5)]),
    "one in another": (lambda x, y: aten.smooth_l1_loss(aten.heaviside(x, y), y), lambda: [f32(4, 5), f32(4, 5)]),
    "places in an image": (lambda x, at: tuple(aten.grid_sampler_2d(x, at, mode, padding, aligned) for mode, padding, aligned in
        ((0, 0, False), (0, 1, True), (1, 2, False), (0, 2, True))), lambda: [f32(2, 3, 6, 7), torch.rand(2, 4, 5, 2) * 2.4 - 1.2]),
    "weights of classes": (lambda x, t, w: aten.nll_loss_forward(x, t, w, 1, -100), lambda: [f32(6, 9), torch.randint(9, (6,)), torch.rand(9)]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_in_pieces_agrees_with_torch_and_counts_once(name):
    function, inputs = CASES[name]
    values = inputs()
    got, expected, stats = compiled(function, *values)
    assert_close(got, expected, factor=4)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0


def expanded(function, *inputs):
    """The graph after its first partition."""
    graph = captured(function, *inputs).graph
    first_partition(graph, prepare(graph))
    return graph


def test_pieces_have_rows_and_stand_for_the_node():
    graph = expanded(lambda x, y: (aten.huber_loss(x, y, 1, 0.5),), f32(4, 5), f32(4, 5))
    pieces = [n for n in graph.nodes if whole_of(n) is not None]
    assert len(pieces) > 2 and all(row_of(n.target) is not NO_ROW for n in pieces)
    assert [name_of(n) for n in pieces if is_counted(n)] == ["aten.huber_loss.default"]


def test_what_no_row_says_in_any_form_is_left_as_it_is():
    graph = expanded(lambda x: (aten.special_bessel_j0(x),), f32(4, 5))
    assert any(n.target is aten.special_bessel_j0.default for n in graph.nodes)
    assert all(whole_of(n) is None for n in graph.nodes)


def test_an_index_out_of_range_in_a_piece_is_torchs_own_error():
    log_probs, weight, target = f32(6, 9), torch.rand(9), torch.randint(9, (6,))
    run = compile_graph(captured(lambda x, t, w: aten.nll_loss_forward(x, t, w, 1, -100)[0:1], log_probs, target, weight), ())
    expected = aten.nll_loss_forward(log_probs, target, weight, 1, -100)[0]
    torch.testing.assert_close(run([log_probs, target, weight])[0], expected)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        run([log_probs, torch.full((6,), 9), weight])


class Refused(Exception):
    """What kiln.Error is of a graph that no backend can build."""

    code_name, op = "unimplemented", ""


@pytest.mark.parametrize("several", [False, True])
def test_a_node_of_which_no_program_can_be_had_is_put_back(monkeypatch, several):
    create = programs.create_program

    def refusing(text, *arguments, **options):
        if "select(" in text or "sqrt(" in text:
            raise Refused
        return create(text, *arguments, **options)

    monkeypatch.setattr(programs, "create_program", refusing)

    def function(x, y):
        if several:
            deviation, mean = aten.std_mean(x, [1], correction=1)
            return torch.exp(deviation * 2), torch.tanh(mean), aten.std_mean(y * 2, [0], correction=0)[0]
        loss = aten.huber_loss(x, y, 0, 0.5)
        return torch.exp(aten.huber_loss(loss * 2, y, 0, 0.25)), torch.tanh(y)

    got, expected, stats = compiled(function, f32(4, 5), f32(4, 5))
    assert_close(got, expected)
    op = "aten.std_mean.correction" if several else "aten.huber_loss.default"
    assert stats["fallback_ops"] == {op: 2}
    assert stats["nodes_compiled"] > 0


def test_gradients_of_what_is_in_pieces_are_torchs():
    layer = nn.PReLU(3)
    x = f32(2, 3, 5)

    def step(layer, x):
        x = x.detach().requires_grad_()
        loss = nn.functional.smooth_l1_loss(layer(x), torch.zeros_like(x), beta=0.5)
        return loss, *torch.autograd.grad(loss, (x, layer.weight))

    before = kiln.stats()["nodes_fallback"]
    torch._dynamo.reset()
    model = torch.compile(layer, backend="kiln")
    torch.testing.assert_close(step(model, x), step(layer, x))
    assert kiln.stats()["nodes_fallback"] == before


@pytest.mark.parametrize("function", [lambda x, y: aten.xlogy(x.exp(), y.exp()).sum(0), lambda x, y: aten.huber_loss(x, y, 0, 0.5) * 2,
                                      lambda x, y: aten._prelu_kernel(x, y[0, 0].view(1)), lambda x, y: aten.aminmax(x + y, dim=1)[1]])  # fmt: skip
def test_a_node_whose_extents_change_is_in_pieces_too(function):
    in_kiln = torch.compile(function, backend=kiln.torch.backend, dynamic=True)
    for shape in ((4, 5), (33, 7), (2, 64)):
        x, y = f32(*shape), f32(*shape)
        got, expected = in_kiln(x, y), function(x, y)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    stats = kiln.stats()
    assert stats["nodes_compiled"] > 0 and stats["fallback_ops"] == {} and stats["checks_failed"] == 0


HIDDEN = torch.tensor([[0] * 7, [0] * 4 + [1] * 3, [1] * 7]).bool()  # nothing is left of the last sequence
LATER = torch.ones(7, 7).triu(1).bool()
MASKS = {"none": {}, "keys": {"src_key_padding_mask": HIDDEN}, "scores": {"src_mask": LATER},
         "both": {"src_mask": LATER, "src_key_padding_mask": HIDDEN}}  # fmt: skip


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_a_layer_of_an_encoder_that_torch_runs_as_one_op_is_in_pieces(masks, norm_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu" if norm_first else "relu", norm_first=norm_first, batch_first=True)
    layer.eval()
    x = f32(3, 7, 16)
    compiled_layer = torch.compile(layer, backend="kiln")
    torch.testing.assert_close(compiled_layer(x, **masks), layer(x, **masks), rtol=1e-4, atol=1e-5, equal_nan=True)
    report = kiln.report(compiled_layer)
    assert report.nodes_in_kiln > 0 and report.nodes_in_torch == 0, report


@torch.no_grad()
def test_weights_of_attention_that_torch_runs_as_one_op_are_in_pieces():
    attention, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), f32(3, 7, 16)
    for average in (True, False):
        compiled_attention = torch.compile(attention, backend="kiln")
        options = {"key_padding_mask": HIDDEN, "average_attn_weights": average}
        torch.testing.assert_close(compiled_attention(x, x, x, **options), attention(x, x, x, **options), rtol=1e-4, atol=1e-5, equal_nan=True)
        assert kiln.report(compiled_attention).nodes_in_torch == 0


POOLS = {
    "planes": ((2, 3, 9, 11), (2, 3), (4, 5)),
    "one plane": ((3, 8, 7), (2, 2), (3, 6)),
    "windows side by side": ((1, 2, 6, 8), (2, 2), (3, 4)),
    "one window": ((2, 2, 5, 6), (5, 1), (1, 1)),
    "volumes": ((2, 2, 6, 7, 9), (1, 2, 3), (4, 3, 5)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fractional_pools_are_torchs_with_their_places_and_gradients(name, dtype):
    shape, kernel, positions = POOLS[name]
    rank = len(kernel)
    pool = getattr(torch.nn.functional, f"fractional_max_pool{rank}d")
    samples = torch.rand(shape[0] if len(shape) == rank + 2 else 1, shape[-rank - 1], rank, dtype=dtype)

    def step(x):
        largest, places = pool(x, kernel, output_size=positions, _random_samples=samples, return_indices=True)
        return largest * 1, places * 1, torch.autograd.grad(largest.square().sum(), x)[0]

    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    compiled_step = torch.compile(step, backend="kiln")
    for got, expected in zip(compiled_step(x), step(x), strict=True):
        torch.testing.assert_close(got, expected)
    assert kiln.stats()["fallback_ops"] == {}
