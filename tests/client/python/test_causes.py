"""What a model's user hears when Kiln cannot be had, and what waiting for it costs: whole processes over libkiln."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

DAEMON = pathlib.Path(os.environ["KILN_DAEMON_PATH"])

PROGRAM = """
import time, torch, kiln, kiln.torch
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.GELU()), backend=kiln.torch.backend)
x = torch.randn(5, 9)
try:
    assert torch.allclose(model(x), model._orig_mod(x), atol=1e-5)
    print("ran", kiln.stats()["nodes_compiled"])
except KeyboardInterrupt:
    print("interrupted at", time.monotonic())
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    own = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    environment = {**own, "KILN_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state"),
                   "KILN_DAEMON_PATH": str(DAEMON), "KILN_DAEMON_START_TIMEOUT_MS": "20000"}

    def start(**variables):
        return subprocess.Popen([sys.executable, "-c", PROGRAM], env={**environment, **variables}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    yield start
    lock = tmp_path / "cache" / "kilnd.lock"
    if lock.exists():
        os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)


def lines(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), [line for line in err.splitlines() if line.startswith("kiln:")]


def test_a_directory_open_to_others_is_said_once_with_what_to_do(run, tmp_path):
    cache = tmp_path / "cache"
    cache.chmod(0o755)
    out, said = lines(run())
    assert out == "ran 0"
    assert said == [f"kiln: no daemon: {cache} is mode 755, expected 700; chmod 700 {cache}; models run in torch"]


def test_without_a_daemon_the_reason_is_that_and_no_op(run):
    out, said = lines(run(KILN_NO_DAEMON="1"))
    assert out == "ran 0"
    assert len(said) == 1 and "the daemon is turned off" in said[0]


def test_a_processor_that_has_less_than_all_kernels_need_is_said_once(run):
    out, said = lines(run(KILN_CPU_FEATURES="none"))
    assert out == "ran 0"
    assert said == ["kiln: not available: cpu: the processor runs no target; kernels need SSE4.2; models run in torch"]


def test_a_processor_without_avx2_runs_kernels_for_it(run):
    out, said = lines(run(KILN_CPU_FEATURES="x86-64-v2"))
    assert out != "ran 0" and said == []


@pytest.mark.parametrize("variables", [{"KILN_TEAM": "x"}, {"KILN_DISABLE": "false"}, {"KILN_DISABLE": "NO"}])
def test_foreign_variables_and_words_for_no_turn_nothing_off(run, variables):
    out, said = lines(run(**variables))
    assert out != "ran 0" and said == []


def test_ctrl_c_ends_the_wait_for_a_build(run, tmp_path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\nexec sleep 1000\n")  # a daemon whose builds never end
    worker.chmod(0o700)
    process = run(KILN_WORKER_PATH=str(worker))
    deadline = time.monotonic() + 60
    while not (tmp_path / "cache" / "kilnd.sock").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = lines(process)
    assert out.startswith("interrupted at"), out
    assert float(out.split()[-1]) - sent < 2  # a tenth of a second, and what a busy machine adds
