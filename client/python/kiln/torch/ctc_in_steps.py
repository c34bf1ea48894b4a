"""The CTC loss by programs: what runs where ctc_loss.py has one in a graph.

Formulas: Graves et al., Connectionist Temporal Classification, 2006. A path is through a target's labels with a blank before,
between and behind them. An element of the forward variable at (t, s) is the log of the probability of all that is emitted up to time
t by paths that are at label s then; of the backward variable, of all that is emitted from time t on. The latter is the former of the
target and the time read from their ends, which for each sample are its own, so one recursion makes both, in rows of their own.

Labels behind a target's end, and times behind an input's, have numbers that nothing reads: labels lead only onward.
"""

from __future__ import annotations

import functools
import math
from dataclasses import astuple, dataclass
from typing import Callable

import torch

from .steps import Step

# Time steps of one program.
MAX_STEPS = 16


@dataclass(frozen=True)
class CtcLoss:
    """Of log probabilities (times, samples, classes) and padded targets (samples, labels). has_gradient: it is wanted, too."""

    times: int
    blank: int
    zero_infinity: bool
    has_gradient: bool

    @property
    def steps(self) -> int:
        """Of each program."""
        return -(-self.times // self.programs)

    @property
    def programs(self) -> int:
        return -(-self.times // MAX_STEPS)

    def arrange(self, log_probabilities, targets, input_lengths, target_lengths) -> tuple:
        """(log probabilities of what the paths are through, for all steps; from which labels the one after the next can be reached;
        the variables before the first time). Rows are the samples, and where a gradient is wanted all of them read from their ends."""
        labels = self._labels(targets, target_lengths)
        times = torch.arange(self.steps * self.programs).unsqueeze(1).expand(-1, len(labels))
        if self.has_gradient:
            labels = torch.cat([labels, labels.gather(1, self._from_end(labels, 2 * target_lengths))])
            times = torch.cat([times, input_lengths - 1 - times], 1)
        times = times.clamp(0, self.times - 1).unsqueeze(2)
        samples = torch.arange(len(targets)).repeat(len(labels) // len(targets)).unsqueeze(1)
        apart = labels[:, 2:] != labels[:, :-2]
        may_skip = torch.nn.functional.pad(apart, (min(2, labels.shape[1]), 0))
        start = torch.where(torch.arange(labels.shape[1]) == 0, 0.0, -math.inf).to(log_probabilities.dtype)
        return log_probabilities[times, samples, labels], may_skip, start.expand(labels.shape).clone()

    def _labels(self, targets, target_lengths):
        """Those that paths are through; what lies behind a target, which may be no label, is blank."""
        places = torch.arange(targets.shape[1])
        labels = torch.where(places < target_lengths.unsqueeze(1), targets, self.blank)
        pairs = torch.stack([torch.full_like(labels, self.blank), labels], 2).flatten(1)
        return torch.nn.functional.pad(pairs, (0, 1), value=self.blank)

    @staticmethod
    def _from_end(labels, last):
        """Places of labels counted from the last one; those behind it, whatever they are, are places."""
        return (last.unsqueeze(1) - torch.arange(labels.shape[1])).clamp_min(0)

    def advance(self, before, may_skip, log_probabilities) -> tuple:
        """The forward variables at some times one after another, each of those before."""
        result = []
        for emitted in log_probabilities.unbind(0):
            moved = torch.nn.functional.pad(before, (1, 0), value=-math.inf)[:, :-1]
            skipped = torch.nn.functional.pad(moved, (1, 0), value=-math.inf)[:, :-1]
            before = _log_sum_exp(before, moved, torch.where(may_skip, skipped, -math.inf)) + emitted
            result.append(before)
        return tuple(result)

    def conclude(self, log_probabilities, targets, input_lengths, target_lengths, emitted, variables) -> tuple:
        """(the losses), and the gradient of their sum where that is wanted. emitted, variables: all steps'."""
        last, forward = 2 * target_lengths, variables[:, : len(targets)]
        rows, ends = torch.arange(len(targets)), (input_lengths - 1).clamp_min(0)
        at_blank, at_label = forward[ends, rows, last], forward[ends, rows, (last - 1).clamp_min(0)]
        losses = -_log_sum_exp(at_blank, torch.where(target_lengths > 0, at_label, -math.inf))
        of_nothing = torch.where(target_lengths > 0, math.inf, 0.0).to(losses.dtype)
        losses = torch.where(input_lengths > 0, losses, of_nothing)
        if not self.has_gradient:
            return (losses,)
        labels, of_all = self._labels(targets, target_lengths), (len(variables), *forward.shape[1:])
        backward = variables[:, len(targets) :].gather(2, self._from_end(labels, last).expand(of_all))
        times = torch.arange(self.times).view(-1, 1, 1)
        from_end = (input_lengths.unsqueeze(1) - 1 - times).clamp_min(0).expand(self.times, *labels.shape)
        log_posterior = (forward - emitted[:, : len(targets)])[: self.times] + backward.gather(0, from_end) + losses.unsqueeze(1)
        posterior = torch.where(torch.arange(labels.shape[1]) <= last.unsqueeze(1), log_posterior.exp(), 0.0)
        gradient = self._gradient(log_probabilities, labels, posterior, losses.isinf().unsqueeze(1))
        return losses, torch.where(times < input_lengths.unsqueeze(1), gradient, 0.0)

    def _gradient(self, log_probabilities, labels, posterior, is_lost):
        """As torch gives it: of what log_softmax is made of, so that the gradient of that adds nothing to it."""
        of_classes = torch.zeros_like(log_probabilities).scatter_add(2, labels.expand(posterior.shape), posterior)
        gradient = log_probabilities.exp() - of_classes
        gradient = torch.where(is_lost | (log_probabilities == -math.inf), math.nan, gradient)
        return torch.where(is_lost, 0.0, gradient) if self.zero_infinity else gradient


def _log_sum_exp(*terms):
    highest = functools.reduce(torch.maximum, terms)
    highest = torch.where(highest == -math.inf, 0.0, highest)
    return sum((term - highest).exp() for term in terms).log() + highest


class CtcLossInSteps:
    """A CtcLoss by its programs. Threading: any thread."""

    def __init__(self, loss: CtcLoss, arrange: Step, advance: Step, conclude: Step) -> None:
        self._loss, self._arrange, self._advance, self._conclude = loss, arrange, advance, conclude

    @property
    def subgraphs(self) -> list:
        return [step.subgraph for step in (self._arrange, self._advance, self._conclude)]

    def __call__(self, log_probabilities, targets, input_lengths, target_lengths) -> tuple:
        """What the op in ctc_loss.py gives."""
        loss = self._loss
        operands = [t.contiguous() for t in (log_probabilities, targets, input_lengths, target_lengths)]
        if not _are_in(input_lengths, loss.times) or not _are_in(target_lengths, targets.shape[1]):
            return torch.ops.kiln.ctc_loss(*operands, loss.blank, loss.zero_infinity, loss.has_gradient)  # which says what is wrong
        emitted, may_skip, before = self._arrange(operands, [None] * 3, 0)
        variables = emitted.new_empty(emitted.shape)
        for begin in range(0, len(variables), loss.steps):
            here = slice(begin, begin + loss.steps)
            before = self._advance([before, may_skip, emitted[here]], list(variables[here].unbind(0)), loss.steps)[-1]
        results = self._conclude([*operands, emitted, variables], [None] * (1 + loss.has_gradient), 0)
        return tuple(results) if loss.has_gradient else (*results, log_probabilities.new_empty(0))

    def dump(self) -> tuple:
        return astuple(self._loss), *(step.dump() for step in (self._arrange, self._advance, self._conclude))

    @classmethod
    def load(cls, load_subgraph: Callable, loss: tuple, *steps: tuple) -> CtcLossInSteps:
        return cls(CtcLoss(*loss), *(Step.load(load_subgraph, *step) for step in steps))


def _are_in(lengths: torch.Tensor, most: int) -> bool:
    return all(0 <= length <= most for length in lengths.tolist())


__all__ = ["CtcLoss", "CtcLossInSteps"]
