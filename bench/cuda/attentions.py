"""Is our bf16 attention as fast as the best of torch's (cuDNN, FlashAttention, FlexAttention where there is a window)? Both
passes, all candidates of ours, alternating; of decoding, a few queries of many keys, the forward pass alone.

python attentions.py OUT.json. Every candidate is held against attention in f32 of the same values first; one that is
wrong is listed, never timed.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from device import Library, candidates, deadline, race, row_of

# batch, heads, heads of keys, queries, keys, depth; causal; window. In the order in which they are missed most.
SHAPES = [((1, 32, 8, 1, 8192, 128), False, 0), ((1, 32, 8, 16, 8192, 128), False, 0),
          ((1, 32, 8, 1, 32768, 128), False, 0), ((1, 32, 8, 16, 32768, 128), False, 0),
          ((2, 16, 16, 4096, 4096, 64), True, 256), ((2, 16, 16, 1000, 1333, 96), False, 0),
          ((8, 32, 8, 1, 4096, 128), False, 0), ((1, 16, 16, 8192, 8192, 128), True, 0),
          ((4, 12, 12, 1024, 1024, 64), True, 0), ((4, 16, 16, 2048, 2048, 128), True, 0),
          ((2, 32, 8, 4096, 4096, 128), True, 0), ((4, 16, 16, 2048, 2048, 64), False, 0),
          ((8, 12, 12, 512, 512, 64), False, 0)]
MOST_DECODED = 16  # queries
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def passes_of(shape):
    """Whether each is the backward one."""
    return (False,) if shape[3] <= MOST_DECODED else (False, True)


def is_right(got, exact, tolerance=2e-2):
    """The root mean square of errors over that of values: roundings to bf16 of results and of weights."""
    return bool(((got.float() - exact).square().mean() / exact.square().mean()).sqrt() <= tolerance)


def operand(batch, heads, length, depth):
    return torch.randn((batch, heads, length, depth), device="cuda", dtype=torch.bfloat16)


def exact_of(tensors, causal, window):
    """(result, logsumexp, gradients of q, k, v) of f32 attention, for one piece of the batch after the other."""
    pieces = []
    for piece in zip(*(tensor.split(1) for tensor in tensors)):
        q, k, v, grad = (tensor.float() for tensor in piece)
        q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
        group = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) * q.shape[-1] ** -0.5
        ahead = torch.arange(k.shape[2], device="cuda") - torch.arange(q.shape[2], device="cuda")[:, None]
        if causal:
            scores = scores.masked_fill(ahead > k.shape[2] - q.shape[2], -torch.inf)
        if window:
            scores = scores.masked_fill(ahead.abs() >= window, -torch.inf)
        out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
        pieces.append((out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, (q, k, v), grad)))
    return [torch.cat(parts) for parts in zip(*pieces)]


def peers(q, k, v, grad, causal, window, has_gradients):
    """name: (function of the forward pass, of the backward pass), of those that take the shape in the passes that it has."""
    found = {}
    group = q.shape[1] != k.shape[1]
    def add(name, attend):
        try:
            out = attend()
            backward = lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
            if has_gradients:
                backward()
            found[name] = (torch.no_grad()(attend), backward)
        except RuntimeError as refused:
            print(f"{name}: {str(refused)[:200]}", file=sys.stderr)

    for name, kind in PEERS.items() if not window else ():
        def attend(kind=kind):
            with sdpa_kernel(kind):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=group)
        add(name, attend)
    if window:
        mask = create_block_mask(lambda b, h, i, j: ((i - j).abs() < window) & ((j <= i) if causal else True), None, None,
                                 q.shape[2], k.shape[2])
        flex = torch.compile(flex_attention, dynamic=False)
        add("flex", lambda: flex(q, k, v, block_mask=mask, enable_gqa=group))
    return found


def own(library, shape, causal, window, operands, exact):
    """(functions of right candidates by name, names of wrong ones), of each pass."""
    q, k, v, grad = (tensor.detach() for tensor in operands)
    out, lse, *grads = (torch.empty_like(tensor, dtype=torch.float32 if i == 1 else torch.bfloat16)
                        for i, tensor in enumerate(exact))
    passes = []
    for backward in passes_of(shape):
        results, functions, wrong = grads if backward else (out, lse), {}, []
        for kernel in candidates(lambda candidate: library.attention(torch.bfloat16, shape, causal, window, backward, candidate)):
            for result in results:
                result.fill_(float("nan"))
            call = lambda kernel=kernel: kernel(q, k, v, out, lse, *((grad, *grads) if backward else ()))
            call()
            good = all(is_right(*pair) for pair in zip(results, exact[2:] if backward else exact[:2]))
            if good:
                functions[kernel.description] = call
            else:
                wrong.append(kernel.description)
        out.copy_(exact[0])
        lse.copy_(exact[1])
        passes.append((functions, wrong))
    return passes


def measure(library, shape, causal, window):
    batch, heads, kv_heads, q_len, k_len, depth = shape
    q, grad = (operand(batch, heads, q_len, depth) for _ in range(2))
    k, v = (operand(batch, kv_heads, k_len, depth) for _ in range(2))
    exact = exact_of((q, k, v, grad), causal, window)
    has_gradients = True in passes_of(shape)
    for tensor in (q, k, v):
        tensor.requires_grad_(has_gradients)
    others = peers(q, k, v, grad, causal, window, has_gradients)
    rows = []
    for number, (functions, wrong) in enumerate(own(library, shape, causal, window, (q, k, v, grad), exact)):
        theirs = {name: pair[number] for name, pair in others.items()}
        products = 4 * batch * heads * q_len * min(k_len, window or k_len) * depth * (2.5 if number else 1)
        times = race({**theirs, **functions}, max(1, min(50, int(2e12 / products))))
        words = f"{'x'.join(map(str, shape))}{' causal' if causal else ''}{f' window {window}' if window else ''}"
        rows.append(row_of(f"{words} {'backward' if number else 'forward'}", times, list(theirs), wrong,
                           products / (2 if causal and not window else 1)))
    return rows


def main():
    library, rows, end = Library(), [], deadline()
    torch.manual_seed(0)
    for shape, causal, window in SHAPES:
        if time.monotonic() > end:
            break
        rows += measure(library, shape, causal, window)
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            ratios = [row["ratio_of_best"] for row in rows if row["ratio_of_best"]]
            summary = {"cases": len(rows), "of": sum(len(passes_of(shape)) for shape, _, _ in SHAPES), "wrong": sum(len(row["wrong"]) for row in rows),
                       "geometric_mean": statistics.geometric_mean(ratios) if ratios else None}
            json.dump({"summary": summary, "rows": rows, "device_of_cudnn": library.c.kiln_device_of_cudnn().decode()}, file, indent=1)
    print(json.dumps(summary))
    sys.exit(1 if summary["wrong"] or not all(row["best"] for row in rows) else 0)


if __name__ == "__main__":
    main()
