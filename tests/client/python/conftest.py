"""Over libkiln's double, regions run in interpreter.py: what the importer's graphs mean. Over libkiln, in its kernels."""

import pytest
import torch

import interpreter
from kiln import _kiln, _session
from kiln.torch import runtime

OVER_DOUBLE = _kiln.version() == "double"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Counters at zero, one seed, and a region runner."""
    monkeypatch.setattr(_session, "_session", _session.Session())
    if OVER_DOUBLE:
        monkeypatch.setattr(runtime, "create_program", interpreter.create_program)
    torch._dynamo.reset()
    torch.manual_seed(0)
