"""A job of torchrun: two ranks over gloo train models that are compiled, in the ways that people have."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import CLI, OVER_DOUBLE

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="ranks share what libkiln keeps")

TOLERANCE = 5e-6  # f32, sums of at most 200 terms; relative to each tensor's largest element
WAYS = ("replicated", "accumulating", "checkpointed", "hooked", "restored", "copied", "sharded", "by_torch_compile")


class Job:
    """What each rank said, and what the cache had afterwards, entry by entry."""

    def __init__(self, cache):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                   str(pathlib.Path(__file__).parent / "ranks_process.py")]  # fmt: skip
        environment = {**os.environ, "KILN_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "KILN_AUTOTUNE_MODE": "off"}
        job = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert job.returncode == 0, job.stderr[-4000:]
        self.ranks = json.loads(job.stdout.splitlines()[-1])
        listed = subprocess.run([CLI, "ls", "--json"], env=environment, capture_output=True, text=True, check=True)
        self.entries = json.loads(listed.stdout)["entries"]

    def compilations(self):
        return sum(rank["stats"]["compilations"] for rank in self.ranks)

    def heads(self, kind):
        """By key."""
        return {head["key"]: head for entry in self.entries if entry["kind"] == kind for head in entry["heads"]}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def job(cache):
    return Job(cache)


@pytest.fixture(scope="module")
def again(cache, job):
    return Job(cache)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_train_as_in_eager(job, way):
    for rank in job.ranks:
        assert rank["ways"][way]["difference"] < TOLERANCE


def test_nothing_but_what_ranks_say_to_each_other_is_left_to_torch(job):
    for rank in job.ranks:
        stats = rank["stats"]
        assert stats["graphs_eager"] == 0 and stats["nodes_compiled"] > 20 * stats["nodes_fallback"]
        assert all(op.startswith(("profiler.", "fsdp.", "c10d.")) for op in stats["fallback_ops"])


def test_what_ranks_share_is_compiled_once(job):
    assert job.compilations() == len(job.heads("code")) > 0


def test_the_same_job_compiles_nothing_and_computes_the_same_bits(job, again):
    assert again.compilations() == 0 and again.heads("code") == job.heads("code")
    for first, second in zip(job.ranks, again.ranks, strict=True):
        for way in WAYS:
            assert second["ways"][way]["digest"] == first["ways"][way]["digest"], way


def test_captures_are_known_by_what_they_are_of(job):
    names = {head["name"] for head in job.heads("capture").values()}
    assert {"Gpt: check", "Linear: check"} <= names
