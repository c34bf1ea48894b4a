"""client.wait (kiln/torch/waiting.py): what runs while programs are being built, and that they are swapped in. Builds are held by
the test, as they would be by a daemon that takes its time."""

import contextlib
import copy
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import conftest
import pytest
import torch

import kiln
from kiln import _session
from kiln._reasons import NOT_FOUND, Reason
from kiln.torch import ahead, backend, check, programs, waiting
from kiln.torch.between import Between

WIDTH = 12
PATIENCE = 60


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """What other tests found of the same programs is not known."""
    monkeypatch.setattr(check.Record, "write", lambda *_: None)
    monkeypatch.setattr(check.Record, "read", lambda _: check.UNKNOWN)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each size has a program of its own; test_sizes.py has those that serve many."""
    monkeypatch.setattr(programs, "sized_graph", lambda *_: None)


@pytest.fixture
def held(monkeypatch):
    """Builds in the background wait for held.go; held.asked has those that began, held.failing what they raise instead. What is
    waited for, or asked for on the thread of the test, is counted in held.waited."""
    create = programs.create_program

    class Held:
        go, asked, waited, failing = threading.Event(), [], [], None

        @staticmethod
        def finish():
            Held.go.set()
            for build in list(waiting.building):
                build.thread.join(PATIENCE)

    def held_program(*arguments, **options):
        if threading.current_thread() is threading.main_thread():
            Held.waited.append(arguments)
        else:
            Held.asked.append(arguments)
            assert Held.go.wait(PATIENCE)
            if Held.failing:
                raise Held.failing
        return create(*arguments, **options)

    def waited(owner, asked, _):
        Held.waited.append(asked)
        owner.take(create(*asked))

    monkeypatch.setattr(programs, "create_program", held_program)
    monkeypatch.setattr(waiting, "put_in_place", waited)
    monkeypatch.setattr(ahead, "begin", lambda _: None)  # asks in threads for what is waited for
    yield Held
    Held.finish()


def policy(name):
    _session.session().wait = name


def make():
    torch.manual_seed(1)
    wide = 2 * WIDTH
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, wide), torch.nn.GELU(), torch.nn.LayerNorm(wide), torch.nn.Linear(wide, 3))


class Twins:
    """A model and eager's: step(rows) trains both by one step of so many rows, and holds them against one another."""

    def __init__(self, entry, dynamic=None):
        self.plain = make()
        own = copy.deepcopy(self.plain)
        self.model = torch.compile(own, backend=backend, dynamic=dynamic) if entry is backend else kiln.compile(own)

    def step(self, rows):
        x, results = torch.randn(rows, WIDTH), []
        for model in (self.model, self.plain):
            leaf = x.clone().requires_grad_()
            model.zero_grad()
            out = model(leaf)
            out.square().sum().backward()
            results.append([out.detach(), leaf.grad, *(p.grad for p in model.parameters())])
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


ENTRIES = [pytest.param(backend, id="backend"),
           pytest.param(kiln.compile, id="kiln.compile",
                        marks=pytest.mark.skipif(conftest.OVER_DOUBLE, reason="captures are kept by libkiln"))]  # fmt: skip
entries = pytest.mark.parametrize("entry", ENTRIES)


def meanwhile():
    return kiln.stats()["calls_meanwhile"]


@entries
def test_always_waits_for_each_size(entry, held):
    policy("always")
    twins = Twins(entry)
    for rows in (5, 6, 7, 8):
        waited = len(held.waited)
        twins.step(rows)
        assert len(held.waited) > waited
    assert not held.asked and meanwhile() == 0


@entries
def test_first_waits_in_the_first_call_and_swaps_in_what_other_sizes_need(entry, held, monkeypatch):
    monkeypatch.setattr(waiting, "PAYS_S", math.inf)
    policy("first")
    twins = Twins(entry)
    twins.step(5)
    waited = len(held.waited)
    assert meanwhile() == 0
    for rows in (6, 7, 8, 9):  # met once: nothing is asked for
        twins.step(rows)
    assert meanwhile() > 0 and not held.asked
    for _ in range(waiting.MEETINGS):
        twins.step(6)
    assert held.asked and len(held.waited) == waited
    before = meanwhile()
    twins.step(6)  # still being built
    assert meanwhile() > before
    held.finish()
    checked = kiln.stats()["checked"]
    twins.step(6)
    assert kiln.stats()["checked"] > checked, "the first run of what was swapped in is checked"
    before = meanwhile()
    twins.step(6)
    assert meanwhile() == before and len(held.waited) == waited


@entries
def test_a_size_that_is_met_once_has_programs_while_they_cost_little(entry, monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_S", PATIENCE)
    monkeypatch.setattr(waiting, "PAYS_S", 0.0)
    policy("first")
    twins, cost = Twins(entry), iter([waiting.CHANCE_COMPILATIONS - 1, *[1] * 4])
    monkeypatch.setattr(programs, "compilations_of", lambda _: next(cost, 100))
    for rows in (5, 6, 7, 8):  # forward and backward of three further sizes; the last of these programs costs too much
        twins.step(rows)
    assert meanwhile() == 0
    twins.step(9)
    assert meanwhile() > 0


def test_a_program_has_to_pay_for_a_size_that_is_met_once():
    chance = waiting.Chance()
    assert not chance.is_left, "nobody knows yet how long torch takes"
    assert chance.timed(lambda: 5) == 5 and not chance.is_left
    chance.timed(time.sleep, waiting.PAYS_S)
    assert chance.is_left
    chance.note(waiting.CHANCE_COMPILATIONS + 1)
    assert not chance.is_left


def test_a_step_has_little_patience(held, monkeypatch):
    monkeypatch.setattr(waiting, "PAYS_S", 0.0)
    policy("first")
    twins = Twins(backend, dynamic=True)
    twins.step(5)
    waited = len(held.waited)
    twins.step(6)
    assert held.asked and len(held.waited) == waited and meanwhile() > 0
    held.finish()
    before = meanwhile()
    twins.step(6)
    assert meanwhile() == before


def test_never_waits_and_a_report_says_what_is_being_built(held):
    policy("never")
    twins = Twins(backend)
    twins.step(5)
    report = kiln.report(twins.model)
    assert not held.waited and held.asked
    assert report.nodes_in_kiln == 0 and report.programs["building"] > 0
    assert {cause.why for cause in report.causes} == {str(waiting.BEING_BUILT)}
    held.finish()
    for _ in range(2):
        twins.step(5)
    report = kiln.report(twins.model)
    assert report.nodes_in_torch == 0 and report.nodes_in_kiln > 0 and report.programs["building"] == 0
    assert kiln.stats()["checks_failed"] == 0


def test_a_marked_size_is_waited_for_in_its_first_call_only(held):
    policy("first")
    twins = Twins(backend, dynamic=True)
    twins.step(5)
    waited = len(held.waited)
    assert waited > 0 and meanwhile() == 0
    twins.step(6)
    assert len(held.waited) == waited and meanwhile() > 0


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_a_forward_and_a_backward_may_run_in_different_places(which, monkeypatch):
    """Of a step's programs one is there, the other is being built."""
    go, there, create, made = threading.Event(), threading.Event(), programs.create_program, []

    def create_one(*arguments, **options):
        made.append(arguments)  # the forward is called first
        if is_late := (len(made) == 1) != (which == "forward"):
            assert go.wait(PATIENCE)
        program = create(*arguments, **options)
        if not is_late:
            there.set()
        return program

    monkeypatch.setattr(programs, "create_program", create_one)
    policy("never")
    twins = Twins(backend)
    twins.step(5)
    assert len(made) == 2 and there.wait(PATIENCE)
    while len(waiting.building) > 1:  # it has been given to its thread, which ends
        time.sleep(0.01)
    for _ in range(2):
        twins.step(5)
    assert kiln.stats()["checked"] == 1, "one of two is there"
    go.set()
    for build in list(waiting.building):
        build.thread.join(PATIENCE)
    twins.step(5)
    assert kiln.stats()["checked"] == 2
    assert kiln.stats()["checks_failed"] == 0


@pytest.fixture
def planned(monkeypatch):
    """What is created on the thread of the test is not mapped. In others it is sure at once, and there when torch's results are, which
    planned.together has; then it raises planned.failing, if that is there. planned.threads: how many torch had for its results."""
    create, by_torch = programs.create_program, check.by_torch

    class Planned:
        made, together, failing, threads = threading.Event(), [], None, None

    def create_one(*arguments, **options):
        if programs._mapped_only.get():
            raise LookupError(Reason("not mapped", code=NOT_FOUND))
        programs._planned.get()()
        assert Planned.made.wait(PATIENCE)
        Planned.together.append(arguments)
        if Planned.failing:
            raise Planned.failing
        return create(*arguments, **options)

    def by_torch_first(*arguments):
        Planned.threads = torch.get_num_threads()
        results = by_torch(*arguments)
        Planned.made.set()
        return results

    monkeypatch.setattr(programs, "create_program", create_one)
    monkeypatch.setattr(check, "by_torch", by_torch_first)
    return Planned


def test_a_first_run_is_compared_with_what_torch_gave_while_the_program_was_compiled(planned):
    policy("always")
    inference, x = torch.compile(make(), backend=backend), torch.randn(5, WIDTH)
    with torch.no_grad():
        got = inference(x)
        assert planned.together and kiln.stats()["checked"] == 1
        torch.testing.assert_close(got, make()(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inference(x), got)
    assert kiln.stats()["checked"] == 1 and not waiting.building


def test_so_is_that_of_an_op_between_captures(planned):
    policy("always")
    between, x = Between(), torch.randn(5, WIDTH)
    for _ in range(2):
        torch.testing.assert_close(between.run(torch.tanh, (x,), {}), torch.tanh(x))
    assert len(planned.together) == kiln.stats()["checked"] == 1 and not waiting.building


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_torch_leaves_a_processor_to_the_compiler_until_the_program_is_there(planned, three_threads):
    policy("always")
    if (of_mkl := getattr(waiting._libtorch(), "MKL_Set_Num_Threads_Local", None)) is not None:
        of_mkl(1)  # which torch would have made 3
    before = torch.__config__.parallel_info()
    with torch.no_grad():
        torch.compile(make(), backend=backend)(torch.randn(5, WIDTH))
    assert planned.threads == 2 and torch.get_num_threads() == 3
    assert torch.__config__.parallel_info() == before


def test_what_fails_once_it_is_planned_runs_in_torch(planned):
    policy("always")
    planned.failing = RuntimeError("the compiler crashed")
    inference, x = torch.compile(make(), backend=backend), torch.randn(5, WIDTH)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(inference(x), make()(x))
    assert len(planned.together) == 1 and kiln.stats()["checked"] == 0


def test_what_is_written_in_place_is_written_either_way(held):
    policy("never")

    def function(state, x):
        state.mul_(0.5).add_(torch.tanh(x))
        return state * 2

    compiled = torch.compile(function, backend=backend)
    mine, eagers = torch.ones(4, 6), torch.ones(4, 6)
    with torch.no_grad():
        for turn in range(5):
            x = torch.randn(4, 6)
            torch.testing.assert_close(compiled(mine, x), function(eagers, x))
            torch.testing.assert_close(mine, eagers)
            if turn == 1:
                assert meanwhile() > 0
                held.finish()
    assert kiln.stats()["checked"] > 0


def test_what_cannot_be_built_stays_in_torch_and_is_said_once(held, capsys):
    policy("never")
    held.failing = RuntimeError("not today")
    twins = Twins(backend)
    twins.step(5)
    held.finish()
    asked = len(held.asked)
    for _ in range(3):
        twins.step(5)
    assert len(held.asked) == asked, "it is not asked for again"
    assert capsys.readouterr().err.count("not today") == 1
    report = kiln.report(twins.model)
    assert report.nodes_in_kiln == 0 and report.programs["failed"] > 0


def test_a_program_that_is_wrong_is_found_when_it_is_swapped_in(held, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    create = programs.create_program

    def spoilt(*arguments, **options):
        program = create(*arguments, **options)
        return lambda tensors: [t + 1 for t in program(tensors)]

    monkeypatch.setattr(programs, "create_program", spoilt)
    policy("never")
    compiled = torch.compile(lambda x: x.tanh() * 2, backend=backend)
    x = torch.randn(5, 7)
    for turn in range(4):
        torch.testing.assert_close(compiled(x), x.tanh() * 2)
        if turn == 0:
            held.finish()
    assert kiln.stats()["checks_failed"] == 1


def test_no_more_builds_than_the_limit_are_under_way(held, monkeypatch):
    monkeypatch.setattr(waiting, "MAX_BUILDING", 1)
    policy("never")
    functions = [torch.compile(lambda x, k=k: x.tanh() * k, backend=backend) for k in (2.0, 3.0, 4.0)]
    for _ in range(2):
        for function in functions:
            function(torch.ones(3))
    assert len(held.asked) == 1
    held.finish()
    functions[1](torch.ones(3))
    held.finish()
    assert len(held.asked) == 2


def test_a_forked_child_asks_anew(held):
    policy("never")
    compiled = torch.compile(lambda x: x.tanh() * 2, backend=backend)
    x = torch.randn(5, 7)
    compiled(x)
    assert len(held.asked) == 1
    child = os.fork()
    if child == 0:
        status = 1
        try:
            held.go.set()
            compiled(x)
            for build in list(waiting.building):
                build.thread.join(PATIENCE)
            is_right = torch.equal(compiled(x), compiled(x)) and torch.allclose(compiled(x), x.tanh() * 2, atol=1e-5)
            status = 0 if is_right and len(held.asked) == 2 and kiln.stats()["checked"] == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_sizes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(waiting, "MAX_MET", 3)
    met = waiting.Meetings()
    assert [met.count(key) for key in "abcda"] == [1, 1, 1, 1, 1]
    assert met.count("d") == 2


PROGRAM = """
import sys, torch, kiln
model = kiln.compile(torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.GELU()))
with torch.no_grad():
    for rows in map(int, sys.argv[1:]):
        model(torch.ones(rows, 9))
import json
print(json.dumps(kiln.stats()))
"""


def stats_of(*rows, **variables):
    environment = {**os.environ, **{name.upper(): value for name, value in variables.items()}}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, rows)], env=environment, capture_output=True, text=True,
                          timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    yield str(tmp_path / "cache")
    lock = tmp_path / "cache" / "kilnd.lock"
    if lock.exists():
        with contextlib.suppress(ProcessLookupError):  # it leaves when it is idle
            os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)


@pytest.mark.skipif(conftest.OVER_DOUBLE, reason="a process with a daemon")
def test_a_process_ends_while_its_builds_do_not(cache, tmp_path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\nexec sleep 1000\n")  # a daemon whose builds never end
    worker.chmod(0o700)
    stats = stats_of(5, 5, kiln_cache_dir=cache, kiln_client_wait="never", kiln_worker_path=str(worker))
    assert stats["calls_meanwhile"] == 2 and stats["programs"] == 0


@pytest.mark.skipif(conftest.OVER_DOUBLE, reason="captures are kept by libkiln")
def test_a_capture_that_was_kept_while_its_program_was_built_serves_a_process_without_a_daemon(cache):
    first = stats_of(5, kiln_cache_dir=cache, kiln_client_wait="never")
    assert first["calls_meanwhile"] == 1 and first["captures_not_kept"] == 0
    stats_of(5, kiln_cache_dir=cache, kiln_client_wait="always")  # whoever waits joins that build
    last = stats_of(5, kiln_cache_dir=cache, kiln_client_wait="never", kiln_no_daemon="1")
    assert last["captures_loaded"] == 1 and last["hits_mapped"] == 1 and last["calls_meanwhile"] == 0
    assert last["nodes_compiled"] > 0 and last["nodes_fallback"] == 0
