"""Recurrent layers, taken apart: what each step does by itself, and all else, which is done for all steps at once.

A layer's products with its input are one product over all steps; what is left is `recurrence`, which goes from step to step.
Its backward gives gradients step by step in the other direction, and the gradient of the weight is one product over all steps
again. torch, for a GRU and a plain RNN, does all of it step by step, and of an LSTM leaves all to oneDNN where it has it.

Formulas: as torch.nn.LSTM, GRU and RNN document them. x below is what a layer's input comes to, weight_ih input + bias; what is
along steps has (steps, rows, features).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch.nn import functional

from . import compat, onednn_lstm

# ---- cells
#
# A step forward is a function of x, the states and the weight, and gives the states and what is kept for the backward. A step back
# is one of (gradient of the output, x, what was kept, the last state before, the same after, the states' gradients, the weight)
# and gives gradients of what is along steps, and of the states before.


def _lstm(x, hidden, cell, weight):
    gates = x + hidden @ weight.t()
    enters, stays, new, shown = gates.chunk(4, 1)
    cell = torch.sigmoid(stays) * cell + torch.sigmoid(enters) * torch.tanh(new)
    return torch.sigmoid(shown) * torch.tanh(cell), cell, gates


def _lstm_back(grad, _, gates, before, after, grad_hidden, grad_cell, weight):
    enters, stays, new, shown = gates.chunk(4, 1)
    enters, stays, new, shown = torch.sigmoid(enters), torch.sigmoid(stays), torch.tanh(new), torch.sigmoid(shown)
    grad, seen = grad + grad_hidden, torch.tanh(after)
    grad_cell = grad_cell + grad * shown * (1 - seen * seen)
    of_enters, of_stays = grad_cell * new * enters * (1 - enters), grad_cell * before * stays * (1 - stays)
    of_new, of_shown = grad_cell * enters * (1 - new * new), grad * seen * shown * (1 - shown)
    of_gates = torch.cat([of_enters, of_stays, of_new, of_shown], 1)
    return of_gates, of_gates @ weight, grad_cell * stays


def _gru(x, hidden, weight, bias):
    own = torch.addmm(bias, hidden, weight.t())
    (reset, update, new), (own_reset, own_update, own_new) = x.chunk(3, 1), own.chunk(3, 1)
    new = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return (hidden - new) * torch.sigmoid(update + own_update) + new, own


def _gru_back(grad, x, own, before, _, grad_hidden, weight):
    (reset, update, new), (own_reset, own_update, own_new) = x.chunk(3, 1), own.chunk(3, 1)
    reset, update = torch.sigmoid(reset + own_reset), torch.sigmoid(update + own_update)
    new, grad = torch.tanh(new + reset * own_new), grad + grad_hidden
    of_new = grad * (1 - update) * (1 - new * new)
    of_reset, of_update = of_new * own_new * reset * (1 - reset), grad * (before - new) * update * (1 - update)
    of_own = torch.cat([of_reset, of_update, of_new * reset], 1)
    return torch.cat([of_reset, of_update, of_new], 1), of_own, of_own @ weight + grad * update


def _tanh(x, hidden, weight):
    return (torch.tanh(x + hidden @ weight.t()),)


def _tanh_back(grad, _x, _kept, _before, after, grad_hidden, weight):
    of_sum = (grad + grad_hidden) * (1 - after * after)
    return of_sum, of_sum @ weight


def _relu(x, hidden, weight):
    return (torch.relu(x + hidden @ weight.t()),)


def _relu_back(grad, _x, _kept, _before, after, grad_hidden, weight):
    of_sum = torch.where(after > 0, grad + grad_hidden, 0.0)
    return of_sum, of_sum @ weight


@dataclass(frozen=True)
class Cell:
    """states: how many, of which the first is the output. kept: features for the backward, in times of the state's. has_bias: that
    of the product with the hidden state is not part of x. gradients: along steps, of x, and of that product where it is another."""

    forward: Callable
    back: Callable
    states: int = 1
    kept: int = 0
    has_bias: bool = False
    gradients: int = 1


CELLS = {
    "lstm": Cell(_lstm, _lstm_back, states=2, kept=4),
    "gru": Cell(_gru, _gru_back, kept=3, has_bias=True, gradients=2),
    "rnn_tanh": Cell(_tanh, _tanh_back),
    "rnn_relu": Cell(_relu, _relu_back),
}


# ---- from step to step


def go_forward(step: Callable, cell: Cell, x, hidden, last, weight, bias) -> tuple:
    """What `recurrence` gives, by step(arguments, targets), which gives results: in the targets, where these are not None."""
    width, empty = hidden.shape[1], x.new_empty(0)
    made = [x.new_empty((*x.shape[:2], features)) for features in [width] * cell.states + [cell.kept * width] * bool(cell.kept)]
    states, constants = [hidden, last][: cell.states], [weight, bias] if cell.has_bias else [weight]
    along = [t.unbind(0) for t in made]
    for i, of_x in enumerate(x.unbind(0)):
        states = step([of_x, *states, *constants], [t[i] for t in along])[: cell.states]
    out, *lasts = made[: cell.states]
    return out, *(lasts or [empty]), *(made[cell.states :] or [x.new_empty(0)])


def go_back(step: Callable, cell: Cell, grad, grad_last, x, hidden, last, weight, out, lasts, kept) -> tuple:
    """What `recurrence_backward` gives, as go_forward gives that of `recurrence`."""
    first, lasts = (last, lasts) if cell.states == 2 else (hidden, out)
    made = [torch.empty_like(x) for _ in range(cell.gradients)]
    gradients, along = [torch.zeros_like(hidden) for _ in range(cell.states)], [t.unbind(0) for t in made]
    kept = kept.unbind(0) if cell.kept else [kept] * len(x)
    befores = [first, *lasts.unbind(0)]
    for i in reversed(range(len(x))):
        if grad_last is not None:
            gradients[-1] = gradients[-1] + grad_last[i]
        given = [grad[i], x[i], kept[i], befores[i], befores[i + 1], *gradients, weight]
        gradients = step(given, [*(t[i] for t in along), *[None] * cell.states])[cell.gradients :]
    return tuple(t for tensors in (made, gradients) for t in (*tensors, *[x.new_empty(0)] * (2 - len(tensors))))


def plain(function: Callable) -> Callable:
    """A step in torch."""

    def step(arguments: list, targets: list) -> list:
        return [result if target is None else target.copy_(result) for result, target in zip(function(*arguments), targets)]

    return step


@torch.library.custom_op("kiln::recurrence", mutates_args=())
def recurrence(x: torch.Tensor, hidden: torch.Tensor, last: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None,
               kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(outputs, an LSTM's cells, what is kept), each along steps. `hidden`, `last`: the states before; `last` an LSTM's cell."""
    cell = CELLS[kind]
    return go_forward(plain(cell.forward), cell, x, hidden, last, weight, bias)


@recurrence.register_fake
def _(x, hidden, last, weight, bias, kind):
    cell, width = CELLS[kind], hidden.shape[1]
    along = lambda features: x.new_empty((*x.shape[:2], features)) if features else x.new_empty(0)  # noqa: E731
    return along(width), along(width if cell.states == 2 else 0), along(cell.kept * width)


@torch.library.custom_op("kiln::recurrence_backward", mutates_args=())
def recurrence_backward(grad: torch.Tensor, grad_last: torch.Tensor | None, x: torch.Tensor, hidden: torch.Tensor,
                        last: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, lasts: torch.Tensor, kept: torch.Tensor,
                        kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of x, of the product with the hidden state where it has one of its own, of `hidden` and of `last`."""
    cell = CELLS[kind]
    return go_back(plain(cell.back), cell, grad, grad_last, x, hidden, last, weight, out, lasts, kept)


@recurrence_backward.register_fake
def _(grad, grad_last, x, hidden, last, weight, out, lasts, kept, kind):
    cell, like = CELLS[kind], lambda tensor, is_there: torch.empty_like(tensor) if is_there else x.new_empty(0)
    return like(x, True), like(x, cell.gradients == 2), like(hidden, True), like(hidden, cell.states == 2)


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.kind = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, grad, grad_last, _):
    x, hidden, last, weight, _, out, lasts, kept = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    of_x, of_own, of_hidden, of_last = recurrence_backward(grad, grad_last, x, hidden, last, weight, out, lasts, kept, ctx.kind)
    cell = CELLS[ctx.kind]
    of_own = of_own if cell.gradients == 2 else of_x
    before = torch.cat([hidden.unsqueeze(0), out[:-1]])
    of_weight = of_own.flatten(0, 1).t() @ before.flatten(0, 1)
    return of_x, of_hidden, of_last if cell.states == 2 else None, of_weight, of_own.sum((0, 1)) if cell.has_bias else None, None


recurrence.register_autograd(_gradients, setup_context=_remember)


# ---- layers


def run_layers(kind: str, *arguments):
    """torch.lstm, torch.gru and so on, of the same arguments; while graphs are captured, what each step does by itself is in
    `recurrence`, where torch would take the layers apart step by step, for each length anew."""
    if not compat.adapter().is_fake(arguments[0]):
        return getattr(torch, kind)(*arguments)
    if not _is_known(*arguments):
        compat.adapter().leave_to_eager("a recurrent layer with projections, packed sequences, several dtypes, or under autocast")
    return _layers(kind, *arguments)


def _is_known(x, states, weights, has_biases, layers: int, _dropout, _training, bidirectional, batch_first) -> bool:
    if not isinstance(weights, (list, tuple)):  # of packed sequences they come later
        return False
    if x.dim() == 3 and x.shape[1 if batch_first else 0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")  # torch's words
    of_one = {(t.dtype, t.device.type) for t in (x, *(states if isinstance(states, (list, tuple)) else [states]), *weights)}
    expected = layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    is_plain = x.dim() == 3 and x.is_floating_point() and not torch.is_autocast_enabled("cpu")
    return is_plain and len(weights) == expected and of_one == {(x.dtype, "cpu")}


def _layers(kind, x, states, weights, has_biases, layers, dropout, training, bidirectional, batch_first):
    directions, of_one = 2 if bidirectional else 1, 4 if has_biases else 2
    x, states = x.transpose(0, 1) if batch_first else x, states if isinstance(states, (list, tuple)) else (states,)
    ends = [[] for _ in states]
    for layer in range(layers):
        if layer and dropout and training:
            x = functional.dropout(x, dropout, True)
        outs = []
        for i in range(layer * directions, (layer + 1) * directions):
            out, *last = _direction(kind, x, [s[i] for s in states], weights[i * of_one : (i + 1) * of_one], i % directions == 1)
            outs.append(out)
            for end, state in zip(ends, last):
                end.append(state)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
    return x.transpose(0, 1) if batch_first else x, *map(torch.stack, ends)


def _direction(kind: str, x, states: list, weights: list, is_backwards: bool) -> tuple:
    """(outputs, each state after the last step) of one direction of a layer."""
    of_x, of_hidden, *biases = weights
    if kind == "lstm" and onednn_lstm.is_had(x):
        return onednn_lstm.run_direction(x, states, of_x, of_hidden, biases, is_backwards)
    cell, bias, own_bias = CELLS[kind], None, None
    if cell.has_bias:
        bias, own_bias = biases or (None, of_hidden.new_zeros(of_hidden.shape[0]))
    elif biases:
        bias = biases[0] + biases[1]
    x = functional.linear(x, of_x, bias)
    x = x.flip(0) if is_backwards else x
    hidden, last = states if len(states) == 2 else (states[0], None)
    out, lasts, _ = torch.ops.kiln.recurrence(x, hidden, last, of_hidden, own_bias, kind)
    ends = [out[-1]] if last is None else [out[-1], lasts[-1]]
    return out.flip(0) if is_backwards else out, *ends


def _layers_of(kind: str) -> Callable:
    """run_layers of this kind, by a name that sources of graphs have for it."""

    def layers(*arguments):
        return run_layers(kind, *arguments)

    layers.__name__ = kind
    return layers


compat.adapter().see_as({getattr(torch, kind): _layers_of(kind) for kind in CELLS})

__all__ = ["CELLS", "Cell", "go_back", "go_forward", "plain", "recurrence", "recurrence_backward", "run_layers"]
