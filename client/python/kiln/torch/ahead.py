"""Programs that are built before they are asked for: a backward's, while its forward's are waited for."""

from __future__ import annotations

import functools

from torch import fx

from . import programs, waiting
from .expansion import first_partition
from .partition import prepare
from .split import MIN_SHARE, share_of_work

# Programs of one graph that are begun; the others wait until they are asked for.
MAX_BEGUN = 8


def begin(gm: fx.GraphModule) -> None:
    """Begins what compile_graph(gm) will ask for in this thread, in the order of the graph. What was begun before and not
    asked for is forgotten. Raises nothing: what cannot be begun is met again when it is asked for."""
    if waiting.meetings() != 0:  # nobody is going to wait
        return programs.expect({})
    try:
        programs.expect(_programs_of(_copy(gm.graph)))
    except Exception:  # noqa: BLE001: Kiln never makes its caller fail
        programs.expect({})


def _copy(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _programs_of(graph: fx.Graph) -> dict[tuple, waiting.Build]:
    place = prepare(graph)
    plan = first_partition(graph, place)
    if share_of_work(plan) < MIN_SHARE:
        return {}
    begun = {}
    for subgraph in list(plan.subgraphs.values())[:MAX_BEGUN]:
        if not subgraph.symbols:
            asked = (subgraph.text, *subgraph.layouts, place)
            begun[programs.key_of(*asked)] = waiting.Build(functools.partial(programs.create_program, *asked))
    return begun


__all__ = ["MAX_BEGUN", "begin"]
