"""How fast are our gemms beside MKL and oneDNN (through torch) and OpenBLAS (numpy's)? Alternating in one process; torch's
and ours on one OpenMP pool. Ours is the analytic pick, or with --tuned the best of all candidates in a race before.

--dtype f32|bf16|f16; --threads N; --set gpt2|squares|skinny|all, --shapes FILE or --case MxNxK,layout; --rounds N; --json FILE
"""
import argparse
import json
import pathlib
import statistics

import numpy
import torch

from peers import Kernel, Library, race, report, row, set_openblas_threads

# m, n, k, layout: the first letter is A's (n: [m, k], t: [k, m]), the second B's (n: [k, n], t: [n, k]).
GPT2 = [(512, 2304, 768, "nn"), (512, 768, 768, "nn"), (512, 3072, 768, "nn"), (512, 768, 3072, "nn"),
        (512, 50257, 768, "nt"), (512, 768, 2304, "nt"), (512, 768, 768, "nt"), (512, 768, 3072, "nt"),
        (512, 3072, 768, "nt"), (512, 768, 50257, "nn"), (768, 2304, 512, "tn"), (768, 768, 512, "tn"),
        (768, 3072, 512, "tn"), (3072, 768, 512, "tn"), (50257, 768, 512, "tn")]
SQUARES = [(n, n, n, layout) for n in (64, 100, 128, 256, 512, 1024, 2048) for layout in ("nn", "nt", "tn")]
SKINNY = [(m, n, k, layout) for m in (1, 4, 16, 128) for n, k in ((768, 768), (3072, 768), (768, 3072))
          for layout in ("nn", "nt")]
SETS = {"gpt2": GPT2, "squares": SQUARES, "skinny": SKINNY}


# torch's dtype, Kiln's number of it (kernel_library.cc), the largest error of ours against torch's, of the largest value.
DTYPES = {"f32": (torch.float32, 7, 1e-4), "bf16": (torch.bfloat16, 6, 1e-2), "f16": (torch.float16, 5, 2e-3)}


def operands(m, n, k, layout, dtype):
    """a, b as they lie in memory, and as torch.mm sees them."""
    a = torch.randn((k, m) if layout[0] == "t" else (m, k)).to(dtype)
    b = torch.randn((n, k) if layout[1] == "t" else (k, n)).to(dtype)
    return a, b, a.t() if layout[0] == "t" else a, b.t() if layout[1] == "t" else b


def pick(kernels, buffers, threads):
    """The kernel of the least median, raced in turn, as the tuner does."""
    samples = race({i: kernel.bind(buffers, threads) for i, kernel in enumerate(kernels)}, rounds=7)
    return kernels[min(samples, key=lambda i: statistics.median(samples[i]))]


def peers_of(a, b, theirs):
    """torch.mm (MKL in f32), oneDNN's linear, OpenBLAS by numpy: each where it serves the dtype and the layout."""
    functions = {"torch.mm": lambda: torch.mm(a, b, out=theirs)}
    if a.is_contiguous() and b.t().is_contiguous():
        linear, weight = torch.ops.mkldnn._linear_pointwise, b.t()
        functions["onednn"] = lambda: linear(a, weight, None, "none", [], "")
    if a.dtype == torch.float32:
        left, right, out = a.numpy(), b.numpy(), torch.empty_like(theirs).numpy()
        functions["openblas"] = lambda: numpy.matmul(left, right, out=out)
    return functions


def measure(library, case, dtype, threads, target, rounds, tuned):
    m, n, k, layout = case
    dtype, number, allowed = DTYPES[dtype]
    a, b, torch_a, torch_b = operands(m, n, k, layout, dtype)
    ours, theirs = torch.full((m, n), float("nan"), dtype=dtype), torch.empty((m, n), dtype=dtype)
    transposed = (int(layout[0] == "t"), int(layout[1] == "t"))
    count = library.count("gemm", target, number, m, n, k, *transposed, 0) if tuned else 1
    kernels = [Kernel(library, "gemm", target, number, m, n, k, *transposed, 0, i) for i in range(count)]
    torch.mm(torch_a, torch_b, out=theirs)
    scale = theirs.abs().max()
    for kernel in kernels:
        ours.fill_(float("nan"))
        kernel.bind([a, b, ours], threads)()
        error = ((ours - theirs).abs().max() / scale).item()
        if not error < allowed:
            raise RuntimeError(f"{case} {kernel.description}: error {error}")
    picked = pick(kernels, [a, b, ours], threads) if tuned else kernels[0]
    functions = {"ours": picked.bind([a, b, ours], threads), **peers_of(torch_a, torch_b, theirs)}
    if tuned:
        functions["analytic"] = kernels[0].bind([a, b, ours], threads)
    result = row(f"{m}x{n}x{k} {layout}", race(functions, rounds), 2.0 * m * n * k / 1e9, "GF/s", own=("analytic",))
    result["schedule"], result["compile_ms"] = picked.description, picked.compile_ms
    others = "  ".join(f"{name} {value:.1f}" for name, value in {**result["own"], **result["peers"]}.items())
    print(f"{result['case']:22s} {result['ours']:7.1f}  {others}  ratio {result['ratio']:.3f}"
          f"  ±{result['spread']:.3f}  {picked.tasks} tasks  {picked.description}", flush=True)
    return result


def cases_in(file, dtype):
    """Of a file of shapes: {"gemm": [{M, N, K, b_layout, dtypes}]}. Products alone: epilogues are not in."""
    torch_name = str(DTYPES[dtype][0]).removeprefix("torch.")
    rows = [row for row in json.loads(pathlib.Path(file).read_text())["gemm"] if torch_name in row["dtypes"]]
    return list(dict.fromkeys((row["M"], row["N"], row["K"], "nt" if row["b_layout"].startswith("NK") else "nn") for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--set", default="all")
    parser.add_argument("--shapes")
    parser.add_argument("--case", help="MxNxK,layout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="x86-64-v4")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    set_openblas_threads(arguments.threads)
    library = Library()
    cases = SETS.get(arguments.set) or [case for cases in SETS.values() for case in cases]
    if arguments.shapes:
        cases = cases_in(arguments.shapes, arguments.dtype)
    if arguments.case:
        sizes, layout = arguments.case.split(",")
        cases = [(*map(int, sizes.split("x")), layout)]
    rows = [measure(library, case, arguments.dtype, arguments.threads, arguments.target, arguments.rounds, arguments.tuned)
            for case in cases]
    report(f"gemm {arguments.dtype}", arguments.threads, rows, arguments.json)


if __name__ == "__main__":
    main()
