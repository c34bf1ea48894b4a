"""torch's tensors on a device: torch.compile and kiln.compile put programs on it, with torch's memory.

The device is a stand-in (tests/stand_ins), whose memory is the host's: for these tests torch's cpu is its name. STAND_IN_DEVICE
says which. What this cannot show: streams that do not wait, an allocator of the device's own, torch's own kernels there."""

import copy
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

import kiln
import warmed
from kiln import _kiln, _session
from kiln.torch import backend, place

DEVICE = os.environ.get("STAND_IN_DEVICE", "level_zero:0")
# Halves that it multiplies; targets that are built where it is not, and an environment without it.
DTYPES, TARGETS, WITHOUT = {
    "level_zero:0": ([torch.float16], ["pvc", "dg2"], {"ZE_ENABLE_ALT_DRIVERS": ""}),
    "cuda:0": ([torch.float16, torch.bfloat16], ["sm_90a", "sm_80"], {"KILN_LIBRARIES_PATH": os.environ.get("STAND_IN_COMPILER", "")}),
}[DEVICE]  # fmt: skip
os.environ["STAND_IN_SYSTEM_MEMORY"] = "1"  # of the device: also that of torch

try:
    _kiln.Client(device=DEVICE)
except _kiln.Error as error:
    pytest.skip(f"no stand-in: {error}", allow_module_level=True)


@pytest.fixture
def on_device(monkeypatch, capsys):
    """Tensors of torch's cpu are on the device, and programs that were put on it have run there."""
    monkeypatch.setitem(place.NAMES, "cpu", DEVICE)
    yield
    assert "ran in torch" not in capsys.readouterr().err


def perceptron(dtype=torch.float32):
    layers = torch.nn.Linear(33, 65), torch.nn.GELU(), torch.nn.LayerNorm(65), torch.nn.Linear(65, 17)
    return torch.nn.Sequential(*layers).to(dtype)


def step(model, x):
    model.zero_grad()
    y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_near(got, expected, eps):
    """Sums of at most 65 terms: 8 roundings of the largest value."""
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        torch.testing.assert_close(g.double(), e.double(), rtol=0, atol=8 * eps * e.abs().max().double().item())


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
@pytest.mark.parametrize("entry", [lambda m: torch.compile(m, backend=backend), kiln.compile], ids=["backend", "compile"])
def test_a_model_is_trained_on_the_device(on_device, entry, dtype):
    model, x = perceptron(dtype), torch.randn(19, 33, dtype=dtype)
    expected = step(model, x)
    compiled = entry(model)
    for _ in range(2):  # the second step finds memory that the first has used
        assert_near(step(compiled, x), expected, torch.finfo(dtype).eps)
    stats = kiln.stats()
    assert stats["nodes_compiled"] > 10 and stats["graphs_eager"] == 0
    assert DEVICE in _session.session()._clients
    assert stats["programs"] > 0 and stats["relayouts"] == 0


def test_attention_runs_on_the_device(on_device):
    model, (x,) = warmed.make_with_attention()
    expected = step(model, x)
    assert_near(step(torch.compile(model, backend=backend), x), expected, torch.finfo(torch.float32).eps)
    stats = kiln.stats()
    assert not stats["fallback_ops"] and stats["nodes_compiled"] >= 5, stats


def convolutional(dtype):
    """A convolution of each kind: with a stride, padding and groups, transposed, along a row, depthwise; batch norms between."""
    def layers():
        yield torch.nn.Conv2d(4, 12, 3, stride=2, padding=1, groups=2), torch.nn.ReLU(), torch.nn.BatchNorm2d(12)
        yield torch.nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), torch.nn.ConvTranspose2d(12, 6, 4, stride=2, padding=1)
        yield torch.nn.GELU(), torch.nn.BatchNorm2d(6), torch.nn.Flatten(2), torch.nn.Conv1d(6, 5, 5, stride=3, padding=2, dilation=2)

    return torch.nn.Sequential(*itertools.chain(*layers())).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *DTYPES], ids=str)
def test_convolutions_run_on_the_device(on_device, monkeypatch, dtype):
    monkeypatch.setenv("KILN_CONVOLUTION", "kiln")
    model, x = convolutional(dtype), torch.randn(3, 4, 11, 13, dtype=dtype, requires_grad=True)
    exact = copy.deepcopy(model).double()

    def results(model, x):
        return [*step(model, x), *torch.autograd.grad(model(x).float().square().mean(), x)]

    expected = results(exact, x.detach().double().requires_grad_())
    eager = results(copy.deepcopy(model), x)
    for got, theirs, wanted in zip(results(torch.compile(model, backend=backend), x), eager, expected, strict=True):
        error, of_eager = ((each.double() - wanted).abs().max().item() for each in (got, theirs))
        roundings = 512 if dtype == torch.float64 else 1  # of f64 eager's are the exact ones
        assert error <= 4 * of_eager + roundings * torch.finfo(dtype).eps * wanted.abs().max().item()
    stats = kiln.stats()
    assert "convolution" not in str(stats["fallback_ops"]) and stats["graphs_eager"] == 0, stats


@pytest.mark.parametrize("chosen", ["auto", "torch", None])
def test_convolutions_of_a_device_are_torchs_unless_they_are_to_be_kilns(on_device, monkeypatch, chosen):
    if chosen is None:
        monkeypatch.delenv("KILN_CONVOLUTION", raising=False)
    else:
        monkeypatch.setenv("KILN_CONVOLUTION", chosen)
    model, x = torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 9)
    with torch.no_grad():
        assert_near([torch.compile(lambda x: model(x).tanh(), backend=backend)(x)], [model(x).tanh()], torch.finfo(x.dtype).eps)
    assert set(kiln.stats()["fallback_ops"]) == {"aten.convolution.default"}
    reasons = [entry["reason"] for entry in kiln.explain() if "node" in entry]
    assert reasons and all("convolution" in reason for reason in reasons), reasons
    assert chosen == "torch" or all("nobody has timed Kiln's" in reason for reason in reasons), reasons


def test_what_the_device_has_no_kernel_for_stays_with_torch_and_says_why(on_device):
    def model(x):
        x = torch.tanh(x)
        return torch.tanh(torch.nn.functional.scaled_dot_product_attention(x, x, x))

    x = torch.randn(2, 1, 9, 257)  # deeper than any device's kernels
    with torch.no_grad():
        assert_near([torch.compile(model, backend=backend)(x)], [model(x)], torch.finfo(torch.float32).eps)
    stats = kiln.stats()
    assert stats["nodes_compiled"] == 2 and len(stats["fallback_ops"]) == 1, stats
    reasons = [entry["reason"] for entry in kiln.explain() if "node" in entry]
    assert reasons and all("a depth of 257" in reason for reason in reasons), reasons


def test_an_index_out_of_range_in_a_programs_first_call_is_torchs_own_error(on_device):
    table = torch.nn.Embedding(10, 4)
    compiled = torch.compile(table, backend=backend)
    with torch.no_grad():
        with pytest.raises(IndexError, match="index out of range in self"):
            compiled(torch.tensor([3, 10]))
        for indices in ([3, 9], [0, 1]):
            assert torch.equal(compiled(torch.tensor(indices)), table(torch.tensor(indices)))
    assert kiln.stats()["nodes_compiled"] == 1


@pytest.mark.parametrize("entry", [lambda m: torch.compile(m, backend=backend), kiln.compile], ids=["backend", "compile"])
def test_a_model_under_autocast_is_trained_on_the_device(on_device, entry):
    def autocast_step(model, x):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().mean().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters())]

    model, x = perceptron(), torch.randn(19, 33)
    expected = autocast_step(model, x)
    compiled = entry(model)
    for _ in range(4):  # over the memory of earlier steps
        got = autocast_step(compiled, x)
        for g, e in zip(got, expected, strict=True):  # f32 gradients of what bf16 computed
            bound = 8 * torch.finfo(torch.bfloat16).eps * e.abs().max().double().item()
            torch.testing.assert_close(g.double(), e.double(), rtol=0, atol=bound)
    stats = kiln.stats()
    assert stats["nodes_compiled"] > 10 and stats["graphs_eager"] == 0, stats


def test_a_device_that_is_not_there_leaves_its_graphs_to_torch(monkeypatch, capsys):
    absent = DEVICE.replace("0", "7")
    monkeypatch.setitem(place.NAMES, "cpu", absent)
    model, x = perceptron(), torch.randn(19, 33)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend=backend)(x), model(x))
    assert kiln.stats()["nodes_compiled"] == 0
    assert f"{absent} run in torch" in capsys.readouterr().err
    assert any("there are" in entry["reason"] for entry in kiln.explain())


WARM = """
import json, sys, torch, kiln
from kiln import warm
from kiln.torch import place
if sys.argv[1]:
    place.NAMES["cpu"] = sys.argv[1]
print(json.dumps(warm.warm("warmed:" + sys.argv[2], sys.argv[3] == "trained", True, sys.argv[4:], {})))
"""


@pytest.mark.parametrize("maker, use", [("make_with_attention", "used"), ("make_with_convolutions", "trained")])
def test_what_was_warmed_where_the_device_is_not_compiles_nothing_where_it_is(tmp_path, maker, use):
    environment = {**os.environ, "KILN_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state"),
                   "KILN_DAEMON_START_TIMEOUT_MS": "20000", "KILN_CONVOLUTION": "kiln"}
    command = os.environ["KILN_DAEMON_PATH"].removesuffix("d")

    def run(*arguments, **variables):
        done = subprocess.run(arguments, env={**environment, **variables}, capture_output=True, text=True,
                              cwd=os.path.dirname(__file__))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def warm(name, *targets, **variables):
        answer = json.loads(run(sys.executable, "-c", WARM, name, maker, use, *targets, **variables).splitlines()[-1])
        run(command, "daemon", "stop")
        return answer

    made = warm("", *TARGETS, **WITHOUT)
    assert all(nodes["nodes_compiled"] > 0 and nodes["nodes_left"] == 0 for nodes in made["targets"].values())
    checked = warm(DEVICE)
    assert checked["compilations"] == 0 and checked["hits_deferred"] == checked["programs"] > 0
    mapped = warm(DEVICE, KILN_NO_DAEMON="1")
    assert mapped["hits_mapped"] == mapped["programs"] == checked["programs"]
    assert mapped["nodes_compiled"] == checked["nodes_compiled"]
