"""Programs that are built before they are asked for: a backward's, while its forward's are waited for."""

from __future__ import annotations

import contextvars
import threading

from torch import fx

from . import programs
from .expansion import first_partition
from .partition import prepare
from .split import MIN_SHARE, share_of_work

# Programs of one graph that are begun; the others wait until they are asked for.
MAX_BEGUN = 8


def begin(gm: fx.GraphModule) -> None:
    """Begins what compile_graph(gm) will ask for in this thread, in the order of the graph. What was begun before and not
    asked for is forgotten. Raises nothing: what cannot be begun is met again when it is asked for."""
    try:
        programs.expect(_programs_of(_copy(gm.graph)))
    except Exception:  # noqa: BLE001: Kiln never makes its caller fail
        programs.expect({})


def _copy(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _programs_of(graph: fx.Graph) -> dict[tuple, _Begun]:
    place = prepare(graph)
    plan = first_partition(graph, place)
    if share_of_work(plan) < MIN_SHARE:
        return {}
    begun = {}
    for subgraph in list(plan.subgraphs.values())[:MAX_BEGUN]:
        if not subgraph.symbols:
            asked = (subgraph.text, *subgraph.layouts, place)
            begun[programs.key_of(*asked)] = _Begun(asked)
    return begun


class _Begun:
    """A program on its way, in a thread of its own: its daemon is waited for there."""

    def __init__(self, asked: tuple) -> None:
        self._program = self._error = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._create, asked), name="kiln-ahead")
        self._thread.start()

    def _create(self, asked: tuple) -> None:
        try:
            self._program = programs.create_program(*asked)
        except Exception as error:  # noqa: BLE001: raised where the program is asked for
            self._error = error

    def result(self):
        """The program, or None in a fork, where its thread is not. Raises kiln's Error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._program


__all__ = ["MAX_BEGUN", "begin"]
