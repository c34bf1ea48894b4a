"""What the importer writes is what libkiln reads: the same graph, its inferred types among it."""

import pytest
import torch

import interpreter
import test_rows
from capture import captured
from kiln import _kiln
from kiln.torch import compile_graph, programs


@pytest.fixture
def texts(monkeypatch):
    seen = []

    def keep(text, *rest):
        seen.append(text)
        return interpreter.create_program(text, *rest)

    monkeypatch.setattr(programs, "create_program", keep)
    return seen


@pytest.mark.parametrize("name", test_rows.CASES)
def test_libkiln_reads_the_text_of_every_row(name, texts):
    function, inputs = test_rows.CASES[name]
    inputs = inputs()
    compile_graph(captured(function, *inputs), inputs)
    assert texts
    for text in texts:
        printed = _kiln.normalise(text)
        assert _kiln.normalise(printed) == printed


def test_libkiln_reads_symbols_and_strides(texts):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    with torch.no_grad():
        torch.compile(model, backend="kiln", dynamic=True)(torch.randn(3, 8))
    (text,) = texts
    assert "symbols(" in _kiln.normalise(text)
    x = torch.randn(4, 3).t()
    texts.clear()
    compile_graph(captured(lambda x: x + 1, x), [x])
    assert texts[0].count("{1, 3}") == 2 and "{1, 3}" in _kiln.normalise(texts[0])


def test_a_graph_that_is_wrong_is_named_with_its_place():
    with pytest.raises(_kiln.Error, match=r"2:\d+: .*add") as caught:
        _kiln.normalise("graph(%a: f32[2], %b: i64[2]) {\n  %0 = add(%a, %b)\n  return %0\n}\n")
    assert caught.value.code == 3
