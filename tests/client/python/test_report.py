"""kiln.report: of each model what is its own, whichever way it was compiled."""

import time

import pytest
import torch
from conftest import OVER_DOUBLE
from torch import nn

import kiln
from kiln._reasons import Reason
from kiln.torch import programs
from kiln.torch.tally import Stopwatch, note_disturbance

WIDTH = 16


class Block(nn.Module):
    """With an op that Kiln has no kernel for, if `special`."""

    def __init__(self, special=False):
        super().__init__()
        self.linear, self.special = nn.Linear(WIDTH, WIDTH), special

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return torch.special.ndtri(y * 0.4 + 0.5) * 2 + x if self.special else y * 2 + x


def model(special=False, blocks=2):
    return nn.Sequential(*(nn.Sequential(Block(special)) for _ in range(blocks)))


def run(compiled, times=3):
    x = torch.randn(4, WIDTH)
    for _ in range(times):
        compiled(x).sum().backward()


def whole(model):
    return torch.compile(model, backend="kiln")


ENTRIES = [whole, pytest.param(kiln.compile, marks=pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln"))]


@pytest.mark.parametrize("entry", ENTRIES)
def test_two_models_of_one_process_are_told_apart(entry):
    plain, special = entry(model()), entry(model(True, blocks=3))
    assert kiln.report(plain).nodes_in_kiln == 0
    run(plain)
    run(special)
    first, second = kiln.report(plain), kiln.report(special)
    assert first.nodes_in_torch == 0 and first.causes == () and first.share_of_nodes == 1
    assert second.nodes_in_kiln > 0 and second.nodes_in_torch > 0
    (cause,) = [c for c in second.causes if c.op == "aten.special_ndtri.default"]
    assert cause.nodes % 3 == 0 and cause.why == "no row" and cause.advice in str(second)
    counted = kiln.stats()
    assert first.nodes_in_kiln + second.nodes_in_kiln == counted["nodes_compiled"]
    assert first.nodes_in_torch + second.nodes_in_torch == counted["nodes_fallback"]


@pytest.mark.skipif(OVER_DOUBLE, reason="time is libkiln's")
@pytest.mark.parametrize("entry", ENTRIES)
def test_time_is_that_of_calls_in_which_nothing_is_compiled(entry):
    compiled = entry(model())
    start = time.perf_counter()
    run(compiled, 1)
    assert kiln.report(compiled).seconds < 0.3 * (time.perf_counter() - start)
    run(compiled, 5)
    report = kiln.report(compiled)
    assert report.calls >= 5 and 0 < report.seconds_in_kiln < report.seconds < 1
    assert 0 < report.share_of_time < 1


@pytest.mark.parametrize("of", [lambda m, c: m, lambda m, c: c], ids=["the model", "what torch.compile gave"])
def test_the_model_and_what_torch_compile_gave_are_one(of):
    plain = model()
    compiled = whole(plain)
    run(compiled)
    assert kiln.report(of(plain, compiled)).nodes_in_kiln == kiln.stats()["nodes_compiled"] > 0


def test_compiled_in_place_and_with_hooks():
    for hooked in (False, True):
        compiled = model()
        if hooked:
            compiled.register_forward_hook(lambda module, inputs, output: output * 1.5)
        before = kiln.stats()["nodes_compiled"]
        compiled.compile(backend="kiln")
        run(compiled)
        assert kiln.report(compiled).nodes_in_kiln == kiln.stats()["nodes_compiled"] - before > 0


def test_a_function():
    def function(x):
        return torch.tanh(x) * 2 + torch.special.bessel_j0(x)

    compiled = whole(function)
    compiled(torch.randn(64))
    assert kiln.report(compiled).nodes_in_kiln == 3 and kiln.report(compiled).nodes_in_torch == 1
    assert kiln.report(lambda x: x).nodes_in_kiln == 0


class Refused(Exception):
    """kiln.Error, of which the text says what other reasons say."""

    op = ""

    def __init__(self, code_name):
        super().__init__("no daemon, no row, on the host: met in more than one")
        self.code_name = code_name


@pytest.mark.parametrize("code_name, advice", [("unavailable", "see `kiln doctor`"), ("unknown", Reason.advice)])
def test_advice_goes_by_what_failed_and_not_by_its_words(monkeypatch, code_name, advice):
    def refuse(*_):
        raise Refused(code_name)

    monkeypatch.setattr(programs, "create_program", refuse)
    compiled = whole(model())
    compiled(torch.randn(4, WIDTH))
    causes = kiln.report(compiled).causes
    assert causes and {cause.advice for cause in causes} == {advice}


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
def test_captures_and_first_runs_are_counted():
    compiled = kiln.compile(model())
    run(compiled)
    report = kiln.report(compiled)
    assert report.captures["kept"] + report.captures["loaded"] >= 1 and report.captures["refused"] == 0
    assert report.programs["agreed"] + report.programs["before"] > 0 and report.programs["waiting"] == 0
    assert "agreed with torch" in str(report)


@pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")
def test_why_captures_are_not_kept_is_said():
    class Local:
        def __call__(self, x):
            return x * 2

    compiled = model()
    for block in compiled:
        block[0].local = Local()
        block[0].forward = lambda x, block=block[0]: block.local(block.linear(x))
    compiled = kiln.compile(compiled)
    run(compiled)
    report = kiln.report(compiled)
    assert report.captures["not_kept"] > 0 and any("not kept" in cause for cause in report.capture_causes)


def test_a_call_within_a_timed_one_is_not_timed():
    outer, inner = Stopwatch(), Stopwatch()
    assert outer.run(lambda a, b: inner.run(lambda: a + b), 2, 3) == 5
    assert (outer.calls, inner.calls, inner.ns) == (1, 0, 0) and outer.ns > 0
    inner.run(lambda: None)
    assert inner.calls == 1


def test_a_call_in_which_something_is_compiled_is_no_measure_of_time():
    watch = Stopwatch()
    watch.run(note_disturbance)
    assert (watch.calls, watch.ns) == (0, 0)
    watch.run(lambda: time.sleep(0.01))
    assert watch.calls == 1 and watch.ns >= 10_000_000 and watch.kiln_ns == 0


def test_a_call_that_raises_is_timed_and_raises():
    watch = Stopwatch()
    with pytest.raises(ZeroDivisionError):
        watch.run(lambda: 1 / 0)
    watch.run(lambda: None)
    assert watch.calls == 2
    with pytest.raises(TypeError):
        watch.run()
