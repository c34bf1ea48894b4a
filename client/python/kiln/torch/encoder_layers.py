"""The layers that torch runs as one op on the processor where no gradients are recorded: nn.TransformerEncoderLayer and
nn.MultiheadAttention in evaluation. Here they are functions of the ops that they are of; expansion.py traces what is here."""

from __future__ import annotations

import torch
from torch.nn import functional

from .rows.table import require

aten = torch.ops.aten


def encoder_layer(x, width: int, heads: int, qkv, qkv_bias, projection, projection_bias, use_gelu: bool, norm_first: bool, eps: float,
                  norm_1, norm_bias_1, norm_2, norm_bias_2, up, up_bias, down, down_bias, mask=None, mask_type=None):  # fmt: skip
    def attended(x):
        return attention(x, x, x, width, heads, qkv, qkv_bias, projection, projection_bias, mask, False, True, mask_type)[0]

    def transformed(x):
        activation = functional.gelu if use_gelu else functional.relu
        return functional.linear(activation(functional.linear(x, up, up_bias)), down, down_bias)

    def normed(x, weight, bias):
        return functional.layer_norm(x, (width,), weight, bias, eps)

    if norm_first:
        x = x + attended(normed(x, norm_1, norm_bias_1))
        return x + transformed(normed(x, norm_2, norm_bias_2))
    x = normed(x + attended(x), norm_1, norm_bias_1)
    return normed(x + transformed(x), norm_2, norm_bias_2)


def attention(query, key, value, width: int, heads: int, qkv, qkv_bias, projection, projection_bias, mask=None,
              need_weights: bool = True, average: bool = True, mask_type=None):  # fmt: skip
    """(out, weights); no weights where they are not asked for. A query that may look at no key has NaN, as in torch."""
    parts = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), qkv.chunk(3), qkv_bias.chunk(3))]
    query, key, value = (x.unflatten(-1, (heads, width // heads)).transpose(1, 2) for x in parts)
    weights = None
    if mask is None and not need_weights:
        out = functional.scaled_dot_product_attention(query, key, value)
    else:
        scores = (query * (width // heads) ** -0.5) @ key.transpose(-1, -2)
        weights = (scores if mask is None else scores.masked_fill(_hidden(mask, mask_type), float("-inf"))).softmax(-1)
        out = weights @ value
    if need_weights and average:
        weights = weights.mean(1)
    return functional.linear(out.transpose(1, 2).flatten(2), projection, projection_bias), weights if need_weights else None


def _hidden(mask, mask_type):
    """Where scores do not count: [queries, keys], [batch, keys], or of each score, as the type says."""
    require(mask_type in (0, 1, 2), "a mask without a type")
    mask = mask.to(torch.bool)
    return mask[:, None, None] if mask_type == 1 else mask


LAYERS = {
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten._native_multi_head_attention.default: attention,
}
