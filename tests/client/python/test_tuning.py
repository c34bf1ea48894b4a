"""mode="max-autotune": programs are handed out after their kernels have raced, right as before, and the next process maps them."""

import json
import os
import subprocess

import kiln
import pytest
import torch
from conftest import CLI


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 24))


def records():
    listed = subprocess.run([CLI, "ls", "--kind", "record", "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(listed)["entries"]


@pytest.mark.parametrize("compiled", ["kiln.compile", "torch.compile"])
def test_products_race_before_the_first_call_returns(compiled):
    plain, tuned = model(), model()
    if compiled == "kiln.compile":
        tuned = kiln.compile(tuned, mode="max-autotune")
    else:
        tuned = torch.compile(tuned, backend="kiln", mode="max-autotune")
    x = torch.randn(40, 48)
    before = len(records())
    torch.testing.assert_close(tuned(x), plain(x), rtol=1e-4, atol=1e-5)
    tuned(x).sum().backward()
    plain(x).sum().backward()
    for ours, theirs in zip(tuned.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    if compiled == "kiln.compile":
        assert len(records()) > before
        assert kiln.stats()["generation"] >= 0
    else:
        assert records()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: there are no fewer threads")
def test_products_race_on_as_many_threads_as_torch_has():
    torch.manual_seed(6)
    plain = torch.nn.Linear(56, 88)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x = torch.randn(44, 56)
        before = {entry["digest"] for entry in records()}
        tuned = torch.compile(plain, backend="kiln", mode="max-autotune")
        torch.testing.assert_close(tuned(x), plain(x), rtol=1e-4, atol=1e-5)
    finally:
        torch.set_num_threads(threads)
    raced = [entry for entry in records() if entry["digest"] not in before and entry["heads"]]
    assert raced
    assert all(head["key_parts"]["threads"] == "1" for entry in raced for head in entry["heads"])


def test_an_unknown_mode_is_said_and_changes_nothing(capfd):
    x = torch.randn(8, 48)
    compiled = torch.compile(model(), backend="kiln", mode="fastest")
    torch.testing.assert_close(compiled(x), model()(x), rtol=1e-4, atol=1e-5)
    assert "mode 'fastest' is not known" in capfd.readouterr().err
