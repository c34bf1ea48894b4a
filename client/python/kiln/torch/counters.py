"""What stats(), explain() and report() say of a graph: each is counted once, where it is made."""

from __future__ import annotations

import contextlib

from .. import _session
from .subgraphs import EagerSubgraph
from .tally import Tally, note_disturbance

_instances = 1


@contextlib.contextmanager
def count_instances(count: int):
    """Within, a graph's nodes count `count` times: so many modules run it, as so many layers of one graph would."""
    global _instances
    before, _instances = _instances, count
    try:
        yield
    finally:
        _instances = before


def count_graph(subgraphs: list, outside: list, tally: Tally) -> None:
    """Adds a graph: what runs its subgraphs, and (op, Reason) of each node that no subgraph has."""
    note_disturbance()
    session = _session.session()
    fallback = list(outside)
    for subgraph in subgraphs:
        if isinstance(subgraph, EagerSubgraph):
            fallback += [(op, subgraph.reason) for op in subgraph.ops]
    compiled = sum(len(r.ops) for r in subgraphs if not isinstance(r, EagerSubgraph))
    tally.add(compiled, fallback, subgraphs, _instances)
    session.counts["nodes_compiled"] += compiled * _instances
    session.counts["nodes_fallback"] += len(fallback) * _instances
    session.counts["graphs"] += 1
    for op, why in fallback:
        session.fallback_ops[op] += _instances
        session.note_fallback(op, why)
    unsaid = [op for op, why in fallback if not why.is_cause]
    if unsaid:
        names = ", ".join(dict.fromkeys(unsaid))
        session.say("fallback", f"{len(fallback)} of {len(fallback) + compiled} nodes run in torch: {names[:200]}")


__all__ = ["count_graph", "count_instances"]
