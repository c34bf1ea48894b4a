"""What ran where, and for how long, of what was compiled for one owner: a model or function that torch.compile was given, or an
entry of kiln.compile. kiln.report() shows it."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import weakref

from .scoped import set_within

try:
    from .._kiln import Stopwatch, note_disturbance
except ImportError:  # no libkiln, and so no programs; the session says so

    class Stopwatch:
        calls = ns = kiln_ns = 0

        def run(self, function, *arguments):
            return function(*arguments)

    def note_disturbance() -> None:
        pass


class Tally:
    """Of one owner: what was compiled in its calls. Threading: any; of what two threads count at once something may be lost."""

    def __init__(self) -> None:
        self.compiled = 0  # nodes that Kiln's programs run
        self.left: collections.Counter = collections.Counter()  # nodes that torch runs, by (op, why)
        self.instances = 1  # how often nodes of a subgraph of its count: so many modules run it
        self.checked: weakref.WeakSet = weakref.WeakSet()  # subgraphs, which say by checks() what became of their first runs
        self.saved: collections.Counter = collections.Counter()  # graphs, by what a race said of what they save (saving.py)
        self.graphs: dict[int, object] = {}  # that Dynamo gave, without their sizes: what further ones may cost (waiting.py)
        self.time = Stopwatch()

    def add(self, compiled: int, left: list[tuple], subgraphs, instances: int = 1) -> None:
        self.compiled += compiled * instances
        self.left.update(left * instances)
        self.instances = instances
        self.checked.update(subgraphs)


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


def instances() -> int:
    """How many modules run a graph that is made here."""
    return _instances


_is_trial = contextvars.ContextVar("is_trial", default=False)


def on_trial():
    """Within, graphs are made and run to be timed: they count for nobody, and what they run on checks no program."""
    return set_within(_is_trial, True)


def is_on_trial() -> bool:
    return _is_trial.get()


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


def owner_name() -> str | None:
    """What people know the owner by."""
    return _name_of(current_owner())


def entry_name(what: str, owner=None) -> str:
    """What people know an entry of the cache by: of whom it is, the owner or the one at work, and what it is."""
    name = _name_of(current_owner() if owner is None else owner)
    return what if name is None else f"{name}: {what}"


def _name_of(owner) -> str | None:
    """A module's class, a function's name."""
    modules = getattr(owner, "modules", None)  # a list, of an entry of kiln.compile; a method, of a module
    module = modules[0] if isinstance(modules, list) else owner
    return None if module is None else getattr(module, "__qualname__", type(module).__qualname__)


def owned_by(owner):
    """Within, graphs are made for the owner."""
    return set_within(_owner, owner)
