"""What training saves is decided by a race under max-autotune: once on a machine, and by rule where it cannot be."""

import concurrent.futures
import itertools
import json
import os
import subprocess

import pytest
import torch
from conftest import CLI
from processes import report_of

import kiln
from kiln.torch import joint, programs, saving

RULE, OTHER = joint.RULES
ENTRIES = ("whole", "parts")
_widths = itertools.count(24)  # no two tests train one graph


@pytest.fixture
def width():
    return str(next(_widths))


def train(entry, faster, width, *options, **environment):
    report = report_of("saving_process.py", entry, faster, width, *options, **environment)
    assert report["error"] < 1e-4
    assert not report["changed"]
    return report


def races(report):
    return report["stats"]["saving_races"]


def names_of_captures(cache):
    environment = {**os.environ, "KILN_CACHE_DIR": cache}
    listed = subprocess.run([CLI, "ls", "--kind", "capture", "--json"], env=environment, capture_output=True, text=True, check=True)
    return {head["name"] for entry in json.loads(listed.stdout)["entries"] for head in entry["heads"]}


# ---- who wins


def test_another_partition_wins_by_a_hundredth_beyond_the_spread():
    rule = [1.0, 1.2, 0.9, 1.1, 1.0]
    assert saving.winner({RULE: rule, OTHER: [0.98 * s for s in rule]}) == OTHER
    assert saving.winner({RULE: rule, OTHER: [0.995 * s for s in rule]}) == RULE
    assert saving.winner({RULE: rule, OTHER: rule}) == RULE
    assert saving.winner({RULE: rule, OTHER: [0.9, 1.3, 0.8, 1.3, 0.9]}) == RULE  # faster in three of five
    assert saving.winner({RULE: rule, OTHER: [0.98 * s for s in rule], "third": [0.97 * s for s in rule]}) == "third"


class Timed:
    def __init__(self, name, seconds, log):
        self.name, self._seconds, self._log = name, seconds, log

    def seconds(self):
        self._log.append(self.name)
        return self._seconds


def test_steps_run_in_pairs_each_beginning_with_another_one():
    log = []
    times = saving.run_in_turns([Timed("a", 1e-3, log), Timed("b", 1e-3, log)])
    assert {name: len(samples) for name, samples in times.items()} == {"a": saving.MOST_TURNS, "b": saving.MOST_TURNS}
    assert log[:6] == ["a", "b", "a", "b", "b", "a"]  # the first two are not timed


def test_long_steps_run_seldom():
    times = saving.run_in_turns([Timed("a", saving.RACE_S, []), Timed("b", saving.RACE_S, [])])
    assert {len(samples) for samples in times.values()} == {saving.LEAST_TURNS}


# ---- sample tensors


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int32, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_are_of_the_types_of_the_graph(dtype):
    for value in (torch.empty(3, 4, dtype=dtype).t(), torch.empty(5, 1, dtype=dtype).expand(5, 6), torch.empty((), dtype=dtype),
                  torch.empty(0, 3, dtype=dtype)):  # fmt: skip
        sample = saving.sample_like(value)
        assert (sample.dtype, sample.shape, sample.stride()) == (value.dtype, value.shape, value.stride())
    if not dtype.is_floating_point and not dtype.is_complex:
        assert sample.to(torch.int64).unique().tolist() in ([], [int(dtype is torch.bool)])


def test_vectors_of_samples_may_be_variances():
    assert saving.sample_like(torch.empty(1000)).min() >= 0.5


# ---- a step of training


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_first_process_settles_it(entry, width):
    first = train(entry, OTHER, width, "--kernels")
    assert races(first) == 1
    assert set(first["ran"]) == {RULE, OTHER}
    assert first["saved"] == {OTHER: {"whole": 1, "parts": 2}[entry]}
    second = train(entry, RULE, width, "--kernels")
    assert (races(second), second["ran"]) == (0, [])
    assert second["saved"] == first["saved"]
    assert f"backwards: {OTHER}" in second["report"]
    assert (second["stats"]["captures_loaded"] > 0) == (entry == "parts")


def test_the_rule_may_win_and_is_kept_as_well(width):
    assert list(train("parts", RULE, width)["saved"]) == [RULE]
    second = train("parts", OTHER, width)
    assert races(second) == 0
    assert list(second["saved"]) == [RULE]


def test_the_first_process_of_a_cache_may_race(width, tmp_path):
    assert races(train("whole", OTHER, width, KILN_CACHE_DIR=str(tmp_path / "new"))) == 1


@pytest.mark.parametrize(("entry", "of_it"), [("whole", {"check"}), ("parts", {"check", "capture"})])
def test_what_a_race_leaves_is_known_by_the_module_it_is_of(entry, of_it, width, tmp_path):
    cache = str(tmp_path / "new")
    assert races(train(entry, OTHER, width, KILN_CACHE_DIR=cache, KILN_AUTOTUNE_MODE="off")) == 1  # its daemon has nothing left to do
    module = {"whole": "Sequential", "parts": "Block"}[entry]
    of_module = {name.removeprefix(f"{module}: ") for name in names_of_captures(cache) if name.startswith(f"{module}: ")}
    assert {"race of what is saved", *of_it} <= of_module


def test_ranks_that_begin_together_take_one_choice(width):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ranks = [pool.submit(train, "whole", faster, width, KILN_JOB="ranks") for faster in (RULE, OTHER)]
    reports = [rank.result() for rank in ranks]
    assert sum(map(races, reports)) == 1
    assert reports[0]["saved"] == reports[1]["saved"] != {}


@pytest.mark.parametrize("winner", [RULE, OTHER])
def test_masks_and_torchs_generator_are_as_without_a_race(winner, width):
    assert races(train("whole", winner, width, "--dropout")) == 1


def test_by_default_nothing_races(width):
    report = train("parts", OTHER, width, "--plain")
    assert (races(report), report["saved"]) == (0, {})
    asked = train("parts", OTHER, width)  # the capture of the process before is not taken for one that has raced
    assert races(asked) == 1


def test_the_configuration_asks_for_races(width):
    assert races(train("whole", OTHER, width, "--plain", KILN_AUTOTUNE_MODE="max")) == 1


def test_captures_of_processes_that_raced_serve_all_but_deterministic_ones(width):
    assert races(train("parts", OTHER, width)) == 1
    plain = train("parts", RULE, width, "--plain")
    assert plain["stats"]["captures_loaded"] > 0
    assert list(plain["saved"]) == [OTHER]
    assert train("parts", OTHER, width, KILN_DETERMINISTIC="true")["saved"] == {}


def test_deterministic_takes_the_rule(width):
    report = train("parts", OTHER, width, KILN_DETERMINISTIC="true")
    assert (races(report), report["saved"]) == (0, {})
    assert races(train("parts", OTHER, width)) == 1
    assert train("parts", OTHER, width, KILN_DETERMINISTIC="true")["saved"] == {}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_race_that_fails_leaves_the_rule_and_says_so_once(entry, width):
    report = train(entry, "fails", width)
    assert report["saved"] == {}
    assert report["stderr"].count("what training saves is said by rule") == 1
    assert any("this step cannot run" in reason for reason in report["reasons"])


def test_nobody_races_who_does_not_wait(width):
    report = train("whole", OTHER, width, KILN_CLIENT_WAIT="never")
    assert (races(report), report["saved"]) == (0, {})


# ---- what does not race


@pytest.fixture
def kernels_do_not_race(monkeypatch):
    create = programs.create_program

    def untuned(*arguments):
        with programs.tuned(False):
            return create(*arguments)

    monkeypatch.setattr(programs, "create_program", untuned)


def gelu_step(width):
    """A step of a model whose partitions differ; its report."""
    model = torch.nn.Sequential(torch.nn.Linear(width, 40), torch.nn.GELU(), torch.nn.Linear(40, 8))
    compiled = torch.compile(model, backend="kiln", mode="max-autotune")
    compiled(torch.randn(16, width)).sum().backward()
    return kiln.report(compiled)


@pytest.mark.usefixtures("kernels_do_not_race")
def test_more_memory_than_allowed_is_not_raced_for(monkeypatch, width):
    monkeypatch.setattr(saving, "MOST_EXTRA_BYTES", 100)
    assert (gelu_step(int(width)).saved, kiln.stats()["saving_races"]) == ({}, 0)


@pytest.mark.usefixtures("kernels_do_not_race")
def test_what_is_not_available_is_not_raced_for(monkeypatch, capfd, width):
    monkeypatch.setattr(saving, "MEMORY_FACTOR", 1 << 40)
    assert (gelu_step(int(width)).saved, kiln.stats()["saving_races"]) == ({}, 0)
    assert "MiB are available" in capfd.readouterr().err


@pytest.mark.usefixtures("kernels_do_not_race")
def test_an_op_that_others_may_notice_is_not_run_on_samples(monkeypatch):
    calls = []

    @torch.library.custom_op("kiln_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x.clone()

    noted.register_fake(torch.empty_like)
    noted.register_autograd(lambda ctx, gradient: gradient)
    model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.GELU(), torch.nn.Linear(40, 8))
    compiled = torch.compile(lambda x: model(noted(x)), backend="kiln", mode="max-autotune")
    compiled(torch.randn(16, 20)).sum().backward()
    assert (len(calls), kiln.stats()["saving_races"]) == (1, 0)


@pytest.mark.usefixtures("kernels_do_not_race")
def test_a_record_that_is_damaged_is_none(monkeypatch, width):
    kept = {}
    monkeypatch.setattr(saving, "key_of", lambda *_: kept.setdefault("key", b"damaged " + width.encode()))
    kiln._session.session().client().capture_put(b"damaged " + width.encode(), b'{"format": 1, "choice": 3}')
    report = gelu_step(int(width))
    assert kiln.stats()["saving_races"] == 1
    assert report.saved
