"""A compiled graph, and its plain form: what a capture keeps of it.

It is kept as its generated source, the text of its subgraphs and the source of their fallback. Programs are not in it: the
process that loads it finds them in the mapped cache by the text's key, and asks the daemon for what has gone.
"""

from __future__ import annotations

import functools
from typing import Callable

import torch

from . import counters, subgraphs
from .again import Again
from .ctc_in_steps import CtcLossInSteps
from .kept import NotKept, dump_names, dump_tensor, load_names, load_tensor
from .loss_in_rows import LossInRows
from .over_time import OverTime
from .tally import current_owner, tally_of


# Kinds of attributes: a constant's, what runs steps; all others are subgraphs.
_TENSOR, _IN_STEPS = "tensor", {"loss": LossInRows, "over time": OverTime, "ctc loss": CtcLossInSteps}
# In a forward's meta: what the race said of what it saves for its backward (saving.py), empty where there was none.
WHAT_IS_SAVED = "kiln_what_is_saved"


class CompiledGraph:
    """A boxed callable: takes a list of tensors, which it empties, and gives a tuple.

    Made of generated source, in which subgraphs are called by name, so that it can be kept and made again."""

    def __init__(self, source: str, names: dict, attributes: dict, outside: list, saved: str = "") -> None:
        """outside: (op, why) of each node that no subgraph has. saved: as WHAT_IS_SAVED."""
        scope = dict(names)
        exec(compile(source, "<kiln>", "exec"), scope)  # noqa: S102: our own source, or fx's
        self._function = scope["forward"].__get__(_Attributes(attributes))
        self.source, self.names, self.attributes, self.outside, self._saved = source, names, attributes, outside, saved
        tally = tally_of(current_owner())
        counters.count_graph(self.subgraphs, outside, saved, tally)
        self._time = tally.time
        self._boxed_call = True  # on the instance: functools.update_wrapper copies __dict__ only
        self.again: Again | None = None  # of a forward with a backward

    @property
    def subgraphs(self) -> list:
        """What runs them; those of steps among them."""
        in_steps = [value for value in self.attributes.values() if isinstance(value, tuple(_IN_STEPS.values()))]
        own = [value for value in self.attributes.values() if isinstance(value, subgraphs.KINDS)]
        return own + [subgraph for value in in_steps for subgraph in value.subgraphs]

    @property
    def has_subgraphs(self) -> bool:
        return bool(self.subgraphs)

    def __call__(self, arguments: list):
        return self._time.run(self._function, arguments)

    def observe(self, call: Callable) -> None:
        """From here on its subgraphs are called by way of call(subgraph, tensors, targets)."""
        scope = vars(self._function.__self__)
        for name, value in self.attributes.items():
            if isinstance(value, subgraphs.KINDS):
                scope[name] = functools.partial(call, value)

    def dump(self) -> dict:
        """Raises NotKept."""
        return {
            "source": self.source,
            "names": dump_names(self.names),
            "attributes": {name: _dump_attribute(name, value) for name, value in self.attributes.items()},
            "outside": self.outside,
            "saved": self._saved,
            "again": self.again.dump() if self.again else None,
        }

    @staticmethod
    def has_subgraphs_in(state: dict) -> bool:
        """What has_subgraphs is of the graph that has dumped itself so."""
        return any(kind != _TENSOR for kind, _ in state["attributes"].values())

    @classmethod
    def load(cls, state: dict) -> CompiledGraph:
        """Of what dump() gave, without its `again`."""
        attributes = {name: _load_attribute(*kept) for name, kept in state["attributes"].items()}
        return cls(state["source"], load_names(state["names"]), attributes, state["outside"], state["saved"])


class _Attributes:
    """The `self` of generated source: subgraphs and constants by name."""

    def __init__(self, attributes: dict) -> None:
        self.__dict__.update(attributes)


def _dump_attribute(name: str, value) -> tuple:
    if isinstance(value, subgraphs.KINDS):
        return value.dump()
    for kind, of_kind in _IN_STEPS.items():
        if isinstance(value, of_kind):
            return kind, value.dump()
    if isinstance(value, torch.Tensor):
        return _TENSOR, dump_tensor(name, value)
    raise NotKept(f"{name} is a {type(value).__name__}")


def _load_attribute(kind: str, state: tuple):
    if kind in _IN_STEPS:
        return _IN_STEPS[kind].load(subgraphs.load_subgraph, *state)
    return load_tensor(*state) if kind == _TENSOR else subgraphs.load_subgraph(kind, state)


__all__ = ["WHAT_IS_SAVED", "CompiledGraph"]
