"""kiln.compile: eager's results, captures that the next process installs, and never a stale one."""

import copy
import json
import os
import pickle
import shutil
import socket
import subprocess
import time

import pytest
import torch
from conftest import CLI, OVER_DOUBLE
from processes import report_of
from regional_models import MAKERS, difference, loss_and_gradients, make, make_ids

import kiln
from kiln import _session, regional
from kiln.torch import captures
from kiln.torch.described import Describer

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")

TOLERANCE = 5e-6  # f32, sums of at most 200 terms; relative to each tensor's largest element


def run(cache, *arguments, **environment):
    """What one process of regional_process.py reports."""
    return report_of("regional_process.py", *arguments, KILN_CACHE_DIR=str(cache), **environment)


@pytest.fixture
def store(tmp_path):
    """The environment of hosts that share a redis-server."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = tmp_path / "keys"
    subprocess.run([CLI, "key", "create", keys], check=True, capture_output=True)
    with subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as server:
        yield {"KILN_CACHE_REMOTE": f"redis://127.0.0.1:{port}", "KILN_REMOTE_SIGNING_KEY": str(keys / "kiln.key"),
               "KILN_REMOTE_BUDGET_MS": "20000", "KILN_PACKS_TRUST": str(keys), "KILN_PACKS_TRUST_CAPTURES": str(keys)}  # fmt: skip
        server.kill()


@pytest.fixture(autouse=True)
def no_captures():
    """As in a new process."""
    regional._captures.clear()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def check(model, twin, ids=None, seed=7):
    """Both models' losses and gradients agree, from one seed."""
    ids = make_ids() if ids is None else ids
    torch.manual_seed(seed)
    got = loss_and_gradients(model, ids)
    torch.manual_seed(seed)
    assert difference(got, loss_and_gradients(twin, ids)) < TOLERANCE


def compiled_pair(kind="gpt", depth=2, **options):
    model = make(kind, depth, **options)
    return kiln.compile(copy.deepcopy(model)), model


# ---- between processes


@pytest.mark.parametrize("kind", ["gpt", "llama", "bert", "perceptron"])
def test_a_second_process_compiles_nothing_and_gives_the_same_bits(cache, kind):
    cold = run(cache, "train", kind)
    warm = run(cache, "train", kind, KILN_NO_DAEMON="1")
    for process in (cold, warm):
        assert process["error"] < TOLERANCE and process["digest"] == process["again"]
        assert not process["inductor"]
        assert process["stats"]["fallback_ops"] == {}  # what runs between captures included
    assert cold["frames"] > 0 and cold["stats"]["compilations"] > 0
    assert warm["frames"] == 0 and warm["stats"]["compilations"] == 0 and warm["stats"]["misses"] == 0
    assert warm["stats"]["hits_mapped"] == warm["stats"]["programs"] > 0
    assert warm["digest"] == cold["digest"]
    assert warm["stats"]["nodes_compiled"] == cold["stats"]["nodes_compiled"]


def test_a_deeper_model_needs_no_capture_of_its_blocks(cache):
    run(cache, "train", "gpt", "2")
    deeper = run(cache, "train", "gpt", "7", KILN_NO_DAEMON="1")
    assert deeper["frames"] == 0 and deeper["stats"]["misses"] == 0 and deeper["error"] < TOLERANCE


@torch._dynamo.config.patch(recompile_limit=2)
def test_each_of_many_blocks_may_hold_a_number_of_its_own():
    depth = 4
    compiled, model = compiled_pair(depth=depth)
    for pair in (compiled.blocks, model.blocks):
        for place, block in enumerate(pair):
            block.scale = place - depth // 2
    check(compiled, model)
    (entry,) = regional.entries_of(compiled.blocks[0]._compiled_call_impl)
    assert entry.capture_counts()["kept"] == depth


def test_whatever_changes_after_a_warm_load_is_captured_anew(cache):
    run(cache, "train", "gpt")
    changed = run(cache, "change")
    assert changed["before"] > 0  # the new length
    assert changed["errors"] and max(changed["errors"].values()) < TOLERANCE, changed["errors"]
    again = run(cache, "change", KILN_NO_DAEMON="1")
    assert again["frames"] == 0 and max(again["errors"].values()) < TOLERANCE, again["errors"]


def test_whatever_changes_without_a_daemon_runs_in_torch(tmp_path):
    run(tmp_path, "train", "gpt")
    changed = run(tmp_path, "change", KILN_NO_DAEMON="1")
    assert max(changed["errors"].values()) < TOLERANCE, changed["errors"]
    assert changed["stats"]["compilations"] == 0 and changed["stats"]["nodes_fallback"] > 2


def test_dropout_draws_eagers_masks_in_both_processes(tmp_path):
    options = json.dumps({"dropout": 0.3})
    cold = run(tmp_path, "train", "gpt", "2", options)
    warm = run(tmp_path, "train", "gpt", "2", options, KILN_NO_DAEMON="1")
    assert max(cold["error"], warm["error"]) < TOLERANCE and warm["digest"] == cold["digest"] and warm["frames"] == 0


@pytest.mark.parametrize("kind, options", [("gpt", '{"dropout": 0.3}'), ("noisy", "{}")])
def test_what_kernels_draw_is_of_the_seed_alone_in_both_processes(tmp_path, kind, options):
    cold = run(tmp_path, "train", kind, "2", options, KILN_RANDOM="fast")
    warm = run(tmp_path, "train", kind, "2", options, KILN_RANDOM="fast", KILN_NO_DAEMON="1")
    for process in (cold, warm):
        assert process["digest"] == process["again"] == cold["digest"] and process["error"] > TOLERANCE
        assert process["stats"]["checks_failed"] == 0 and process["stats"]["fallback_ops"] == {}
    assert cold["stats"]["checked"] > 0 and warm["frames"] == 0 and warm["stats"]["compilations"] == 0
    torchs = run(tmp_path, "train", kind, "2", options)  # what was captured for the other way does not fit
    assert torchs["error"] < TOLERANCE and torchs["frames"] > 0


def test_blocks_that_look_at_their_data_go_the_right_way(cache):
    cold, warm = run(cache, "branch"), run(cache, "branch", KILN_NO_DAEMON="1")
    assert max(cold["error"], warm["error"]) < TOLERANCE and warm["stats"]["compilations"] == 0


def test_gradients_that_are_there_already_are_added_to_cold_and_warm(tmp_path):
    cold, warm = run(tmp_path, "accumulate"), run(tmp_path, "accumulate", KILN_NO_DAEMON="1")
    for process in (cold, warm):
        assert process["error"] < TOLERANCE and "instead" not in process["stderr"], process["stderr"]
    assert warm["frames"] == 0 and warm["stats"]["compilations"] == 0 and warm["stats"]["misses"] == 0


def test_inference_modes_agree_with_eager_cold_and_warm(cache):
    cold, warm = run(cache, "infer"), run(cache, "infer", KILN_NO_DAEMON="1")
    for process in (cold, warm):
        assert max(process["errors"].values()) < TOLERANCE and process["stats"]["fallback_ops"] == {}
    assert cold["frames"] > 0 and warm["frames"] == 0 and warm["stats"]["compilations"] == 0


def test_a_capture_that_grows_in_each_process_is_whole_in_the_next(tmp_path):
    """Names that a process makes after it loaded a capture are saved, and met by the next process's own."""
    for mode in ("no_grad", "inference_mode", "grad"):
        grown = run(tmp_path, "infer", mode)
        assert grown["frames"] > 0 and "instead" not in grown["stderr"], grown["stderr"]
    warm = run(tmp_path, "infer", KILN_NO_DAEMON="1")
    assert warm["frames"] == 0 and max(warm["errors"].values()) < TOLERANCE


# ---- guards and hooks in one process


def test_hooks_added_after_the_capture_fire():
    model, twin = compiled_pair()
    check(model, twin)
    for where in (lambda m: m.blocks[1], lambda m: m.blocks[0].up):
        seen = []
        handle = where(model).register_forward_hook(lambda module, inputs, output: seen.append(1) or output * 2)
        double = where(twin).register_forward_hook(lambda module, inputs, output: output * 2)
        check(model, twin)
        assert seen
        handle.remove()
        double.remove()
        check(model, twin)
        assert len(seen) == 1


def test_checkpointed_blocks_train():
    model, twin = compiled_pair(dropout=0.2)
    model.checkpointed = twin.checkpointed = True
    check(model, twin)


def test_models_of_one_process_share_the_capture_of_their_blocks():
    check(*compiled_pair(depth=2))
    torch._dynamo.utils.counters.clear()
    model, twin = compiled_pair(depth=5)
    check(model, twin)
    assert torch._dynamo.utils.counters["frames"]["ok"] == 0


def test_a_compiled_model_is_copied_and_pickled_without_its_captures():
    model, twin = compiled_pair()
    check(model, twin)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        check(other, twin)
        assert all(module._compiled_call_impl is None for module in other.modules())
        check(kiln.compile(other), twin)


def test_disabled_nothing_is_changed(monkeypatch):
    monkeypatch.setenv("KILN_DISABLE", "1")
    model, twin = compiled_pair()
    assert all(module._compiled_call_impl is None for module in model.modules())
    check(model, twin)


def test_a_fork_runs_what_its_parent_captured():
    torch.set_num_threads(1)  # GNU's OpenMP has no threads in a child
    model, twin = compiled_pair()
    check(model, twin)
    child = os.fork()
    if child == 0:
        try:
            check(model, twin)
            check(model, twin, make_ids(9))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# ---- what cannot be captured, and whose fault it is


def test_the_callers_mistakes_are_torchs_own_exceptions():
    model, twin = compiled_pair()
    beyond, too_long = torch.full((2, 16), 50), make_ids(65)
    for ids in (beyond, too_long):  # before any capture, then after
        with pytest.raises(IndexError, match="index out of range in self"):
            model(ids)
    check(model, twin)
    for ids in (beyond, too_long):
        with pytest.raises(IndexError, match="index out of range in self"):
            model(ids)
    check(model, twin)
    with pytest.raises(RuntimeError) as expected:
        twin.blocks[0](torch.ones(2, 16, 5))
    with pytest.raises(type(expected.value)) as got:
        model.blocks[0](torch.ones(2, 16, 5))
    assert str(got.value) == str(expected.value)
    check(model, twin)


def test_what_cannot_be_captured_is_compiled_by_torch_and_said_once(monkeypatch, capsys):
    def refuse(self, gm, example_inputs, **_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(captures.adapter().Capture, "_backend", refuse)
    model, twin = compiled_pair("llama")
    check(model, twin)
    check(model, twin)
    said = capsys.readouterr().err
    assert said.count("a block is compiled by torch.compile instead") == 1
    assert any("planted" in entry["reason"] for entry in kiln.explain()), kiln.explain()
    assert kiln.stats()["nodes_compiled"] > 0  # by torch.compile(backend="kiln")


def test_another_version_of_torch_is_compiled_by_torch_compile(monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    captures.adapter.cache_clear()
    try:
        model, twin = compiled_pair()
        check(model, twin)
        assert "2.99.0+cpu is compiled by torch.compile instead" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        captures.adapter.cache_clear()


def plant(kind, change):
    """Puts change(saved capture) in the place of each capture of the model, and sees that it lies there."""
    client = _session.session().client()
    for entry in regional.find_entries(make(kind, 2), regional.Settings()):
        planted = change(client.capture_get(entry._key))
        client.capture_put(entry._key, planted)
        deadline = time.monotonic() + 60
        while client.capture_get(entry._key) != planted:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LazyLinear(9), torch.nn.LazyLinear(5)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_a_model_whose_parameters_are_not_known_yet_is_compiled_by_torch_compile(capsys):
    model = kiln.compile(Lazy())
    x = torch.randn(4, 7)
    got = model(x)
    torch.testing.assert_close(got, torch.relu(x @ model.first.weight.T + model.first.bias) @ model.second.weight.T
                               + model.second.bias, rtol=0, atol=TOLERANCE)  # fmt: skip
    assert capsys.readouterr().err.count("Lazy is compiled by torch.compile instead") == 1


def test_an_attribute_may_be_named_like_a_dict_of_hooks():
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.GELU(), torch.nn.Linear(9, 5))
    model[0].output_hooks_installed = True
    twin = copy.deepcopy(model)
    x = torch.randn(4, 7)
    torch.testing.assert_close(kiln.compile(model)(x), twin(x), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:100] + b"\xff" * 40 + b[140:], lambda b: b"junk"])
def test_a_damaged_capture_is_captured_anew(damage):
    check(*compiled_pair())
    plant("gpt", damage)
    regional._captures.clear()
    check(*compiled_pair())
    regional._captures.clear()
    torch._dynamo.utils.counters.clear()
    check(*compiled_pair())  # what was damaged is whole again
    assert torch._dynamo.utils.counters["frames"]["ok"] == 0


# Pickles that call os.system and the like, the second through a module that torch imports.
PLANTED = [
    b"cposix\nsystem\n(S'touch planted'\ntR.",
    b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93\x8c\x0dtouch planted\x85R.",
    b"csubprocess\nPopen\n((S'touch'\nS'planted'\nltR.",
    b"cbuiltins\neval\n(S'open(\"planted\", \"w\")'\ntR.",
    b"cbuiltins\ngetattr\n(cbuiltins\nobject\nS'__subclasses__'\ntR(tR.",
    b"cbuiltins\ntype\n(S'Planted'\n(t(dtR.",
    # Through functions of modules that a capture has names of.
    b"ctorch._utils\n_import_dotted_name\n(S'posix.system'\ntR(S'touch planted'\ntR.",
    b"ctorch.fx.graph_module\n_exec_with_source\n(S'open(\"planted\", \"w\")'\n(dtR.",
    b"ckiln.torch.graphs\nCompiledGraph\n(S'open(\"planted\", \"w\")'\n(d(d(ltR.",
    # By a name that is not called, and one that is not to be rebuilt.
    b"ckiln.torch._situations_2_13\nNamed\n(S'posix'\nS'system'\nNtR(S'touch planted'\ntR.",
    b"ckiln.torch._situations_2_13\nrebuild\n(S'_unpickle_python_module'\nS'antigravity'\ntR.",
]


@pytest.mark.parametrize("payload", PLANTED)
def test_a_capture_that_names_what_it_may_not_is_refused(payload, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plant("bert", lambda saved: payload)
    model, twin = compiled_pair("bert")
    check(model, twin)
    assert not (tmp_path / "planted").exists()
    reasons = [entry.get("reason", "") for entry in kiln.explain()]
    assert any("a capture may not" in reason or "not callable" in reason for reason in reasons), reasons


def blocks_of(model):
    return regional.repeated_blocks(model, Describer())


def test_repeated_blocks_are_found_by_class_and_parameters():
    assert {kind: [len(group) for group in blocks_of(make(kind, 4))] for kind in MAKERS} == {
        "gpt": [4], "llama": [4], "bert": [4], "branching": [4], "noisy": [4],
    }  # fmt: skip
    mixed = make("gpt", 4)
    mixed.blocks[2] = MAKERS["llama"]()
    assert [len(group) for group in blocks_of(mixed)] == [3]
    assert blocks_of(make("perceptron")) == []


class Halving(torch.nn.Module):
    """Halves a signal's length, and says what it made of it in a mean."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(4, 4, 3, stride=2, padding=1), torch.nn.GroupNorm(2, 4)

    def forward(self, x):
        return self.norm(self.conv(x))


class Pyramid(torch.nn.Module):
    """As models of images are: lists that are alike and are not called, with modules that are alike and meet other sizes."""

    def __init__(self):
        super().__init__()
        self.down, self.up = (torch.nn.ModuleList([Halving()]) for _ in range(2))
        self.halvings, self.heads = torch.nn.Sequential(Halving(), Halving()), torch.nn.ModuleList([torch.nn.Linear(4, 2)])

    def forward(self, x):
        x = self.up[0](self.down[0](self.halvings(x)))
        return self.heads[0](x.transpose(1, 2)).square().mean()


def test_what_lists_hold_has_captures_and_each_module_the_sizes_that_it_meets():
    model = Pyramid()
    compiled = kiln.compile(copy.deepcopy(model))
    entries = regional.find_entries(model, regional.Settings())
    assert {m for entry in entries for m in entry.modules} == {*model.halvings, model.down[0], model.up[0], *model.heads}
    for length in (64, 48):
        x = torch.randn(2, 4, length)
        for pair in (model, compiled):
            pair.zero_grad()
            pair(x).backward()
        for expected, got in zip(model.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(got.grad, expected.grad)
        if length == 64:  # sizes of one module that change are symbols; halved, they are none that Kiln has
            assert kiln.stats()["fallback_ops"] == {}


def test_a_host_beside_a_filled_store_neither_captures_nor_compiles_nor_checks(store, tmp_path):
    first = run(tmp_path / "one", "train", "perceptron", **store)
    assert first["stats"]["compilations"] > 0 and first["stats"]["checked"] > 0
    stop = {**os.environ, **store, "KILN_CACHE_DIR": str(tmp_path / "one")}
    subprocess.run([CLI, "daemon", "stop"], env=stop, check=True, capture_output=True)  # it writes what waits
    second = run(tmp_path / "two", "train", "perceptron", **store)
    counts = {name: second["stats"][name] for name in ("compilations", "checked")}
    assert counts == {"compilations": 0, "checked": 0}
    assert second["stats"]["captures_loaded"] > 0 and second["frames"] == 0
    assert second["digest"] == first["digest"]
