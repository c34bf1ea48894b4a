"""One direction of an LSTM's layer as torch has it of oneDNN, all steps in one call. Its kernels take 0.4 to 0.8 of the time that a
program for each step takes.

torch's own op of it makes what its backward needs only where gradients are recorded, which is not so while a captured forward runs.
"""

from __future__ import annotations

import torch

_MODE = 2  # oneDNN's number of an LSTM


def is_had(x: torch.Tensor) -> bool:
    """Whether torch gives an LSTM of such an input to oneDNN."""
    onednn = torch.backends.mkldnn
    if x.device.type != "cpu" or not onednn.is_available() or not onednn.enabled:
        return False
    if x.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return x.dtype is torch.float32 or (x.dtype is torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported())


@torch.library.custom_op("kiln::onednn_lstm", mutates_args=())
def onednn_lstm(x: torch.Tensor, of_x: torch.Tensor, of_hidden: torch.Tensor, bias: torch.Tensor, own_bias: torch.Tensor,
                hidden: torch.Tensor, cell: torch.Tensor, is_backwards: bool, has_biases: bool, is_trained: bool,
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(outputs, the hidden state and the cell after the last step, what is kept for the backward). x: (steps, rows, features);
    hidden, cell: (1, rows, width)."""
    with torch.set_grad_enabled(is_trained):
        made = torch.ops.aten.mkldnn_rnn_layer.default(x, of_x, of_hidden, bias, own_bias, hidden, cell, is_backwards, [], _MODE,
                                                       hidden.shape[2], 1, has_biases, False, False, is_trained)  # fmt: skip
    return tuple(torch.empty(0, dtype=torch.uint8) if t is None else t.detach() for t in made)


@onednn_lstm.register_fake
def _(x, of_x, of_hidden, bias, own_bias, hidden, cell, is_backwards, has_biases, is_trained):
    kept = torch.empty(0, dtype=torch.uint8, device=x.device)  # oneDNN knows how much
    return x.new_empty((*x.shape[:2], hidden.shape[2])), torch.empty_like(hidden), torch.empty_like(cell), kept


@torch.library.custom_op("kiln::onednn_lstm_backward", mutates_args=())
def onednn_lstm_backward(grads: list[torch.Tensor], operands: list[torch.Tensor], results: list[torch.Tensor], is_backwards: bool,
                         has_biases: bool) -> list[torch.Tensor]:  # fmt: skip
    """Gradients of the operands of onednn_lstm, of those of its first three results."""
    *made, kept = results
    return [t.clone() for t in torch.ops.aten.mkldnn_rnn_layer_backward.default(
        *operands, *made, *grads, is_backwards, _MODE, operands[5].shape[2], 1, has_biases, True, False, [], False, kept)]  # fmt: skip


@onednn_lstm_backward.register_fake
def _(grads, operands, results, is_backwards, has_biases):
    return [torch.empty_like(t) for t in operands]


def _remember(ctx, inputs, output) -> None:
    *operands, ctx.is_backwards, ctx.has_biases, _ = inputs
    ctx.save_for_backward(*operands, *output)


def _gradients(ctx, grad, grad_hidden, grad_cell, _):
    saved = list(ctx.saved_tensors)
    grads = [grad.contiguous(), grad_hidden.contiguous(), grad_cell.contiguous()]
    made = torch.ops.kiln.onednn_lstm_backward(grads, saved[:7], saved[7:], ctx.is_backwards, ctx.has_biases)
    return *made, None, None, None


onednn_lstm.register_autograd(_gradients, setup_context=_remember)


def run_direction(x, states: list, of_x, of_hidden, biases: list, is_backwards: bool) -> tuple:
    """(outputs, each state after the last step); states: (rows, width)."""
    bias, own_bias = biases or [of_hidden.new_zeros(of_hidden.shape[0]) for _ in range(2)]
    out, *ends, _ = torch.ops.kiln.onednn_lstm(x.contiguous(), of_x, of_hidden, bias, own_bias,
                                               *(s.unsqueeze(0).contiguous() for s in states), is_backwards, bool(biases),
                                               torch.is_grad_enabled())  # fmt: skip
    return out, *(end.squeeze(0) for end in ends)


__all__ = ["is_had", "onednn_lstm", "onednn_lstm_backward", "run_direction"]
