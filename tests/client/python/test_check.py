"""The first run of a program is checked against torch (kiln/torch/check.py)."""

import json
import os
import pathlib
import re
import stat
import subprocess

import conftest
import pytest
import torch

import kiln
from kiln import _session
from kiln.torch import backend, check, programs, subgraphs


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The folder bundles are written to, and the records of a cache."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = {}
    monkeypatch.setattr(check.Record, "write", lambda self, what: kept.__setitem__(self.name, what))
    monkeypatch.setattr(check.Record, "read", lambda self: kept.get(self.name, check.UNKNOWN))
    return tmp_path / "kiln" / "repro"


class Spoilt:
    """A program of which results are spoilt."""

    def __init__(self, program, spoil, text):
        self.program, self.spoil, self.text, self.calls = program, spoil, text, 0

    def describe(self):
        return json.dumps({"key": self.text, "plans": ["1"]})

    def __call__(self, tensors):
        self.calls += 1
        return self.spoil(self.program(tensors))


@pytest.fixture
def spoilt(monkeypatch):
    """spoilt(f): from now on programs' results go through f; gives the list of programs made."""

    def use(spoil):
        made, create = [], programs.create_program

        def spoilt_program(*arguments, **options):
            made.append(Spoilt(create(*arguments, **options), spoil, arguments[0]))
            return made[-1]

        monkeypatch.setattr(programs, "create_program", spoilt_program)
        return made

    return use


def one_wrong_element(results):
    results[0][(-1,) * results[0].dim()] += 0.01
    return results


WRONG = {
    "one element": one_wrong_element,
    "a stale buffer": lambda results: [torch.full_like(t, 7) for t in results],
    "wrong strides": lambda results: [t.t().contiguous().view(t.shape) for t in results],
    "swapped outputs": lambda results: results[::-1],
    "not a number": lambda results: [t * float("nan") for t in results],
}


def function(x):
    return torch.tanh(x) * 2, torch.sigmoid(x @ x)


@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG)
def test_a_wrong_program_never_gives_its_result(spoil, spoilt, state, capfd):
    programs = spoilt(spoil)
    compiled, x = torch.compile(function, backend=backend), torch.randn(6, 6)
    for _ in range(3):
        for got, wanted in zip(compiled(x), function(x)):
            torch.testing.assert_close(got, wanted)
    assert [p.calls for p in programs] == [1]  # checked once, then torch runs
    assert kiln.stats()["checks_failed"] == 1
    said = [line for line in capfd.readouterr().err.splitlines() if "did not agree" in line]
    assert len(said) == 1 and "kiln repro" in said[0]
    (bundle,) = state.iterdir()
    facts = json.loads((bundle / "bundle.json").read_text())
    assert (bundle / "graph.kiln").read_text().startswith("graph(") and set(facts["versions"]) >= {"kiln", "torch"}
    assert (bundle / facts["inputs"][0]).read_bytes() == bytes(x.untyped_storage())


def test_a_bundle_is_its_users_alone(spoilt, state):
    spoilt(one_wrong_element)
    before = os.umask(0)
    try:
        torch.compile(function, backend=backend)(torch.randn(6, 6))
    finally:
        os.umask(before)
    (bundle,) = state.iterdir()
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    tensors = {"input_0.bin", *(f"{whose}_{i}.bin" for whose in ("torch", "kiln") for i in range(2))}
    assert {file.name for file in bundle.iterdir()} == {"graph.kiln", "bundle.json"} | tensors


def test_a_program_that_was_found_wrong_is_not_used_again(spoilt):
    x = torch.randn(6, 6)
    spoilt(one_wrong_element)
    torch.compile(function, backend=backend)(x)
    torch._dynamo.reset()
    programs = spoilt(lambda results: results)
    torch.compile(function, backend=backend)(x)
    assert [p.calls for p in programs] == [0]
    assert any("did not agree" in entry["reason"] for entry in kiln.explain())
    torch._dynamo.reset()
    _session.session().is_forced = True
    programs = spoilt(lambda results: results)
    torch.compile(function, backend=backend)(x)
    assert [p.calls for p in programs] == [1]


def test_a_program_that_agreed_is_not_checked_again(spoilt):
    x = torch.randn(6, 6)
    spoilt(lambda results: results)
    compiled = torch.compile(function, backend=backend)
    compiled(x), compiled(x)
    assert kiln.stats()["checked"] == 1
    torch._dynamo.reset()
    spoilt(lambda results: results)
    torch.compile(function, backend=backend)(x)
    assert kiln.stats()["checked"] == 1


@pytest.mark.parametrize(("policy", "checked"), [("never", 0), ("first", 1), ("always", 3)])
def test_the_configuration_says_when(policy, checked, spoilt):
    _session.session().check = policy
    spoilt(lambda results: results)
    compiled = torch.compile(function, backend=backend)
    for _ in range(3):
        compiled(torch.randn(6, 6))
    assert kiln.stats()["checked"] == checked


def test_of_programs_for_many_sizes_fewer_and_fewer_are_checked():
    assert [count for count in range(1, 70) if check.is_due(count, (5, 7))] == [1, 2, 4, 8, 16, 32, 64]
    assert check.is_due(3, (5, 1)) and check.is_due(3, (0,)) and not check.is_due(3, ())


@pytest.mark.parametrize("policy, checked", [("first", 3), ("always", 5), ("never", 0)])
def test_sizes_of_one_subgraph(policy, checked, monkeypatch):
    monkeypatch.setattr(check.Record, "write", lambda *_: None)
    _session.session().check = policy
    compiled = torch.compile(lambda x: x.tanh() * 2, backend=backend, dynamic=True)
    for rows in (5, 6, 7, 8, 9):
        x = torch.randn(rows, 11)
        torch.testing.assert_close(compiled(x), x.tanh() * 2)
    assert kiln.stats()["checked"] == checked


def test_the_environment_says_when(monkeypatch):
    monkeypatch.setenv("KILN_CLIENT_CHECK", "never")
    assert _session.Session().check == "never"


def test_without_memory_nothing_is_checked_and_that_is_said_once(monkeypatch, capfd):
    monkeypatch.setattr(check, "available_bytes", lambda place: 100)
    compiled = torch.compile(function, backend=backend)
    compiled(torch.randn(6, 6)), torch.compile(torch.cos, backend=backend)(torch.randn(8))
    assert kiln.stats()["checked"] == 0
    assert capfd.readouterr().err.count("not checked against torch") == 1


def test_random_numbers_and_buffers_see_one_run():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x):
            self.count += x.sum(0)
            return torch.nn.functional.dropout(x * 2, 0.5) + self.count

    model, x = Model(), torch.randn(6, 4)
    torch.manual_seed(1)
    wanted, after = model(x), torch.rand(1)
    model.count.zero_()
    torch.manual_seed(1)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), wanted)
    assert torch.equal(torch.rand(1), after) and kiln.stats()["checked"] == 1
    torch.testing.assert_close(model.count, x.sum(0))


def test_what_rounding_explains_is_no_difference():
    def cancelling(x):
        total = (x - x.mean(0)).sum(0)
        return [total, total > 0]

    def perturbed():
        return cancelling(x * (1 + torch.randint(-2, 3, x.shape) * torch.finfo(x.dtype).eps))

    x = torch.randn(300, 50) * 1e3
    got = [t.to(w.dtype) for t, w in zip(cancelling(x.double()), cancelling(x))]
    assert not torch.allclose(got[0], cancelling(x)[0], rtol=1e-3)
    assert check.differ(got, cancelling(x), perturbed) is None
    got[0][7] += 1
    assert "output 0" in check.differ(got, cancelling(x), perturbed)


def test_a_comparison_needs_little_memory_of_its_own():
    def peak_beyond(function):
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        function()
        return resident("VmHWM") - before

    def resident(field):
        return int(re.search(rf"{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) << 10

    wanted = torch.randn(3, 1 << 21)
    got, other = wanted * (1 + 1e-7), wanted + 1e-3
    got[1, 5] += 1e-2
    assert peak_beyond(lambda: check.differ([got], [wanted], lambda: [other])) < 2 * wanted.nbytes  # what is noted of the noise
    got[1, 5] = wanted[1, 5]
    assert peak_beyond(lambda: check.differ([got], [wanted], lambda: [other])) < wanted.nbytes / 2


def test_an_index_out_of_range_is_torchs_error_and_no_disagreement():
    def lookup(table, index):
        return torch.nn.functional.embedding(index, table) * 2

    compiled = torch.compile(lookup, backend=backend)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(torch.randn(4, 4), torch.tensor([7]))
    compiled(torch.randn(4, 4), torch.tensor([3]))
    assert kiln.stats()["checked"] == 1 and kiln.stats()["checks_failed"] == 0


def test_after_the_first_call_nothing_is_in_the_way():
    made = []
    original = subgraphs.StaticSubgraph.__init__

    def noting(self, *arguments):
        original(self, *arguments)
        made.append(self)

    subgraphs.StaticSubgraph.__init__ = noting
    try:
        torch.compile(function, backend=backend)(torch.randn(6, 6))
    finally:
        subgraphs.StaticSubgraph.__init__ = original
    assert [r.run is r._program for r in made] == [True]


@pytest.mark.skipif(conftest.OVER_DOUBLE or not conftest.CLI.exists(), reason="no kiln to replay with")
def test_a_bundle_is_replayed_and_its_program_used_again(monkeypatch, state):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parents[1]))
    original, spoil = programs.create_program, [True]

    class Once:
        def __init__(self, program):
            self.program, self.describe = program, program.describe

        def __call__(self, tensors):
            results = self.program(tensors)
            return one_wrong_element(results) if spoil[0] else results

    monkeypatch.setattr(programs, "create_program", lambda *a, **k: Once(original(*a, **k)))

    def run():
        _session._session = _session.Session()
        torch._dynamo.reset()
        inputs = torch.randn(5, 7).t()[1:], torch.randint(0, 5, (4,))
        compiled = torch.compile(lambda x, i: (x.tanh().t() * i.sum(), x.sum(1) > 0), backend=backend, dynamic=True)
        compiled(*inputs)
        return kiln.stats()["checked"], kiln.stats()["checks_failed"]

    def repro(*more):
        return subprocess.run([conftest.CLI, "repro", bundle, *more], capture_output=True, text=True)

    assert run() == (1, 1)
    (bundle,) = state.iterdir()
    assert run() == (0, 0) and len(list(state.iterdir())) == 1  # quarantined, though the program would be right now
    spoil[0] = False
    answer = repro("--json")
    assert answer.returncode == 0 and json.loads(answer.stdout)["agrees"], answer.stderr
    torchs = (bundle / "torch_0.bin").read_bytes()
    (bundle / "torch_0.bin").write_bytes(bytes(len(torchs)))
    assert repro("--lift").returncode == 1 and "DIFFERS" in repro().stdout
    (bundle / "torch_0.bin").write_bytes((bundle / "kiln_0.bin").read_bytes())
    assert repro("--lift").returncode == 1  # what Kiln gave then is not what it gives now
    assert run() == (0, 0)
    (bundle / "torch_0.bin").write_bytes(torchs)
    assert repro("--lift").returncode == 0
    assert run() == (1, 0)


def test_ops_between_captures_are_checked(spoilt):
    spoilt(one_wrong_element)
    blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(2))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            return torch.exp(self.blocks[1](self.blocks[0](x * 3)))

    x = torch.randn(2, 4)
    with torch.no_grad():
        wanted = Model()(x)
        torch.testing.assert_close(kiln.compile(Model())(x), wanted)
    assert kiln.stats()["checks_failed"] >= 2


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_a_check_leaves_free_is_given_back(monkeypatch):
    compiled = torch.compile(function, backend=backend, dynamic=False)
    compiled(torch.randn(6, 6))
    monkeypatch.setattr(check, "GIVEN_BACK_BYTES", 0)
    blocks = [b"x" * (64 << 10) for _ in range(4096)]  # each in the allocator's heap
    between = blocks[::16]
    del blocks
    with_holes = resident_bytes()
    compiled(torch.randn(7, 7))
    assert kiln.stats()["checked"] == 2
    assert with_holes - resident_bytes() > len(between) * 8 * (64 << 10), "half of what is free"


def test_what_is_nothing_but_rounding_is_no_difference():
    def norm_of_equals(x):
        equal = torch.zeros_like(x) + x.mean()
        return torch.nn.functional.layer_norm(equal, equal.shape[-1:])  # zeros, or what rounding the mean leaves, large

    for extent in (3, 5, 7, 11, 13):
        torch.compile(norm_of_equals, backend=backend)(torch.randn(extent, extent))
    assert kiln.stats()["checks_failed"] == 0 < kiln.stats()["checked"]
    assert check._factors.cache_info().currsize == 0, "megabytes remain"


def test_equal_elements_of_shared_memory_are_changed_each_for_itself():
    rows = torch.randn(7, 1).expand(7, 17)
    changed = check._perturb(rows)
    assert (changed.std(1) > 0).all()
    torch.testing.assert_close(changed, rows)


def test_what_hardly_differs_by_rounding_is_a_difference_all_the_same(spoilt):
    spoilt(lambda results: [r + 1e-2 for r in results])
    x = torch.randn(50, 50)
    for function in (lambda x: torch.tanh(x @ x).exp().sin() @ x, lambda x: torch.softmax(x, 1) - 0.02):
        torch.compile(function, backend=backend)(x)
    assert kiln.stats()["checks_failed"] == 2
