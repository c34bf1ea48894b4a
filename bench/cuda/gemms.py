"""Are our bf16 gemms as fast as cuBLAS through torch? Eighteen shapes, three of them with a bias and GELU behind, all candidates
of ours, cuBLASLt's algorithms among them by their schedules' names, alternating.

python gemms.py OUT.json. Operands are uniform in [-1, 1]: zeros would draw less power and run faster. Every candidate is
held against an f32 product of the same operands first; one that is wrong is listed, never timed.
"""
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as functional

from device import Library, candidates, deadline, race, row_of

# m, n, k, layout: n: [m, k] and [k, n]; t: the transpose is in memory.
SHAPES = [(4096, 4096, 4096, "nt"), (8192, 8192, 8192, "nt"), (4096, 4096, 4096, "nn"), (4096, 4096, 4096, "tn"),
          (2048, 2304, 768, "nn"), (2048, 768, 3072, "nn"), (2048, 50304, 768, "nt"), (16384, 3072, 768, "nn"),
          (128, 4096, 4096, "nt"), (64, 8192, 8192, "nt"), (1000, 1032, 520, "nt"), (4096, 11008, 4096, "nt"),
          # Rows that are not of whole 16 bytes: of the result, of x, of x's transpose.
          (4096, 50257, 768, "nt"), (4096, 768, 50257, "nn"), (50257, 768, 4096, "tn")]
# The same, with a bias of n and GELU in its tanh form behind.
FUSED = [(2048, 3072, 768, "nn"), (16384, 3072, 768, "nn"), (64, 4096, 4096, "nt")]


def operand(rows, columns, transposed):
    stored = (columns, rows) if transposed else (rows, columns)
    tensor = torch.empty(stored, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)
    return tensor, tensor.t() if transposed else tensor


def is_right(got, exact, k):
    """The rounding of the result, and that of a sum of k products in f32. GELU's slope is 1.13 at most."""
    scale = exact.square().mean().sqrt()
    tolerance = 1.13 * (exact.abs() + scale) * (2 ** -8 + 2 ** -23 * 4 * math.sqrt(k))
    return bool(((got.float() - exact).abs() <= tolerance).all())


def measure(library, shape, is_fused=False):
    """A row. cuBLAS's form of what is fused is the one that torch has for it, in one call."""
    m, n, k, layout = shape
    stored_x, x = operand(m, k, layout[0] == "t")
    stored_w, w = operand(k, n, layout[1] == "t")
    ours, theirs, bias = (torch.empty(s, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1) for s in ((m, n), (m, n), (n,)))
    exact, functions = torch.matmul(x.float(), w.float()), {"cublas": lambda: torch.matmul(x, w, out=theirs)}
    if is_fused:
        exact = functional.gelu(exact + bias.float(), approximate="tanh")
        functions = {"cublas": lambda: torch._addmm_activation(bias, x, w, use_gelu=True, out=theirs)}
    inputs, wrong = (stored_x, stored_w, bias) if is_fused else (stored_x, stored_w), []
    for kernel in candidates(lambda candidate: library.linear(torch.bfloat16, m, n, k, layout[0] == "t", layout[1] == "t",
                                                              bias=is_fused, gelu=is_fused, candidate=candidate)):
        ours.fill_(float("nan"))
        kernel(*inputs, ours)
        torch.cuda.synchronize()
        if is_right(ours, exact, k):
            functions[kernel.description] = lambda kernel=kernel: kernel(*inputs, ours)
        else:
            wrong.append(kernel.description)
    times = race(functions, max(1, min(100, int(2e11 / (m * n * k)))))
    return row_of(f"{m}x{n}x{k} {layout}{' bias gelu' if is_fused else ''}", times, ["cublas"], wrong, 2 * m * n * k)


def main():
    library, rows, end = Library(), [], deadline()
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = [*((shape, True) for shape in FUSED), *((shape, False) for shape in SHAPES)]
    for shape, is_fused in cases:
        if time.monotonic() > end:
            break
        rows.append(measure(library, shape, is_fused))
    ratios = [row["ratio_of_best"] for row in rows if row["ratio_of_best"]]
    summary = {"shapes": len(rows), "of": len(cases), "wrong": sum(len(row["wrong"]) for row in rows),
               "geometric_mean": statistics.geometric_mean(ratios) if ratios else None}
    print(json.dumps(summary))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"summary": summary, "rows": rows}, file, indent=1)
    sys.exit(1 if summary["wrong"] or len(ratios) < len(rows) or not rows else 0)


if __name__ == "__main__":
    main()
