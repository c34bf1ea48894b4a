"""The loss of a projection, some rows at a time: what runs where linear_loss.py found one in a graph.

Scores of a large vocabulary are the largest tensors of a training step, and nobody reads them but the loss. So a program
makes the scores of some rows, their losses, and what they add to the gradients; the next rows take the same scratch memory.
The gradients come with the loss, for an incoming gradient of 1, and the backward multiplies them by what comes in: a
projection is three products then, as it is with scores that are kept. To compute the scores again in the backward would
save the memory of the weight's gradient in between, for a fourth product.

The gradient of the weight is the sum of what all rows add. Each program reads the sum so far in one tensor and writes the
next in another, and both change places.

Of halves these sums, the losses and the gradient of x are f32; the backward rounds gradients when it has multiplied them by
what comes in. The scores' gradients, which products read as halves, are not divided by the number of rows before: f16 has no
numbers so small.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Callable

import torch

from .steps import Step

# Rows of one program: with fewer, sums of gradients that are read and written would cost more than scores that are not. Products
# of halves cost less, and their sums are as large.
MAX_ROWS, MAX_ROWS_OF_HALVES = 256, 1024


@dataclass(frozen=True)
class LinearLoss:
    """-log softmax(x weight^T + bias)[target], of rows of which the target is not `ignored`, summed, or as their mean."""

    rows: int
    classes: int
    ignored: int
    is_mean: bool
    is_wide: bool  # the loss of halves is f32
    has_bias: bool
    # Of the gradients of x, weight and bias, those that are wanted.
    wanted: tuple[bool, bool, bool]

    def chunks(self, max_rows: int) -> list[int]:
        """Rows of each program that runs, in order: of one number where not many more programs than are needed have that."""
        least = -(-self.rows // max_rows)
        for count in range(least, 2 * least):
            if self.rows % count == 0:
                return [self.rows // count] * count
        each = -(-self.rows // least)
        return [each] * (self.rows // each) + [self.rows % each]

    def step(self, x, target, share, weight, *rest) -> tuple:
        """The losses of some rows, the gradient of x, and the sums of the other gradients so far; of gradients those that are
        wanted. A target that does not count is -1. share: that of one row's loss in the loss of all."""
        bias, *sums = rest if self.has_bias else (None, *rest)
        log_probabilities = torch.log_softmax(torch.nn.functional.linear(x, weight, bias).to(share.dtype), 1)
        is_target = target.unsqueeze(1) == torch.arange(self.classes, device=x.device)
        losses = -torch.where(is_target, log_probabilities, 0.0).sum(1)
        if not any(self.wanted):
            return (losses,)
        counts = (target >= 0).to(share.dtype).unsqueeze(1)
        of_scores = ((log_probabilities.exp() - is_target.to(share.dtype)) * counts).to(x.dtype)
        of_x, of_weight, of_bias = self.wanted
        gradients = [(of_scores @ weight).to(share.dtype) * share] if of_x else []
        gradients += [sums.pop(0) + (of_scores.t() @ x).to(share.dtype) * share] if of_weight else []
        gradients += [sums.pop(0) + of_scores.to(share.dtype).sum(0) * share] if of_bias else []
        return losses, *gradients


class LossInRows:
    """A LinearLoss and its gradients. Threading: any thread."""

    def __init__(self, loss: LinearLoss, chunks: list[int], steps: dict[int, Step]) -> None:
        self.loss, self._chunks, self._steps = loss, chunks, steps

    @property
    def subgraphs(self) -> list:
        return [step.subgraph for step in self._steps.values()]

    def __call__(self, x, target, weight, bias) -> tuple:
        """(loss, the gradients that are wanted)."""
        loss, dtype = self.loss, summed_in(x.dtype)
        counts = target != loss.ignored
        _check(target, counts, loss.classes)
        targets = torch.where(counts, target, -1)
        count = counts.sum().to(dtype)
        share = 1 / count.clamp(min=1) if loss.is_mean else torch.ones_like(count)
        losses, of_x = x.new_empty(loss.rows, dtype=dtype), x.new_empty(x.shape, dtype=dtype) if loss.wanted[0] else None
        sums = [t.new_zeros(t.shape, dtype=dtype) for t, is_wanted in zip((weight, bias), loss.wanted[1:]) if is_wanted]
        next_sums = [torch.empty_like(t) for t in sums]
        operands = [share, weight, bias] if loss.has_bias else [share, weight]
        begin = 0
        for rows in self._chunks:
            here = slice(begin, begin + rows)
            begin += rows
            places = [losses[here], *([] if of_x is None else [of_x[here]])]
            made = self._steps[rows]([x[here], targets[here], *operands, *sums], [*places, *next_sums], len(places))
            next_sums, sums = sums, made[len(places) :]
        total = losses.sum() / count if loss.is_mean else losses.sum()
        return total if loss.is_wide else total.to(x.dtype), *([] if of_x is None else [of_x]), *sums

    def dump(self) -> tuple:
        return astuple(self.loss), self._chunks, {rows: step.dump() for rows, step in self._steps.items()}

    @classmethod
    def load(cls, load_subgraph: Callable, loss: tuple, chunks: list[int], steps: dict) -> LossInRows:
        return cls(LinearLoss(*loss), chunks, {rows: Step.load(load_subgraph, *state) for rows, state in steps.items()})


def _check(target: torch.Tensor, counts: torch.Tensor, classes: int) -> None:
    """Raises torch's own error for a target that is no class."""
    wrong = counts & ((target < 0) | (target >= classes))
    if wrong.any():
        raise IndexError(f"Target {target[wrong][0].item()} is out of bounds.")


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """What losses and sums of products of the dtype are."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def max_rows_of(dtype: torch.dtype) -> int:
    return MAX_ROWS if dtype is summed_in(dtype) else MAX_ROWS_OF_HALVES


def scaled(gradient: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the backward gives: the gradient for an incoming one of 1, times what comes in."""
    return (gradient * factor).to(dtype)


__all__ = ["LinearLoss", "LossInRows", "max_rows_of", "scaled", "summed_in"]
