"""kiln.report: what of one model runs in Kiln, and why the rest does not."""

from __future__ import annotations

import collections
import dataclasses

from ._reasons import DOCTOR, Reason

# What became of a program's first run, as check.py says it, for people.
_CHECKS = {"agreed": "agreed with torch", "before": "agreed with torch in an earlier process", "waiting": "not yet run",
           "skipped": "not checked", "wrong": "did not agree with torch", "building": "being built",
           "failed": "could not be had"}  # fmt: skip
CAUSES_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why `nodes` nodes of `op` run in torch, and what to do about it."""

    op: str
    nodes: int
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.op} x {self.nodes}: {self.why} ({self.advice})"


@dataclasses.dataclass(frozen=True)
class Report:
    """Of one model, since it was compiled.

    seconds is the time of `calls` calls, those in which something was compiled, loaded or checked left out; seconds_in_kiln
    what Kiln's programs took of it. programs counts, by what became of their first run; captures the situations of
    kiln.compile: loaded, kept, not_kept, refused; capture_causes says why of the latter two. saved has what races said of what
    training saves for its backwards, and of how many graphs."""

    nodes_in_kiln: int
    nodes_in_torch: int
    calls: int
    seconds: float
    seconds_in_kiln: float
    causes: tuple[Cause, ...]
    programs: dict[str, int]
    captures: dict[str, int]
    capture_causes: tuple[str, ...]
    saved: dict[str, int]

    @property
    def share_of_nodes(self) -> float:
        """Kiln's; 0 when nothing was compiled yet."""
        return _share(self.nodes_in_kiln, self.nodes_in_kiln + self.nodes_in_torch)

    @property
    def share_of_time(self) -> float:
        """Kiln's; 0 when nothing was timed yet."""
        return _share(self.seconds_in_kiln, self.seconds)

    def __str__(self) -> str:
        said = [f"{self.nodes_in_kiln} nodes in Kiln, {self.nodes_in_torch} in torch: {self.share_of_nodes:.1%} in Kiln"]
        if self.calls:
            said.append(f"{self.seconds:.3f} s in {self.calls} calls, {self.share_of_time:.1%} of it in Kiln")
        for what, counts in (("programs", self.programs), ("captures", self.captures)):
            if any(counts.values()):
                said.append(f"{what}: " + ", ".join(f"{n} {_CHECKS.get(k, k.replace('_', ' '))}" for k, n in counts.items() if n))
        said += [f"  {why}" for why in self.capture_causes]
        said += [f"saved for {graphs} backwards: {what}" for what, graphs in self.saved.items()]
        if self.causes:
            said.append("in torch:")
            said += [f"  {cause}" for cause in self.causes[:CAUSES_SHOWN]]
        if len(self.causes) > CAUSES_SHOWN:
            said.append(f"  and {len(self.causes) - CAUSES_SHOWN} more: .causes")
        return "\n".join(said)

    __repr__ = __str__


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def report(model) -> Report:
    """What ran where, of a model or a function that kiln.compile or torch.compile(backend="kiln") compiled.

    A graph counts for the model whose call made it, also where other models run it, too."""
    from .torch import check, waiting  # here, as `import kiln` alone imports no torch
    from .torch.tally import known_tally

    model = getattr(model, "_torchdynamo_orig_callable", getattr(model, "_orig_mod", model))
    if not _entries([model]):  # not a method that is compiled itself
        model = getattr(model, "__self__", model)
    parts = list(model.modules()) if hasattr(model, "modules") else [model]
    entries = _entries(parts)
    owners = dict.fromkeys([*parts, *(owner for entry in entries for owner in (*entry.modules, *entry.owners()))])
    tallies = [tally for tally in map(known_tally, owners) if tally is not None]
    whys = {check.WRONG: Reason("a program did not agree with torch", advice=check.WRONG_ADVICE),
            check.BUILDING: waiting.BEING_BUILT,
            check.FAILED: Reason("its program could not be had", advice=DOCTOR)}  # fmt: skip
    in_kiln, in_torch, checks = 0, collections.Counter(), collections.Counter(dict.fromkeys(_CHECKS, 0))
    for tally in tallies:
        known = list(tally.checked)
        lacking = [(op, whys[state]) for subgraph in known if (state := _lack(subgraph.checks(), check)) in whys
                   for op in subgraph.ops * tally.instances]  # fmt: skip
        in_kiln += tally.compiled - len(lacking)
        in_torch.update(tally.left)
        in_torch.update(lacking)
        checks.update(state for subgraph in known for state in subgraph.checks())
    times = [tally.time for tally in tallies]
    captures, causes = _captures(entries)
    return Report(
        nodes_in_kiln=in_kiln,
        nodes_in_torch=in_torch.total(),
        calls=sum(t.calls for t in times),
        seconds=sum(t.ns for t in times) / 1e9,
        seconds_in_kiln=sum(t.kiln_ns for t in times) / 1e9,
        causes=tuple(Cause(op, nodes, why, why.advice) for (op, why), nodes in in_torch.most_common()),
        programs=dict(checks),
        captures=captures,
        capture_causes=causes,
        saved=dict(sum((tally.saved for tally in tallies), collections.Counter())),
    )


def _lack(states: list[str], check) -> str:
    """What keeps a subgraph in torch whose programs have these states; empty where nothing does."""
    if check.WRONG in states:
        return check.WRONG
    without = [state for state in states if state in (check.BUILDING, check.FAILED)]
    return without[0] if without and len(without) == len(states) else ""


def _entries(parts: list) -> list:
    """kiln.compile's, of these modules."""
    from .regional import entries_of  # imports torch, too

    values = [value for part in parts for value in list(getattr(part, "__dict__", {}).values())]
    return list(dict.fromkeys(entry for value in values for entry in entries_of(value)))


def _captures(entries) -> tuple[dict[str, int], tuple[str, ...]]:
    counts, causes = dict.fromkeys(("loaded", "kept", "not_kept", "refused"), 0), []
    for entry in entries:
        for what, value in entry.capture_counts().items():
            counts[what] += value
        causes += [f"a {entry.role} is not {why}" for why in entry.capture_causes()]
    return counts, tuple(dict.fromkeys(causes))


__all__ = ["Cause", "Report", "report"]
