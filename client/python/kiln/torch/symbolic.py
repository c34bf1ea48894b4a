"""Regions with symbolic extents: one text, and one program for each binding of its symbols that was met."""

from __future__ import annotations

from typing import Callable

import sympy
import torch

from .. import _session
from . import runtime
from .builder import dim_of, meta_of, type_of
from .partition import Region
from .place import Place
from .text import Unsupported

# Programs kept for one region; a loop over more lengths than this lets the oldest go.
MAX_BINDINGS = 64


class SymbolicRegion:
    """As runtime.StaticRegion, but its program is chosen by the extents and strides of the tensors it is called with.

    Threading: any thread; two that meet a new binding at once both ask for its program, and either serves."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, symbols: list, eager: Callable) -> None:
        self._text, self._inputs, self._outputs, self._place, self._symbols = text, inputs, outputs, place, symbols
        self.eager, self.ops = eager, eager.ops
        self.state = (text, inputs, outputs, place, symbols)
        self._sources = [self._source(symbol) for symbol in symbols]
        self._programs: dict[tuple, Callable] = {}

    @classmethod
    def of(cls, region: Region, place: Place, eager: Callable) -> SymbolicRegion:
        inputs, outputs = ([_layout_of(n) for n in nodes] for nodes in (region.inputs, region.outputs))
        return cls(region.text, inputs, outputs, place, list(region.symbols), eager)

    def programs(self):
        return list(self._programs.values())

    def checks(self) -> list[str]:
        return [check for program in self.programs() for check in program.checks()]

    def _source(self, symbol: sympy.Symbol) -> tuple[int, Callable, int]:
        """The input, and the dim whose extent or stride the symbol is."""
        for get, place in ((torch.Tensor.size, 1), (torch.Tensor.stride, 2)):
            for i, layout in enumerate(self._inputs):
                if symbol in layout[place]:
                    return i, get, layout[place].index(symbol)
        raise Unsupported(f"no input has the extent or stride {symbol}")

    def __call__(self, tensors: list) -> list:
        binding = tuple(get(tensors[i], dim) for i, get, dim in self._sources)
        program = self._programs.get(binding)
        if program is None:
            program = self._add(binding)
        return program(tensors)

    def _add(self, binding: tuple) -> Callable:
        values = dict(zip(self._symbols, binding))
        inputs, outputs = ([_bound(layout, values) for layout in layouts] for layouts in (self._inputs, self._outputs))
        try:
            program = runtime.StaticRegion(self._text, inputs, outputs, self._place, self.eager, binding)
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            _session.session().note_fallback(f"a region with {values}", str(error))
            _session.session().say("binding", f"a region of symbolic shape runs in torch: {error}")
            program = self.eager
        while len(self._programs) >= MAX_BINDINGS:
            self._programs.pop(next(iter(self._programs)), None)
        self._programs[binding] = program
        return program


def _layout_of(node) -> tuple:
    tensor = meta_of(node)
    dtype, shape = type_of(tensor)
    return dtype, shape, tuple(map(dim_of, tensor.stride()))


def _bound(layout: tuple, values: dict) -> tuple:
    dtype, shape, strides = layout
    return dtype, *(tuple(d if isinstance(d, int) else int(d.subs(values)) for d in dims) for dims in (shape, strides))
