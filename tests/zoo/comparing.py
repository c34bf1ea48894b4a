"""Runs a model and compares what it gave: outputs, gradients, buffers."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

# A result may be this far from the f64 run, relative to its greatest element, or FACTOR times as far as eager's own.
TOLERANCE, FACTOR = 2e-5, 4.0
STEPS = 2


@dataclass
class Outcome:
    """Tensors by name, of STEPS training steps or forward passes."""

    tensors: dict[str, torch.Tensor]


def floats(output) -> list[torch.Tensor]:
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    return [o for o in outputs if o.is_floating_point()]


def loss_of(output) -> torch.Tensor:
    """A scalar output is a loss; others count by their mean square."""
    return sum(o if o.dim() == 0 else o.square().mean() for o in floats(output) if o.requires_grad)


def run(module: nn.Module, call, inputs: tuple, is_training: bool) -> Outcome:
    """`call` is the module or what was made of it; the module holds parameters and buffers."""
    tensors = {}
    for step in range(STEPS):
        if is_training:
            module.zero_grad(set_to_none=True)
            output = call(*inputs)
            loss_of(output).backward()
            gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            tensors |= {f"{step} gradient of {name}": g.clone() for name, g in gradients.items()}
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.05 * parameter.grad / (1 + parameter.grad.norm())
        else:
            with torch.no_grad():
                output = call(*inputs)
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        tensors |= {f"{step} output {i}": o.detach().clone() for i, o in enumerate(outputs)}
        tensors |= {f"{step} buffer {name}": b.clone() for name, b in module.named_buffers()}
    return Outcome(tensors)


def in_f64(module: nn.Module, inputs: tuple, is_training: bool) -> Outcome:
    module = copy.deepcopy(module).double()
    doubles = tuple(i.double() if i.is_floating_point() else i for i in inputs)
    return run(module, module, doubles, is_training)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The greatest difference, relative to b's greatest element; equal infinities and NaNs are no difference."""
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    difference = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    finite = b[b.isfinite()].abs()
    return (difference.max() / finite.max().clamp(min=1e-6)).item() if finite.numel() else difference.max().item()


def is_zero_gradient(name: str, *outcomes: Outcome) -> bool:
    """No gradient and a gradient of zeros mean the same: a block that is compiled alone is asked for all its gradients."""
    return "gradient" in name and not any(o.tensors[name].any() for o in outcomes if name in o.tensors)


def differences(got: Outcome, eager: Outcome, exact: Outcome) -> list[str]:
    """What of `got` is neither near the f64 run nor as near as eager is, and what is built otherwise than eager's."""
    only_in_one = got.tensors.keys() ^ eager.tensors.keys()
    found = [f"only in one: {name}" for name in sorted(only_in_one) if not is_zero_gradient(name, got, eager)]
    # A gradient that is all cancellation is judged beside the greatest of all.
    scale = max([t.abs().max().item() for n, t in exact.tensors.items() if "gradient" in n and t.numel()], default=0.0)
    for name in got.tensors.keys() - only_in_one:
        ours, theirs, right = got.tensors[name], eager.tensors[name], exact.tensors[name]
        if (ours.dtype, ours.shape, ours.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            found.append(f"{name}: {ours.dtype}{list(ours.shape)} in {ours.stride()}, eager {theirs.dtype}{list(theirs.shape)} in {theirs.stride()}")
            continue
        if "gradient" in name and right.abs().max() < 1e-5 * scale:
            is_right = (ours.double() - right).abs().max() < 1e-5 * scale
        else:
            is_right = distance(ours, right) <= max(TOLERANCE, FACTOR * distance(theirs, right))
            # What nearly cancels is left with the roundings of what it was made of.
            is_right |= "gradient" in name and (ours.double() - right).abs().max() <= torch.finfo(torch.float32).eps * scale
        if not is_right:
            found.append(f"{name}: off by {distance(ours, right):.2e}, eager by {distance(theirs, right):.2e}")
    return found
