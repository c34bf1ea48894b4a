"""What stats(), explain() and report() say of a graph: each is counted once, where it is made."""

from __future__ import annotations

from .. import _session
from .subgraphs import EagerSubgraph
from .tally import Tally, instances, is_on_trial, note_disturbance


def count_graph(subgraphs: list, outside: list, saved: str, tally: Tally) -> None:
    """Adds a graph: what runs its subgraphs, (op, Reason) of each node that no subgraph has, and, where a race decided what it
    saves for its backward, what that said."""
    note_disturbance()
    if is_on_trial():
        return
    session, count = _session.session(), instances()
    fallback = list(outside)
    for subgraph in subgraphs:
        if isinstance(subgraph, EagerSubgraph):
            fallback += [(op, subgraph.reason) for op in subgraph.ops]
    compiled = sum(len(r.ops) for r in subgraphs if not isinstance(r, EagerSubgraph))
    tally.add(compiled, fallback, subgraphs, count)
    if saved:
        tally.saved[saved] += count
    session.counts["nodes_compiled"] += compiled * count
    session.counts["nodes_fallback"] += len(fallback) * count
    session.counts["graphs"] += 1
    for op, why in fallback:
        session.fallback_ops[op] += count
        session.note_fallback(op, why)
    unsaid = [op for op, why in fallback if not why.is_cause]
    if unsaid:
        names = ", ".join(dict.fromkeys(unsaid))
        session.say("fallback", f"{len(fallback)} of {len(fallback) + compiled} nodes run in torch: {names[:200]}")


__all__ = ["count_graph"]
