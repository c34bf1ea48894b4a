"""How fast are our gemms beside torch.mm (MKL, oneDNN)? Alternating in one process, on one OpenMP pool.

python bench/gemm_bench.py [--dtype f32|bf16|f16] [--threads N] [--set gpt2|squares|skinny|all] [--all-candidates] [--json FILE]
"""
import argparse

import torch

from peers import Kernel, Library, race, report, row

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


def measure(library, case, dtype, threads, target, rounds, all_candidates):
    m, n, k, layout = case
    dtype, number, allowed = DTYPES[dtype]
    a, b, torch_a, torch_b = operands(m, n, k, layout, dtype)
    ours, theirs = torch.full((m, n), float("nan"), dtype=dtype), torch.empty((m, n), dtype=dtype)
    transposed = (int(layout[0] == "t"), int(layout[1] == "t"))
    count = library.count("gemm", target, number, m, n, k, *transposed, 0)
    kernels = [Kernel(library, "gemm", target, number, m, n, k, *transposed, 0, i) for i in range(count if all_candidates else 1)]
    functions = {"ours" if i == 0 else f"candidate {i}": kernel.bind([a, b, ours], threads)
                 for i, kernel in enumerate(kernels)}
    torch.mm(torch_a, torch_b, out=theirs)
    scale = theirs.abs().max()
    for name, function in functions.items():
        ours.fill_(float("nan"))
        function()
        error = ((ours - theirs).abs().max() / scale).item()
        if not error < allowed:
            print(f"WRONG {name} {case} error {error}")
    functions["torch.mm"] = lambda: torch.mm(torch_a, torch_b, out=theirs)
    samples = race(functions, rounds)
    flops = 2.0 * m * n * k / 1e9
    candidates = {name: samples.pop(name) for name in list(samples) if name.startswith("candidate")}
    result = row(f"{m}x{n}x{k} {layout}", samples, flops, "GF/s")
    result["schedule"], result["compile_ms"] = kernels[0].description, kernels[0].compile_ms
    print(f"{result['case']:22s} {result['ours']:7.1f} torch {result['peers']['torch.mm']:7.1f}  ratio {result['ratio']:.3f}"
          f"  ±{result['spread']:.3f}  {kernels[0].compile_ms:5.1f} ms  {kernels[0].tasks} tasks  {kernels[0].description}", flush=True)
    for (name, values), kernel in zip(candidates.items(), kernels[1:]):
        values.sort()
        print(f"    {flops / values[len(values) // 2]:7.1f}  {kernel.description}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--set", default="all")
    parser.add_argument("--case", help="MxNxK,layout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="x86-64-v4")
    parser.add_argument("--all-candidates", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    library = Library()
    cases = SETS.get(arguments.set) or [case for cases in SETS.values() for case in cases]
    if arguments.case:
        sizes, layout = arguments.case.split(",")
        cases = [(*map(int, sizes.split("x")), layout)]
    rows = [measure(library, case, arguments.dtype, arguments.threads, arguments.target, arguments.rounds, arguments.all_candidates)
            for case in cases]
    report("gemm", arguments.threads, rows, arguments.json)


if __name__ == "__main__":
    main()
