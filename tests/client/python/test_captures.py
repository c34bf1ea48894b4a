"""Captures fit only what they were made of: in one process, in the next, and with whatever a block can read changed between."""

import collections
import copy

import captured_models as models
import pytest
import torch
from conftest import OVER_DOUBLE
from processes import report_of
from torch.nn import functional

import kiln
from kiln import _session, regional
from kiln.torch import entry
from kiln.torch.described import Describer, Undescribed

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")

TOLERANCE = 1e-5


def forget():
    """As in a new process."""
    regional._captures.clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture(autouse=True)
def no_captures():
    forget()


def frames():
    return torch._dynamo.utils.counters["frames"]["ok"]


def check(model, twin, trains=True):
    x = torch.randn(2, 5, models.WIDTH, generator=torch.Generator().manual_seed(2))
    results = []
    for each in (model, twin):
        each.zero_grad()
        with torch.set_grad_enabled(trains):
            output = each(x)
            if trains:
                (output * torch.arange(output.numel()).view_as(output).cos()).sum().backward()  # no norm makes it zero
        results.append([output.detach(), *(p.grad.clone() for p in each.parameters() if p.grad is not None)])
    for got, expected in zip(*results, strict=True):
        assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max().clamp_min(1e-3)


def compiled(kind, which="A"):
    model = models.make(kind, which)
    return kiln.compile(copy.deepcopy(model)), model


@pytest.mark.parametrize("module", [torch.nn.Flatten(), torch.nn.Unflatten(1, (3, -1)), models.AsComplex()], ids=lambda m: type(m).__name__)
def test_what_gives_a_view_of_its_input_is_kept(module):
    for frames_made in (1, 0):
        forget()
        x = torch.randn(2, 6, 4, requires_grad=True)
        got = kiln.compile(copy.deepcopy(module))(x)
        assert torch.equal(got, module(x)) and got._base is x
        assert frames() == frames_made, kiln.explain()


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
def test_a_layer_whose_weight_is_computed_is_kept(trains):
    for factor, frames_made in ((2.0, 1), (3.0, 1), (2.0, 0), (3.0, 0)):
        forget()
        model = models.parametrized(factor)
        check(kiln.compile(copy.deepcopy(model)), model, trains)
        assert frames() == frames_made, kiln.explain()


def test_blocks_with_layers_whose_weights_are_computed_are_kept_each_for_itself():
    for frames_made in (2, 0):
        forget()
        model = models.Stack([models.parametrized(2.0) for _ in range(2)])
        check(kiln.compile(copy.deepcopy(model)), model, trains=False)
        assert frames() == frames_made, kiln.explain()


@pytest.mark.parametrize("name", models.CALLS)
def test_what_calls_bring_along_is_kept(name):
    make, arguments = models.CALLS[name]
    for is_known in (False, True):
        forget()
        model = kiln.compile(make())
        for argument in arguments():
            torch.testing.assert_close(model(argument), make()(argument))
        assert not is_known or frames() == 0, kiln.explain()


def test_what_torch_checks_is_kept_with_its_graph():
    good, bad = torch.randn(4, 4, 8).requires_grad_(), torch.zeros(4, 4, 8, requires_grad=True)
    for frames_made in (1, 0):
        forget()
        model = kiln.compile(models.Factor())
        torch.testing.assert_close(model(good), models.Factor()(good))
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            model(bad)
        assert frames() == frames_made, kiln.explain()
        report = kiln.report(model)
        assert report.captures["not_kept"] == 0 and [cause.op for cause in report.causes] == ["aten.linalg_cholesky_ex.default"]


# ---- what guards cannot hold in another process


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("kind", models.PAIRS)
def test_blocks_that_differ_by_what_they_can_read_share_nothing(kind, trains):
    for which in ("A", "B", "MIX"):
        forget()
        check(*compiled(kind, which), trains)
    for which in ("A", "B", "MIX"):
        forget()
        check(*compiled(kind, which), trains)
        assert frames() == 0, kiln.explain()  # each found its own


@pytest.mark.parametrize("kind", models.SURROUNDINGS)
def test_what_blocks_find_around_them_is_part_of_what_they_are(kind, monkeypatch):
    for is_known in (False, True):
        for value in (2.0, 3.0):
            forget()
            model, change = models.make_surrounded(kind)
            change(monkeypatch, value)
            check(kiln.compile(copy.deepcopy(model)), model)
            assert not is_known or frames() == 0, kiln.explain()


@pytest.mark.parametrize("kind", models.SURROUNDINGS)
def test_what_changes_around_a_running_model_is_seen(kind, monkeypatch):
    model, change = models.make_surrounded(kind)
    compiled = kiln.compile(copy.deepcopy(model))
    for value in (2.0, 3.0, 2.0):
        change(monkeypatch, value)
        check(compiled, model)


def test_models_of_one_process_that_differ_by_a_function_share_nothing():
    for which in ("A", "B", "A"):
        check(*compiled("function", which))


def test_a_library_function_replaced_before_the_start_is_seen(monkeypatch):
    check(*compiled("encoder"))
    original = functional.linear
    forget()
    with monkeypatch.context() as patched:
        patched.setattr(functional, "linear", lambda *arguments: original(*arguments) * 0.5)
        check(*compiled("function"))
    forget()
    check(*compiled("function"))


def test_a_method_replaced_on_a_class_is_seen_in_the_running_process_and_in_the_next(monkeypatch):
    model, twin = compiled("subclass")
    check(model, twin)
    monkeypatch.setattr(models.Overridden, "then", lambda self, x: x - 7)
    check(model, twin)
    forget()
    check(*compiled("subclass"))
    assert frames() == 0, kiln.explain()
    monkeypatch.undo()
    forget()
    check(*compiled("subclass"))


def test_changes_after_a_capture_was_loaded_are_seen():
    check(*compiled("function"))
    forget()
    model, twin = compiled("function")
    check(model, twin)
    assert frames() == 0
    for change in (torch.tanh, models.scaling(5.0), models.scaling(6.0), models.Kind.SUM):
        for each in (model, twin):
            each.blocks[1].what = change
        check(model, twin)


def test_what_only_its_address_tells_is_not_kept_and_counted():
    class Local:
        def __call__(self, x):
            return x * 2

    model = models.Stack([models.Block(Local()), models.Block(Local())])
    compiled = kiln.compile(copy.deepcopy(model))
    for _ in range(2):
        check(compiled, model)
        assert kiln.stats()["captures_not_kept"] == kiln.report(compiled).captures["not_kept"] > 0
    assert any("not kept" in entry["reason"] for entry in kiln.explain() if "node" in entry)


def test_a_part_of_which_no_graph_can_be_compiled_runs_in_torch_and_says_why(monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("no such op")

    monkeypatch.setattr(entry, "compile_graph", refuse)
    check(*compiled("builtin"))
    said = capsys.readouterr().err
    assert "no such op" in said and "attribute" not in said


# ---- what joins


def test_a_capture_is_found_with_another_number_of_threads():
    check(*compiled("builtin"))
    threads = torch.get_num_threads()
    forget()
    torch.set_num_threads(threads + 1)
    try:
        check(*compiled("builtin"))
        assert frames() == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["function", "bound_method"])
def test_a_capture_is_found_whatever_mode_the_model_is_compiled_in(kind):
    check(*compiled(kind))
    forget()
    model = models.make(kind, "A")
    found = kiln.compile(copy.deepcopy(model).eval()).train()
    check(found, model)
    assert frames() == 0, kiln.explain()


def test_what_is_warmed_for_a_target_joins_what_was_warmed_in_training(monkeypatch):
    check(*compiled("enum"), trains=True)
    forget()
    targets = {"x86-64-v2": collections.Counter(nodes_compiled=0, nodes_left=0)}
    monkeypatch.setattr(_session.session(), "targets", targets)
    check(*compiled("enum"), trains=False)
    assert frames() > 0 and targets["x86-64-v2"]["nodes_compiled"] > 0
    monkeypatch.undo()
    for trains in (True, False):
        forget()
        check(*compiled("enum"), trains)
        assert frames() == 0, kiln.explain()


def test_graphs_that_do_not_run_here_are_not_counted(monkeypatch):
    check(*compiled("default"), trains=False)
    alone = kiln.stats()["nodes_compiled"]
    check(*compiled("default"), trains=True)
    forget()
    monkeypatch.setattr(_session, "_session", _session.Session())
    check(*compiled("default"), trains=False)
    assert frames() == 0 and kiln.stats()["nodes_compiled"] == alone


def test_counters_are_there_before_anything_ran(monkeypatch):
    monkeypatch.setattr(_session, "_session", _session.Session())
    assert kiln.stats()["programs"] == 0 and kiln.stats()["captures_not_kept"] == 0


# ---- digests


def test_digests_tell_code_and_values_apart_and_nothing_else():
    digest = lambda value: Describer().digest(value)  # noqa: E731
    assert digest(models.scaling(2.0)) == digest(models.scaling(2.0)) != digest(models.scaling(3.0))
    assert digest(models.with_default(2.0)) != digest(models.with_default(3.0))
    assert digest(models.Kind.SUM) != digest(models.Kind.DIFFERENCE)
    assert digest({"a", "b", "c"}) == digest({"c", "b", "a"})
    assert digest(models.Overridden) != digest(models.Tripled)
    assert digest(0.0) != digest(-0.0)
    with pytest.raises(Undescribed):
        digest(object())


# ---- between processes


def two_processes(folder, name, *options):
    """What a process says of an architecture, and what another one says that has no daemon. Their results are eager's."""
    if name not in ("encoder", "names", "loss", "recurrent", "speech"):
        pytest.importorskip("transformers")

    def run(**variables):
        return report_of("captured_process.py", name, *options, KILN_CACHE_DIR=str(folder), **variables)

    cold, warm = run(), run(KILN_NO_DAEMON="1")
    assert max(cold["error"], warm["error"]) < TOLERANCE
    return cold, warm


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5", "encoder", "names", "loss", "recurrent", "speech"])
def test_a_second_process_captures_and_compiles_nothing(name, tmp_path):
    cold, warm = two_processes(tmp_path, name)
    assert cold["frames"] > 0 and warm["frames"] == 0 and warm["stats"]["compilations"] == 0, warm["explain"]
    assert warm["stats"]["captures_not_kept"] == warm["stats"]["checks_failed"] == cold["stats"]["checks_failed"] == 0


@pytest.mark.parametrize("name", ["t5", "encoder", "loss", "recurrent", "speech"])
def test_a_second_process_compiles_nothing_of_whole_models(name, tmp_path):
    cold, warm = two_processes(tmp_path, name, "--whole")
    assert cold["stats"]["compilations"] > 0 and warm["stats"]["compilations"] == 0, warm["explain"]
    assert warm["stats"]["nodes_fallback"] == cold["stats"]["nodes_fallback"]
