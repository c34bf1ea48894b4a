"""Programs: the text of a graph, compiled by libkiln for tensors of one place."""

from __future__ import annotations

import contextvars
import functools
import json
import threading
from typing import Callable

import torch

from .. import _session
from .._reasons import DOCTOR, NOT_FOUND, UNAVAILABLE, MissingProgram, Reason
from .place import Place
from .scoped import set_within
from .tally import note_disturbance, owner_name
from .tensors import relayout

_deadline_ms = contextvars.ContextVar("deadline_ms", default=0)


def waiting_at_most(deadline_ms: int):
    """Within, no program is waited for longer; 0 is what the configuration says."""
    return set_within(_deadline_ms, deadline_ms)


# What torch.compile calls its modes, and whether programs are handed out only when candidates for their matrix products and
# attention have raced on this machine.
MODES = {
    None: False,
    "default": False,
    "reduce-overhead": False,
    "max-autotune": True,
    "max-autotune-no-cudagraphs": True,
}
_is_tuned = contextvars.ContextVar("is_tuned", default=False)


def in_mode(mode: str | None):
    """Within, programs are created as the mode says. An unknown one is said once, and changes nothing."""
    if mode not in MODES:
        known = ", ".join(repr(name) for name in MODES if name)
        _session.session().say("mode", f"mode {mode!r} is not known, known are: {known}")
    return tuned(MODES.get(mode, False))


def tuned(is_tuned: bool):
    """Within, programs are created only when their candidates have raced on this machine, if is_tuned."""
    return set_within(_is_tuned, is_tuned)


def is_tuned() -> bool:
    """Whether they are, here."""
    return _is_tuned.get()


# Where programs come from: no daemon is asked, and what is called when a daemon has planned all that it compiles.
_mapped_only = contextvars.ContextVar("mapped_only", default=False)
_planned = contextvars.ContextVar("planned", default=None)


def telling(planned: Callable):
    """Within, planned() is called when a program that is created is sure to be had: a daemon refuses no op of it any more."""
    return set_within(_planned, planned)


_thread = threading.local()


def key_of(text: str, inputs: list[tuple], outputs: list[tuple], place: Place, symbol_values: tuple = ()) -> tuple:
    """What a program is asked for by, in the mode that holds here."""
    threads = torch.get_num_threads() if _is_tuned.get() else 0
    return text, tuple(inputs), tuple(outputs), place, symbol_values, _is_tuned.get(), threads


def expect(begun: dict) -> None:
    """Programs that are on their way, by key: this thread takes them out by take_begun(), and waits for their result()."""
    _thread.begun = begun


def take_begun(*asked):
    """What is on its way of what create_program(*asked) would create; None where nothing is."""
    return getattr(_thread, "begun", {}).pop(key_of(*asked), None)


def mapped_program(*asked):
    """As create_program, but None where a daemon would have to be asked."""
    try:
        with set_within(_mapped_only, True):
            return create_program(*asked)
    except Exception as error:
        if Reason.of(error).code != NOT_FOUND:
            raise
    return None


def create_program(text: str, inputs: list[tuple], outputs: list[tuple], place: Place, symbol_values: tuple = ()):
    """An executable of the text, for tensors there. Raises kiln's Error when it cannot be had."""
    client = _session.session().client(place.name)
    if client is None:
        raise RuntimeError(Reason(f"no client for {place.device}", code=UNAVAILABLE, advice=DOCTOR))
    _attach()
    note_disturbance()
    options = {"symbol_values": symbol_values, "deadline_ms": _deadline_ms.get(), "memory": place.memory,
               "tune": _is_tuned.get(), "label": owner_name(), "threads": torch.get_num_threads(),
               "mapped_only": _mapped_only.get(), "planned": _planned.get()}
    try:
        return client.compile(text, inputs, outputs, **options)
    except Exception as error:
        _session.session().say_cause(error)
        raise


def sized_graph(text: str, place: Place):
    """The graph of symbols for which libkiln gives programs for many sizes; None where such are not used. Raises kiln's Error."""
    client = _session.session().client(place.name)
    if client is None or place.memory is not None or _is_tuned.get():
        return None
    _attach()
    return client.sized(text)


def build_for_sizes(graph, values: tuple, label: str | None) -> None:
    """Has a program built that serves these sizes of a sized_graph(), and others around them. Raises kiln's Error."""
    graph.build(values, deadline_ms=_deadline_ms.get(), label=label)


def compilations_of(program) -> int:
    """Kernels that were compiled as this process asked for it."""
    return json.loads(program.describe()).get("compilations", 0) if hasattr(program, "describe") else 0


def insist(reason: Reason) -> Reason:
    """The reason why there is no program. Raises MissingProgram where it has to be there."""
    if reason.code == NOT_FOUND and _session.session().requires_hits:
        raise MissingProgram(reason)
    return reason


def build_program(text: str, place: Place, target: str) -> None:
    """Has the text compiled into the cache for a target that need not be this host's. Raises kiln's Error."""
    _session.session().client(place.name).build(text, target, deadline_ms=_deadline_ms.get(), label=owner_name())


@functools.cache
def _attach() -> None:
    """Tells the extension, once, what torch's tensors are and how one is laid out anew."""
    from .. import _kiln  # there only with libkiln

    _kiln.attach(torch.Tensor, relayout)


__all__ = ["build_for_sizes", "build_program", "compilations_of", "create_program", "expect", "in_mode", "insist", "is_tuned",
           "key_of", "mapped_program", "sized_graph", "take_begun", "telling", "tuned", "waiting_at_most"]  # fmt: skip
