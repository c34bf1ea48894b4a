"""Recurrences whose steps are programs: what runs where recurrent.py has a recurrence in a graph.

One program does a step, whatever the number of steps. It writes where the results of its step belong.
"""

from __future__ import annotations

from typing import Callable

from .recurrent import CELLS, go_back, go_forward
from .steps import Step


class OverTime:
    """Either op of recurrent.py, of one cell. Threading: any thread."""

    def __init__(self, kind: str, is_backward: bool, step: Step) -> None:
        self._kind, self._is_backward, self._step = kind, is_backward, step

    @property
    def subgraphs(self) -> list:
        return [self._step.subgraph]

    def __call__(self, *operands) -> tuple:
        """What the op gives."""
        cell = CELLS[self._kind]
        go, along = (go_back, cell.gradients) if self._is_backward else (go_forward, cell.states + bool(cell.kept))
        dense = [t if t is None else t.contiguous() for t in operands]
        return go(lambda arguments, targets: self._step(arguments, targets, along), cell, *dense)

    def dump(self) -> tuple:
        return self._kind, self._is_backward, self._step.dump()

    @classmethod
    def load(cls, load_subgraph: Callable, kind: str, is_backward: bool, step: tuple) -> OverTime:
        return cls(kind, is_backward, Step.load(load_subgraph, *step))


__all__ = ["OverTime"]
