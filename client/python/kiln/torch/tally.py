"""What ran where, and for how long, of what was compiled for one owner: a model or function that torch.compile was given, or an
entry of kiln.compile. kiln.report() shows it."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import threading
import time
import weakref

import torch

try:
    from .._kiln import time_in_programs
except ImportError:  # no libkiln, and so no programs; the session says so

    def time_in_programs() -> int:
        return 0


class Tally:
    """Of one owner: what was compiled in its calls. Threading: any; of what two threads count at once something may be lost."""

    def __init__(self) -> None:
        self.compiled = 0  # nodes that Kiln's programs run
        self.left: collections.Counter = collections.Counter()  # nodes that torch runs, by (op, why)
        self.instances = 1  # how often nodes of a subgraph of its count: so many modules run it
        self.checked: weakref.WeakSet = weakref.WeakSet()  # subgraphs, which say by checks() what became of their first runs
        self.time = Stopwatch()

    def add(self, compiled: int, left: list[tuple], subgraphs, instances: int = 1) -> None:
        self.compiled += compiled * instances
        self.left.update(left * instances)
        self.instances = instances
        self.checked.update(subgraphs)


class _Thread(threading.local):
    is_timed = False


_thread = _Thread()
_disturbances = 0


def note_disturbance() -> None:
    """To be told when something is compiled, loaded or checked: the calls that this happens in are no measure of time."""
    global _disturbances
    _disturbances += 1


class Stopwatch:
    """Times calls, but for those within a call that is timed, and those that were disturbed.

    Attributes: calls; ns, their time; kiln_ns, what of it Kiln's programs took."""

    __slots__ = ("calls", "kiln_ns", "ns")

    def __init__(self) -> None:
        self.calls = self.ns = self.kiln_ns = 0

    def run(self, function, *arguments):
        if torch.compiler.is_compiling() or _thread.is_timed:
            return function(*arguments)
        before, in_programs, start = _disturbances, time_in_programs(), time.perf_counter_ns()
        _thread.is_timed = True
        try:
            return function(*arguments)
        finally:
            _thread.is_timed = False
            if before == _disturbances:
                self.ns += time.perf_counter_ns() - start
                self.kiln_ns += time_in_programs() - in_programs
                self.calls += 1


_tallies: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_owner: contextvars.ContextVar = contextvars.ContextVar("owner", default=None)


def tally_of(owner) -> Tally:
    """The owner's; one that nothing else knows for what has no owner, or one that cannot be told from its equals."""
    try:
        return _tallies.setdefault(owner, Tally()) if owner is not None else Tally()
    except TypeError:
        return Tally()


def known_tally(owner) -> Tally | None:
    try:
        return _tallies.get(owner)
    except TypeError:
        return None


def current_owner():
    return _owner.get()


@contextlib.contextmanager
def owned_by(owner):
    """Within, graphs are made for the owner."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)
