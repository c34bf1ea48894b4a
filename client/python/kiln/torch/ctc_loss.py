"""The CTC loss, whose graph torch ends: what its op gives has a size that is in the data. Here it is an op of sizes that are known,
which gives the gradient with the loss where that is wanted, and which programs take the place of where they can (ctc_in_steps.py)."""

from __future__ import annotations

from typing import Callable

import torch
from torch import fx
from torch.nn import functional

from . import compat
from .ctc_in_steps import CtcLoss, CtcLossInSteps
from .step_programs import make_step, replace_in_steps

# Labels that paths are through, of all samples, from which on programs take less time than torch's loops.
LEAST_LABELS = 128
_DTYPES = (torch.float32, torch.float64)
_number_of = functional._Reduction.get_enum  # of a reduction: what torch.ctc_loss knows it by


@torch.library.custom_op("kiln::ctc_loss", mutates_args=())
def ctc_loss_of_each(log_probabilities: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor,
                     target_lengths: torch.Tensor, blank: int, zero_infinity: bool,
                     has_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(the losses of samples, infinite where there is no path; the gradient of their sum, where it is wanted), by torch's kernels."""
    operands = log_probabilities, targets, input_lengths, target_lengths
    losses, variables = torch.ops.aten._ctc_loss.Tensor(*operands, blank, zero_infinity)
    if not has_gradient:
        return losses, losses.new_empty(0)
    backward = torch.ops.aten._ctc_loss_backward.Tensor
    return losses, backward(torch.ones_like(losses), *operands, losses, variables, blank, zero_infinity).contiguous()


@ctc_loss_of_each.register_fake
def _(log_probabilities, targets, input_lengths, target_lengths, blank, zero_infinity, has_gradient):
    shape = log_probabilities.shape
    return log_probabilities.new_empty(shape[1]), log_probabilities.new_empty(shape if has_gradient else 0)


def _remember(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _gradients(ctx, grad, of_gradient):
    if of_gradient is not None:
        raise RuntimeError("derivative for aten::_ctc_loss_backward is not implemented")  # torch's words
    (gradient,) = ctx.saved_tensors
    return None if grad is None else gradient * grad.unsqueeze(1), *[None] * 6


ctc_loss_of_each.register_autograd(_gradients, setup_context=_remember)


# ---- torch's function


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
    """torch.ctc_loss."""
    if not compat.adapter().is_fake(log_probs):
        return torch.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    is_one, x = log_probs.dim() == 2, log_probs
    x = x.unsqueeze(1) if is_one else x
    operands = _operands(x, targets, input_lengths, target_lengths, blank)
    if operands is None:
        compat.adapter().leave_to_eager("a CTC loss of halves, of targets one after another whose lengths are in a tensor, "
                                        "or of what torch refuses")  # fmt: skip
    has_gradient = x.requires_grad and torch.is_grad_enabled()
    losses, _ = torch.ops.kiln.ctc_loss(x, *operands, blank, zero_infinity, has_gradient)
    losses = torch.where(losses.isinf(), 0.0, losses) if zero_infinity else losses
    if reduction == _number_of("mean"):
        return (losses / operands[2].to(losses.dtype).clamp_min(1)).mean()
    if reduction == _number_of("sum"):
        return losses.sum()
    return losses.squeeze(0) if is_one else losses


def _operands(x, targets, input_lengths, target_lengths, blank: int) -> list | None:
    """The op's, besides x; None where it does not know such."""
    if not _are_known(input_lengths) or not _are_known(target_lengths) or not 0 <= blank < x.shape[-1]:
        return None
    if x.dim() != 3 or x.dtype not in _DTYPES or {x.device.type, targets.device.type} != {"cpu"} or 0 in x.shape:
        return None
    lengths = [_as_tensor(of) for of in (input_lengths, target_lengths)]
    if any(len(of) != x.shape[1] for of in lengths):
        return None
    targets = _padded(targets.long(), target_lengths, lengths[1])
    return [targets, *lengths] if targets.dim() == 2 and len(targets) == x.shape[1] else None


def _are_known(lengths) -> bool:
    if isinstance(lengths, torch.Tensor):
        return not lengths.is_floating_point() and lengths.device.type == "cpu"
    return all(type(length) is int for length in lengths)


def _as_tensor(lengths) -> torch.Tensor:
    return (lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)).reshape(-1).long()


def _padded(targets: torch.Tensor, lengths, as_tensor: torch.Tensor) -> torch.Tensor:
    """A row for each sample, also of targets one after another whose lengths are numbers."""
    if targets.dim() != 1 or isinstance(lengths, torch.Tensor) or sum(lengths) != len(targets) or min(lengths) < 0:
        return targets
    places = (as_tensor.cumsum(0) - as_tensor).unsqueeze(1) + torch.arange(max(lengths))
    return targets[places.clamp_max(max(len(targets) - 1, 0))]


def functional_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """torch.nn.functional.ctc_loss."""
    if not compat.adapter().is_fake(log_probs):
        return functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, _number_of(reduction), zero_infinity)


compat.adapter().see_as({torch.ctc_loss: ctc_loss, functional.ctc_loss: functional_ctc_loss})


# ---- programs


def compute_ctc_losses(gm: fx.GraphModule, make_subgraph: Callable) -> None:
    """Replaces CTC losses in a graph of known sizes by their programs. make_subgraph: as make_step's."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.kiln.ctc_loss.default):
        try:
            made = _make(node, make_subgraph)
        except Exception:  # noqa: BLE001: Kiln never makes its caller fail, and torch's kernels stay
            continue
        if made is not None:
            replace_in_steps(gm, node, made, node.args[:4])


def _make(node: fx.Node, make_subgraph: Callable) -> CtcLossInSteps | None:
    *operands, blank, zero_infinity, has_gradient = node.args
    if any(type(e) is not int for n in operands for e in n.meta["val"].shape):
        return None
    x, *others = (torch.empty_like(n.meta["val"], memory_format=torch.contiguous_format) for n in operands)
    loss = CtcLoss(x.shape[0], blank, zero_infinity, has_gradient)
    rows, labels = x.shape[1] * (1 + has_gradient), 2 * others[0].shape[1] + 1
    if x.shape[1] * labels < LEAST_LABELS:
        return None
    along = lambda steps: x.new_empty((steps, rows, labels))  # noqa: E731
    of_advance = [along(1)[0], along(1)[0].to(torch.bool), along(loss.steps)]
    steps = [make_step(loss.arrange, [x, *others], make_subgraph), make_step(loss.advance, of_advance, make_subgraph),
             make_step(loss.conclude, [x, *others, *[along(loss.steps * loss.programs)] * 2], make_subgraph)]  # fmt: skip
    return None if None in steps else CtcLossInSteps(loss, *steps)


__all__ = ["compute_ctc_losses", "ctc_loss"]
