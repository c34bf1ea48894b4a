"""Programs of one graph of symbols for ever other sizes, from programs that serve many (docs/kernels.md): found in the cache by
libkiln, without the daemon, which builds them beside the steps."""

from __future__ import annotations

import functools

from .. import _session
from . import programs, waiting
from .binding import Layouts
from .place import Place
from .tally import owner_name


class ManySizes:
    """Threading: any; of what two threads ask for at once one is built."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, symbols: list) -> None:
        """As of a SymbolicSubgraph."""
        self._text, self._place, self._label = text, place, owner_name()
        self._inputs, self._outputs = Layouts(symbols, inputs), Layouts(symbols, outputs)
        self._build, self._asked, self._is_wrong = None, (), False
        self._refused: set[tuple] = set()  # sizes by where they lie between powers of two: no program serves these

    @property
    def serves(self) -> bool:
        """Whether they are of use: False once there was none where one was asked for first, or one was wrong."""
        graph = self._graph
        return graph is not None and not self._is_wrong and (not self._refused or graph.known > 0)

    @property
    def is_building(self) -> bool:
        """Whether one was asked for that is not known to be there yet."""
        return self._build is not None

    def note_wrong(self) -> None:
        self._is_wrong = True

    def layouts(self, values: tuple) -> tuple[list, list]:
        return self._inputs.of(values), self._outputs.of(values)

    def program(self, values: tuple):
        """That for these sizes, and whether it is the first of its kind in this process; (None, False) where there is none yet."""
        if not self.serves:
            return None, False
        graph = self._graph
        known = graph.known
        program = graph.program(values, *self.layouts(values))
        return program, graph.known > known

    def ask(self, values: tuple, waits: bool) -> None:
        """Has what serves these sizes built, unless there can be none, or another is being built."""
        if self._build is not None and self._build.is_lost:
            self._build = None
        if self._build is not None and self._build.has_ended:
            self._settle()
        if not self.serves or _place_of(values) in self._refused:
            return
        if self._build is None and len(waiting.building) < waiting.MAX_BUILDING:
            make = functools.partial(programs.build_for_sizes, self._graph, values, self._label)
            self._build, self._asked = waiting.Build(make), values
        if waits and self._build is not None:
            self._build.thread.join()
            self._settle()

    def _settle(self) -> None:
        build, self._build = self._build, None
        try:
            build.result()
        except Exception as error:  # noqa: BLE001: each size has a program of its own, then
            self._refused.add(_place_of(self._asked))
            _session.session().note_fallback("a program for many sizes", str(error))

    @functools.cached_property
    def _graph(self):
        """None where no program serves many sizes."""
        try:
            return programs.sized_graph(self._text, self._place)
        except Exception as error:  # noqa: BLE001: each size has a program of its own, then
            _session.session().note_fallback("a program for many sizes", str(error))
            return None


def _place_of(values: tuple) -> tuple:
    return tuple(value.bit_length() for value in values)


__all__ = ["ManySizes"]
