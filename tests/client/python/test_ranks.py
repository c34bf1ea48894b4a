"""A job of torchrun: two ranks over gloo train models that are compiled, in the ways that people have."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import OVER_DOUBLE

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="ranks share what libkiln keeps")

TOLERANCE = 5e-6  # f32, sums of at most 200 terms; relative to each tensor's largest element


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(pathlib.Path(__file__).parent / "ranks_process.py")]  # fmt: skip
    environment = {**os.environ, "KILN_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stderr[-4000:]
    return json.loads(job.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", ["replicated", "accumulating", "checkpointed", "hooked", "restored", "copied", "sharded",
                                 "by_torch_compile"])  # fmt: skip
def test_ranks_train_as_in_eager(ranks, way):
    for rank in ranks:
        assert rank["differences"][way] < TOLERANCE


def test_nothing_but_what_ranks_say_to_each_other_is_left_to_torch(ranks):
    for rank in ranks:
        stats = rank["stats"]
        assert stats["graphs_eager"] == 0 and stats["nodes_compiled"] > 20 * stats["nodes_fallback"]
        assert all(op.startswith(("profiler.", "fsdp.", "c10d.")) for op in stats["fallback_ops"])

