"""A function of tensors that runs again and again within a graph, some rows or one step of a sequence at a time, as a program."""

from __future__ import annotations

from typing import Callable


class Step:
    """The function's program."""

    def __init__(self, subgraph, inputs: list[int], outputs: list[int]) -> None:
        """inputs: of the subgraph, the function's argument that each is; outputs: the result that each is."""
        self.subgraph, self._inputs, self._outputs = subgraph, inputs, outputs

    def __call__(self, arguments: list, targets: list, fixed: int) -> list:
        """Results lie in the targets: the first `fixed` in any case, others perhaps in memory of their own, as those whose target
        is None."""
        made = self.subgraph([arguments[i] for i in self._inputs], [targets[i] for i in self._outputs])
        results = list(targets)
        for i, result in zip(self._outputs, made):
            if i < fixed and result is not targets[i]:
                targets[i].copy_(result)
            else:
                results[i] = result
        return results

    def dump(self) -> tuple:
        return self.subgraph.dump(), self._inputs, self._outputs

    @classmethod
    def load(cls, load_subgraph: Callable, subgraph: tuple, inputs: list[int], outputs: list[int]) -> Step:
        return cls(load_subgraph(*subgraph), inputs, outputs)


def run_in_steps(runner: Callable, *operands) -> tuple:
    """What generated source calls, by its name."""
    return runner(*operands)


__all__ = ["Step", "run_in_steps"]
