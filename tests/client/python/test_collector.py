"""Python's garbage collector stays out of compilations, and is afterwards what it was."""

import gc

import pytest
import torch

import kiln.torch
from kiln.torch.collector import collector_paused


@pytest.fixture(autouse=True)
def enabled():
    assert gc.isenabled()
    yield
    gc.enable()


def test_pauses_nest_and_end_with_errors():
    with collector_paused():
        with pytest.raises(ValueError, match="inner"), collector_paused():
            raise ValueError("inner")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_the_user_turned_off_stays_off():
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_compilation_is_not_collected_in(monkeypatch):
    seen = []
    compile_graph = kiln.torch.entry.compile_graph

    def watched(*arguments):
        seen.append(gc.isenabled())
        return compile_graph(*arguments)

    monkeypatch.setattr(kiln.torch.entry, "compile_graph", watched)
    torch.compile(lambda x: torch.sin(x) + 1, backend="kiln")(torch.randn(7, 3))
    assert seen == [False] and gc.isenabled()
