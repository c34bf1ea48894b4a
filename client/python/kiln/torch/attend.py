"""Attention with a bias of any kind, as torch says it: what a graph falls back to where Kiln's kernels are not to be had."""

from __future__ import annotations

import math

import torch


SCORES_IN_CACHE = 1 << 18  # so many are made of one block of queries, and are done with before the next block's


def attend(query, key, value, bias, scale: float, causal: bool):
    """(out, lse) of attention, lse the natural logarithm of the sums; keys and values may have fewer heads. A query that sees no
    key has zeros and -inf."""
    dtype = query.dtype
    query, key, value = wide(query) * scale, *(as_many_heads(wide(x), query) for x in (key, value))
    extents = (*query.shape[:3], key.shape[2])
    bias = None if bias is None else bias.expand(extents)

    def of_rows(rows: slice, keys: slice):
        scores = query[:, :, rows] @ key[:, :, keys].transpose(-2, -1)
        scores = scores if bias is None else scores + bias[:, :, rows, keys]
        return normalised(_masked(scores, causal, rows.start), value[:, :, keys])

    out, lse = _in_blocks(of_rows, extents, causal)
    return out.to(dtype), lse


def attention_scores(query, key, scale: float):
    return (wide(query) * scale) @ as_many_heads(wide(key), query).transpose(-2, -1)


def attention_of_scores(scores, value, causal: bool):
    """(out, lse) as attend's, of scores however they were made."""
    dtype, value = value.dtype, as_many_heads(wide(value), scores)

    def of_rows(rows: slice, keys: slice):
        return normalised(_masked(scores[:, :, rows, keys], causal, rows.start), value[:, :, keys])

    out, lse = _in_blocks(of_rows, scores.shape, causal)
    return out.to(dtype), lse


def _in_blocks(of_rows, extents: tuple, causal: bool):
    """What of_rows gives of all queries: of some at a time, and of the keys that these may see."""
    batch, heads, queries, keys = extents
    count = max(1, SCORES_IN_CACHE // max(1, batch * heads * keys))
    starts = range(0, max(1, queries), count)
    blocks = [of_rows(slice(first, first + count), slice(first + count if causal else None)) for first in starts]
    return blocks[0] if len(blocks) == 1 else (torch.cat(results, 2) for results in zip(*blocks))


def attend_backward(grad, query, key, value, out, lse, bias, scale: float, causal: bool):
    """Gradients of query, key and value."""
    scores = scores_of(wide(query), as_many_heads(wide(key), query), scale)
    scores = _masked(scores if bias is None else scores + bias, causal)
    weights, grad_scores = gradient_of_scores(scores, grad, value, out, lse, None)
    return gradients(grad_scores, weights, grad, query, key, value, scale)


def wide(x):
    return x if x.dtype is torch.float64 else x.float()


def as_many_heads(x, query):
    batch, heads, rows, columns = x.shape
    groups = query.shape[1] // heads
    return x[:, :, None].expand(query.shape[0], heads, groups, rows, columns).reshape(query.shape[0], -1, rows, columns)


def scores_of(query, key, scale: float):
    return (query @ key.transpose(-2, -1)) * scale


def _masked(scores, causal: bool, first: int = 0):
    """Of the queries from `first` on, without the keys after each."""
    if not causal:
        return scores
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(first)
    return torch.where(seen, scores, -math.inf)


def normalised(scores, value):
    largest = scores.amax(-1, keepdim=True)
    shift = torch.where(largest == -math.inf, 0.0, largest)
    weights = torch.exp(scores - shift)
    total = weights.sum(-1, keepdim=True)
    out = (weights @ value) / torch.where(total == 0, 1.0, total)
    return out, (torch.log(total) + shift).squeeze(-1)


def gradient_of_scores(scores, grad, value, out, lse, grad_lse):
    """(weights, gradient) of scores that were masked. Source: FlashAttention-2 (Dao, arXiv 2307.08691), section 2.2."""
    lse = lse.unsqueeze(-1)
    unseen = (scores == -math.inf) | (lse == -math.inf)
    weights = torch.where(unseen, 0.0, torch.exp(torch.where(unseen, 0.0, scores - lse)))
    grad = wide(grad)
    delta = (grad * wide(out)).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.unsqueeze(-1)
    return weights, weights * (grad @ as_many_heads(wide(value), grad).transpose(-2, -1) - delta)


def gradients(grad_scores, weights, grad, query, key, value, scale: float):
    """Of query, key and value; over the heads, and the batches, that share a key it is summed."""
    grad_query = (grad_scores @ as_many_heads(wide(key), query)) * scale
    grad_key = (grad_scores.transpose(-2, -1) @ wide(query)) * scale
    grad_value = weights.transpose(-2, -1) @ wide(grad)
    return grad_query.to(query.dtype), _shared(grad_key, key).to(key.dtype), _shared(grad_value, value).to(value.dtype)


def _shared(grad, x):
    batch, heads, rows, columns = x.shape
    grad = grad.reshape(grad.shape[0], heads, -1, rows, columns).sum(2)
    return grad if grad.shape[0] == batch else grad.sum(0, keepdim=True)


__all__ = ["as_many_heads", "attend", "attend_backward", "attention_of_scores", "attention_scores", "gradient_of_scores",
           "gradients", "normalised", "scores_of", "wide"]  # fmt: skip
