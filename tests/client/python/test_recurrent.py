"""Recurrent layers: the step's formulas agree with torch's in f64, whatever the form of the layer; whole models stay one graph."""

import pytest
import torch

import kiln
from kiln.torch import onednn_lstm, recurrent

KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN,
         "rnn_relu": lambda *sizes, **form: torch.nn.RNN(*sizes, nonlinearity="relu", **form)}  # fmt: skip
FORMS = {
    "one layer": {},
    "steps second": {"batch_first": True},
    "no bias": {"bias": False},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
}


@pytest.fixture(params=[False, True], ids=["programs", "onednn"])
def of_onednn(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(onednn_lstm, "is_had", lambda x: False)
    return request.param


def layer(kind, dtype=torch.float32, inputs=11, width=19, **form):
    return KINDS[kind](inputs, width, **form).to(dtype)


def run(function, module, x, *states):
    """(results, gradients of the module, of x and of the states)."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, *states)]
    given = () if not states else (tuple(leaves[1:]),) if len(states) > 1 else (leaves[1],)
    out, ends = function(leaves[0], *given)
    results = [out, *(ends if isinstance(ends, tuple) else (ends,))]
    loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in results)
    wanted = [*module.parameters(), *leaves]
    return [t.detach() for t in results], torch.autograd.grad(loss, wanted)


def agree(got, wanted, tolerance):
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance * max(1.0, float(b.abs().max())))


def compiled_by_kiln(module):
    counts = kiln.stats()
    compiled = torch.compile(module, backend="kiln")
    return compiled, lambda: {name: kiln.stats()[name] - counts[name] for name in ("graphs", "nodes_compiled", "nodes_fallback")}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_and_its_gradients_are_torchs(kind, form, of_onednn):
    if of_onednn and kind != "lstm":
        pytest.skip("oneDNN is asked for LSTMs")
    module = layer(kind, **FORMS[form])
    compiled, counted = compiled_by_kiln(module)
    for rows, steps in ((3, 7), (1, 5)):
        x = torch.randn(rows, steps, 11) if module.batch_first else torch.randn(steps, rows, 11)
        agree(run(compiled, module, x), run(module, module, x), 2e-5)
    in_torch = 0 if kind != "lstm" or not of_onednn else 1
    assert counted()["graphs"] and bool(counted()["nodes_fallback"]) == bool(in_torch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind, dtype, monkeypatch):
    monkeypatch.setattr(onednn_lstm, "is_had", lambda x: False)
    module, x = layer(kind, dtype), torch.randn(6, 4, 11).to(dtype)
    exact = KINDS[kind](11, 19).double()
    exact.load_state_dict({name: p.double() for name, p in module.state_dict().items()})
    got = run(torch.compile(module, backend="kiln"), module, x)
    wanted = run(exact, exact, x.double())
    tolerance = {torch.float64: 1e-12, torch.bfloat16: 6e-2, torch.float16: 8e-3}[dtype]
    agree([[t.double() for t in part] for part in got], wanted, tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_given_have_gradients(kind, of_onednn):
    module, x = layer(kind), torch.randn(5, 3, 11)
    states = [torch.randn(1, 3, 19) for _ in range(2 if kind == "lstm" else 1)]
    agree(run(torch.compile(module, backend="kiln"), module, x, *states), run(module, module, x, *states), 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_formulas_against_finite_differences(kind):
    cell, width = recurrent.CELLS[kind], 3
    gates = {"lstm": 4, "gru": 3}.get(kind, 1) * width
    operands = [torch.randn(4, 2, gates), torch.randn(2, width), torch.randn(2, width) if cell.states == 2 else None,
                torch.randn(gates, width), torch.randn(gates) if cell.has_bias else None]  # fmt: skip
    operands = [None if t is None else t.double().requires_grad_() for t in operands]

    def results(*given):
        out, lasts, _ = torch.ops.kiln.recurrence(*given, kind)
        return (out, lasts) if cell.states == 2 else out

    assert torch.autograd.gradcheck(results, operands)


class Speech(torch.nn.Module):
    """Convolutions, then recurrent layers with dropout, then scores of each step."""

    def __init__(self, kind):
        super().__init__()
        self.front = torch.nn.Conv1d(8, 24, 3, padding=1)
        self.layers = KINDS[kind](24, 24, num_layers=2, dropout=0.25, bidirectional=True, batch_first=True)
        self.scores = torch.nn.Sequential(torch.nn.LayerNorm(48), torch.nn.Linear(48, 5))

    def forward(self, x):
        out, _ = self.layers(torch.relu(self.front(x)).transpose(1, 2))
        return self.scores(out)


@pytest.mark.parametrize("compiler", [lambda m: torch.compile(m, backend="kiln"), kiln.compile], ids=["torch.compile", "kiln.compile"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_around_recurrent_layers_trains(kind, compiler, monkeypatch):
    monkeypatch.setattr(onednn_lstm, "is_had", lambda x: False)
    model, x = Speech(kind), torch.randn(3, 8, 9)

    def gradients(function):
        torch.manual_seed(3)  # masks of dropout are drawn as eager draws them
        return torch.autograd.grad(function(x).logsumexp(-1).mean(), list(model.parameters()))

    wanted = gradients(model)
    counts = kiln.stats()["nodes_fallback"]
    compiled = compiler(model)
    for _ in range(2):
        agree([gradients(compiled)], [wanted], 2e-5)
    assert kiln.stats()["nodes_fallback"] == counts


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_that_change_take_no_program_each(kind, monkeypatch):
    monkeypatch.setattr(onednn_lstm, "is_had", lambda x: False)
    module = layer(kind)
    compiled = torch.compile(module, backend="kiln", dynamic=True)
    made = []
    for steps in (6, 9, 17):
        x = torch.randn(steps, 4, 11)
        agree(run(compiled, module, x), run(module, module, x), 2e-5)
        made.append(kiln.stats()["graphs"])
    assert made == [made[0]] * 3


class Wrapped(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.before, self.layers = torch.nn.Linear(11, 11), layers

    def forward(self, x):
        return self.layers(torch.tanh(self.before(x)))[0] + 1


@pytest.mark.parametrize("what", ["projections", "autocast"])
def test_before_what_is_not_known_a_graph_ends(what):
    module, x = Wrapped(torch.nn.LSTM(11, 19, proj_size=7 if what == "projections" else 0)), torch.randn(6, 3, 11)
    compiled, counted = compiled_by_kiln(module)
    with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"), torch.no_grad():
        agree([[compiled(x)]], [[module(x)]], 2e-2 if what == "autocast" else 2e-5)
    assert counted()["graphs"] == 2


def test_packed_sequences_are_eagers():
    module = torch.nn.GRU(11, 19)
    x = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 3, 11), [6, 4, 1])
    agree([[torch.compile(module, backend="kiln")(x)[0].data]], [[module(x)[0].data]], 2e-5)


def test_a_sequence_without_steps_is_torchs_error():
    module = torch.nn.GRU(11, 19)
    for function in (module, torch.compile(module, backend="kiln")):
        with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0"):
            function(torch.randn(0, 3, 11))


def test_gradients_of_gradients_are_eagers():
    module, x = layer("gru"), torch.randn(4, 2, 11, requires_grad=True)

    def second(function):
        (first,) = torch.autograd.grad(function(x)[0].pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), list(module.parameters()))

    agree([second(torch.compile(module, backend="kiln"))], [second(module)], 1e-4)
