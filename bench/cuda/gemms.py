"""Are our bf16 gemms as fast as cuBLAS through torch? Fifteen shapes, all candidates of ours, cuBLASLt's algorithms among
them by their schedules' names, alternating.

python gemms.py OUT.json. Operands are uniform in [-1, 1]: zeros would draw less power and run faster. Every candidate is
held against an f32 product of the same operands first; one that is wrong is listed, never timed.
"""
import json
import math
import statistics
import sys
import time

import torch

from device import Library, candidates, deadline, race, row_of

# m, n, k, layout: n: [m, k] and [k, n]; t: the transpose is in memory.
SHAPES = [(4096, 4096, 4096, "nt"), (8192, 8192, 8192, "nt"), (4096, 4096, 4096, "nn"), (4096, 4096, 4096, "tn"),
          (2048, 2304, 768, "nn"), (2048, 768, 3072, "nn"), (2048, 50304, 768, "nt"), (16384, 3072, 768, "nn"),
          (128, 4096, 4096, "nt"), (64, 8192, 8192, "nt"), (1000, 1032, 520, "nt"), (4096, 11008, 4096, "nt"),
          # Rows that are not of whole 16 bytes: of the result, of x, of x's transpose.
          (4096, 50257, 768, "nt"), (4096, 768, 50257, "nn"), (50257, 768, 4096, "tn")]


def operand(rows, columns, transposed):
    stored = (columns, rows) if transposed else (rows, columns)
    tensor = torch.empty(stored, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)
    return tensor, tensor.t() if transposed else tensor


def is_right(got, exact, k):
    """The rounding of the result, and that of a sum of k products in f32."""
    scale = exact.square().mean().sqrt()
    tolerance = (exact.abs() + scale) * (2 ** -8 + 2 ** -23 * 4 * math.sqrt(k))
    return bool(((got.float() - exact).abs() <= tolerance).all())


def measure(library, shape):
    m, n, k, layout = shape
    stored_x, x = operand(m, k, layout[0] == "t")
    stored_w, w = operand(k, n, layout[1] == "t")
    exact = torch.matmul(x.float(), w.float())
    ours, theirs = (torch.empty((m, n), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    functions, wrong = {"cublas": lambda: torch.matmul(x, w, out=theirs)}, []
    for kernel in candidates(lambda candidate: library.linear(torch.bfloat16, m, n, k, layout[0] == "t", layout[1] == "t",
                                                              candidate=candidate)):
        ours.fill_(float("nan"))
        kernel(stored_x, stored_w, ours)
        torch.cuda.synchronize()
        if is_right(ours, exact, k):
            functions[kernel.description] = lambda kernel=kernel: kernel(stored_x, stored_w, ours)
        else:
            wrong.append(kernel.description)
    times = race(functions, max(1, min(100, int(2e11 / (m * n * k)))))
    return row_of(f"{m}x{n}x{k} {layout}", times, ["cublas"], wrong, 2 * m * n * k)


def main():
    library, rows, end = Library(), [], deadline()
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in SHAPES:
        if time.monotonic() > end:
            break
        rows.append(measure(library, shape))
    ratios = [row["ratio_of_best"] for row in rows if row["ratio_of_best"]]
    summary = {"shapes": len(rows), "of": len(SHAPES), "wrong": sum(len(row["wrong"]) for row in rows),
               "geometric_mean": statistics.geometric_mean(ratios) if ratios else None}
    print(json.dumps(summary))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"summary": summary, "rows": rows}, file, indent=1)
    sys.exit(1 if summary["wrong"] or len(ratios) < len(rows) or not rows else 0)


if __name__ == "__main__":
    main()
