"""kiln.compile of functions and methods: eager's results, captures that the next process installs, torch.compile's settings."""

import pytest
import torch
from conftest import OVER_DOUBLE

import kiln
from kiln import _session, regional

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")

FACTOR = 3.0


def weighed(x, y):
    return torch.nn.functional.gelu(x @ y).sum(1) * FACTOR


def broken(x):
    torch._dynamo.graph_break()
    return x + 1


@kiln.compile
def decorated(x):
    return torch.sin(x) * later(x)


def later(x):
    return torch.cos(x)


class Owner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.shift = torch.nn.Linear(8, 8), 3

    def encode(self, x):
        return torch.relu(self.linear(x)) * self.shift

    @kiln.compile
    def decode(self, x):
        return torch.tanh(self.linear(x)) + self.shift


@pytest.fixture(autouse=True)
def no_captures():
    regional._captures.clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def frames():
    return torch._dynamo.utils.counters["frames"]["ok"]


def loaded():
    return _session.session().counts["captures_loaded"]


def check(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def inputs(rows=5):
    return torch.randn(rows, 6), torch.randn(6, 7)


def test_a_function_has_eagers_results_and_gradients():
    x, y = (t.requires_grad_() for t in inputs())
    compiled = kiln.compile(weighed)
    got, expected = compiled(x, y), weighed(x, y)
    check(got, expected)
    check(torch.autograd.grad(got.square().sum(), (x, y)), torch.autograd.grad(expected.square().sum(), (x, y)))
    assert compiled.__name__ == "weighed" and kiln.report(compiled).nodes_in_kiln > 0


@pytest.mark.parametrize("kind", ["function", "decorated", "method", "decorated method"])
def test_a_capture_is_found_by_who_begins_anew(kind):
    owner, x = Owner(), torch.randn(4, 8)
    run, expected = {
        "function": (lambda: kiln.compile(weighed)(x, x.t()), weighed(x, x.t())),
        "decorated": (lambda: kiln.compile(decorated)(x), torch.sin(x) * torch.cos(x)),
        "method": (lambda: kiln.compile(owner.encode)(x), owner.encode(x)),
        "decorated method": (lambda: kiln.compile(Owner.decode)(owner, x), torch.tanh(owner.linear(x)) + 3),
    }[kind]
    check(run(), expected)
    regional._captures.clear()
    torch._dynamo.reset()
    before, traced = loaded(), frames()
    check(run(), expected)
    assert loaded() > before and frames() == traced


def test_what_a_function_reads_around_it_is_guarded(monkeypatch):
    x, y = inputs()
    compiled, owner, z = kiln.compile(weighed), Owner(), torch.randn(2, 8)
    encode = kiln.compile(owner.encode)
    for factor, shift in ((3.0, 3), (5.0, 4)):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        owner.shift = shift
        check(compiled(x, y), weighed(x, y))
        check(encode(z), owner.encode(z))
        check(owner.decode(z), torch.tanh(owner.linear(z)) + shift)


@pytest.mark.parametrize("dynamic, expected", [(True, 1), (None, 2), (False, 3)])
def test_extents_are_symbols_when_dynamic_says(dynamic, expected):
    compiled = kiln.compile(weighed, dynamic=dynamic)
    for rows in (5, 7, 9):
        x, y = inputs(rows)
        check(compiled(x, y), weighed(x, y))
    assert frames() == expected


def test_fullgraph_raises_what_torch_raises():
    x = torch.randn(3)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        kiln.compile(broken, fullgraph=True)(x)
    check(kiln.compile(broken)(x), x + 1)


def test_the_functions_own_errors_are_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2|size mismatch|shapes"):
        kiln.compile(weighed)(torch.randn(2, 3), torch.randn(4, 5))


def test_an_option_that_nobody_knows_is_named(capsys):
    kiln.compile(weighed, options={"deadline": 5})
    assert "'deadline' is not known" in capsys.readouterr().err


def test_settings_reach_what_torch_compiles_instead():
    """What has no name cannot be kept."""
    compiled = kiln.compile(lambda x: x * 2 + 1, dynamic=True)
    for rows in (3, 4, 6):
        x = torch.randn(rows)
        check(compiled(x), x * 2 + 1)
    assert frames() == 1
