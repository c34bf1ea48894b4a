"""torch.compile(model, backend="kiln") as a whole: eager's results, and never an exception of Kiln's own."""

import copy
import subprocess
import sys

import pytest
import torch

import kiln
from kiln import _session
from kiln.torch import compat, programs, public
from kiln.torch import backend

CREATE_PROGRAM = programs.create_program  # conftest.py may replace it


def agree(got, expected, tolerance=3e-6):
    torch.testing.assert_close(got, expected, rtol=10 * tolerance, atol=tolerance)


def train(model, x, steps=3):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def perceptron(dropout=0.0):
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(16, 4))


def test_inference_and_training_agree_with_eager():
    model, x = perceptron(), torch.randn(5, 8)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend)
    with torch.no_grad():
        agree(compiled(x), model(x))
    agree(torch.tensor(train(compiled, x)), torch.tensor(train(model, x)))
    stats = kiln.stats()
    assert stats["nodes_fallback"] == 0 and stats["graphs_eager"] == 0 and stats["nodes_compiled"] > 8


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8)])
def test_dropout_draws_eagers_mask_from_one_seed(shape):
    model, x = perceptron(0.5), torch.randn(shape)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = model(x)
        after = torch.rand(1)
        torch.manual_seed(seed)
        agree(compiled(x), expected)
        assert torch.equal(torch.rand(1), after)  # the generator stands where eager's does
    assert kiln.stats()["nodes_fallback"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_in_place_draws_eagers_mask_and_leaves_nothing_to_torch(dtype):
    def function(x):
        x = torch.nn.functional.dropout(x * 2, 0.4, inplace=True)
        return torch.nn.functional.dropout(x * 2, 0.2) + 1

    x = torch.randn(3, 5, 8, dtype=dtype)
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), expected)
    assert kiln.stats()["nodes_fallback"] == 0


def test_dropout_of_a_permuted_tensor_draws_eagers_mask():
    def function(x):
        return torch.nn.functional.dropout(x.transpose(1, 2) * 2, 0.5)

    x = torch.randn(3, 4, 5)
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    assert torch.equal(torch.compile(function, backend=backend)(x), expected)


def test_other_random_numbers_keep_their_order():
    def function(x):
        a = torch.nn.functional.dropout(x, 0.5)
        b = torch.rand_like(x)
        return a + torch.nn.functional.dropout(b * a, 0.3), torch.randn(3)

    x = torch.randn(40)
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    agree(torch.compile(function, backend=backend)(x), expected)


def test_an_index_out_of_range_is_an_index_error():
    model = torch.nn.Embedding(10, 4)
    compiled = torch.compile(model, backend=backend)
    agree(compiled(torch.tensor([3])), model(torch.tensor([3])))
    with pytest.raises(IndexError, match="index out of range in self"):
        compiled(torch.tensor([10]))


def test_buffers_are_updated_in_place():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count += 1
            return x * self.count

    model = Counter()
    compiled = torch.compile(model, backend=backend)
    for i in range(1, 4):
        agree(compiled(torch.ones(3)), torch.full((3,), float(i)))
    assert model.count.tolist() == [3, 3, 3]


def test_outputs_that_alias_inputs_are_views_of_them():
    def function(x):
        return x.view(-1), x[1:], x + 1

    x = torch.randn(4, 3)
    flat, tail, _ = torch.compile(function, backend=backend)(x)
    assert flat.data_ptr() == x.data_ptr() and tail.data_ptr() == x[1:].data_ptr()


def test_a_changed_shape_still_gives_torchs_results():
    model = perceptron()
    compiled = torch.compile(model, backend=backend)
    for batch in (2, 3, 7, 11):
        x = torch.randn(batch, 8)
        agree(compiled(x), model(x))


def test_a_symbolic_extent_is_one_text_for_all_batches():
    model = torch.nn.Sequential(perceptron(), torch.nn.LayerNorm(4), torch.nn.Softmax(-1))
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for batch in (2, 3, 7, 11, 3):
        x = torch.randn(batch, 8)
        with torch.no_grad():
            agree(compiled(x), model(x))
    stats = kiln.stats()
    assert stats["graphs"] == 1 and stats["nodes_fallback"] == 0, kiln.explain()


def test_a_symbolic_stride_is_read_from_the_tensor():
    compiled = torch.compile(lambda x: x.exp() * 2, backend=backend, dynamic=True)
    for rows, columns, room in ((3, 5, 9), (4, 6, 11), (2, 8, 13)):
        x = torch.randn(rows, room)[:, :columns]
        agree(compiled(x), x.exp() * 2)
    assert kiln.stats()["nodes_fallback"] == 0, kiln.explain()


def test_training_with_a_symbolic_extent_agrees_with_eager():
    model = perceptron()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend, dynamic=True)
    for batch in (4, 6, 9):
        x = torch.randn(batch, 8)
        agree(torch.tensor(train(compiled, x)), torch.tensor(train(model, x)))
    assert kiln.stats()["nodes_compiled"] > 5


def test_what_has_an_extent_that_the_data_tells_stays_in_torch_and_the_rest_does_not():
    def some(x):
        return torch.nonzero(x > 0).float().tanh(), (x * 2).exp()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.randn(6, 5)
        before = kiln.stats()["nodes_compiled"]
        agree(torch.compile(some, backend=backend, fullgraph=True)(x), some(x))
    assert kiln.stats()["nodes_compiled"] > before


def test_strided_and_sliced_inputs_are_right():
    model = perceptron()
    compiled = torch.compile(model, backend=backend)
    wide = torch.randn(16, 10)
    for x in (wide[:, 1:9], wide[::2, :8], torch.randn(8, 5).t(), torch.randn(1, 8).expand(5, 8)):
        agree(compiled(x), model(x))


def test_a_program_that_cannot_be_had_runs_in_torch(monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("no daemon")

    monkeypatch.setattr(programs, "create_program", refuse)
    model, x = perceptron(), torch.randn(5, 8)
    agree(torch.compile(model, backend=backend)(x), model(x))
    stats = kiln.stats()
    assert stats["nodes_compiled"] == 0 and stats["fallback_ops"]["aten.addmm.default"] >= 2
    assert capsys.readouterr().err.count("kiln: ") == 1
    assert any(entry["reason"] == "no daemon" for entry in kiln.explain())


class Unimplemented(Exception):
    code_name = "unimplemented"


def test_an_op_that_no_backend_has_leaves_its_subgraph_alone(monkeypatch):
    original = programs.create_program

    def lack(text, *rest):
        if "tanh(" in text:
            raise Unimplemented("loops_f32_80: cpu: tanh of f32")
        return original(text, *rest)

    monkeypatch.setattr(programs, "create_program", lack)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4), torch.nn.ReLU())
    x = torch.randn(5, 8)
    with torch.no_grad():
        agree(torch.compile(model, backend=backend)(x), model(x))
    stats = kiln.stats()
    assert stats["fallback_ops"] == {"aten.tanh.default": 1} and stats["nodes_compiled"] == 3, kiln.explain()
    assert {entry["reason"] for entry in kiln.explain() if "node" in entry} == {"loops_f32_80: cpu: tanh of f32"}


@pytest.mark.parametrize("options, expected", [({"deadline_ms": 1500}, 1500), ({}, 0), ({"deadline_ms": "soon"}, 0)])
def test_the_deadline_reaches_the_client(monkeypatch, options, expected):
    seen = []

    class Client:
        def compile(self, *_, deadline_ms, **__):
            seen.append(deadline_ms)
            raise RuntimeError("no daemon")

    monkeypatch.setattr(programs, "create_program", CREATE_PROGRAM)
    _session.session().wait = "always"
    monkeypatch.setattr(_session.Session, "client", lambda *_: Client())
    model, x = perceptron(), torch.randn(5, 8)
    agree(torch.compile(model, backend=backend, options=options)(x), model(x))
    assert set(seen) == {expected}


def test_a_program_that_fails_when_run_is_replaced_by_torch(monkeypatch, capsys):
    def broken(*_):
        def run(tensors):
            raise RuntimeError("launch failed")

        return run

    monkeypatch.setattr(programs, "create_program", broken)
    model, x = perceptron(), torch.randn(5, 8)
    compiled = torch.compile(model, backend=backend)
    agree(compiled(x), model(x))
    agree(compiled(x), model(x))
    assert capsys.readouterr().err.count("launch failed") == 1


def test_a_failing_compiler_leaves_the_graph_to_torch(monkeypatch, capsys):
    def explode(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("kiln.torch.split.first_partition", explode)
    model, x = perceptron(0.5), torch.randn(5, 8)
    compiled = torch.compile(model, backend=backend)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    agree(compiled(x), expected)
    compiled(x).sum().backward()
    assert kiln.stats()["graphs_eager"] >= 1 and "ZeroDivisionError" in capsys.readouterr().err


def test_disabled_it_is_eager(monkeypatch):
    monkeypatch.setenv("KILN_DISABLE", "1")
    model, x = perceptron(), torch.randn(5, 8)
    agree(torch.compile(model, backend=backend)(x), model(x))
    assert kiln.stats()["graphs"] == 0


def test_another_version_of_torch_takes_the_public_adapter(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    compat.adapter.cache_clear()
    try:
        assert compat.adapter() is public
        model, x = perceptron(0.5), torch.randn(5, 8)
        twin = copy.deepcopy(model)
        compiled = torch.compile(twin, backend=backend)
        torch.manual_seed(1)
        expected = train(model, x)
        torch.manual_seed(1)
        agree(torch.tensor(train(compiled, x)), torch.tensor(expected))
        assert kiln.stats()["nodes_compiled"] > 0
    finally:
        monkeypatch.undo()
        compat.adapter.cache_clear()


def test_only_the_adapter_uses_private_torch():
    import pathlib
    import re

    folder = pathlib.Path(kiln.__file__).parent
    private = re.compile(r"torch\._[a-z]|torch\.utils\._|functorch")
    for file in folder.rglob("*.py"):
        if not file.name.endswith("_2_13.py") and file.name != "public.py":
            code = [line for line in file.read_text().splitlines() if not line.lstrip().startswith(("#", '"""'))]
            assert not [line for line in code if private.search(line)], file


def test_importing_kiln_imports_neither_dynamo_nor_inductor():
    code = "import sys, kiln; print([m for m in sys.modules if m.startswith('torch')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_unknown_options_are_named_and_ignored(capsys):
    model, x = perceptron(), torch.randn(5, 8)
    compiled = torch.compile(model, backend=backend, options={"colour": 1})
    agree(compiled(x), model(x))
    assert "option 'colour' is not known" in capsys.readouterr().err
