#!/usr/bin/env python3
"""How fast are our matrix products, with what follows them, beside torch's best: MKL and oneDNN through torch, OpenBLAS
through numpy? Alternating in one process; torch's and ours on one OpenMP pool. Each is checked against f64 first. Ours is the
analytic pick, or with --tuned the best of all candidates in a race before.

--dtype f32|bf16|f16; --threads N; --set gpt2|squares|skinny|all, --shapes FILE or --case MxNxK,layout[,epilogue]
"""
import argparse
import ctypes
import pathlib
from typing import NamedTuple

import common
import kernels
import numpy
import torch
from torch.nn import functional as F


class Gemm(NamedTuple):
    """The first letter of the layout is A's (n: [m, k], t: [k, m]), the second B's (n: [k, n], t: [n, k]). The epilogue names
    what follows: "bias", one of "gelu", "relu" and "swiglu" (columns are gates, then as many values), "residual"."""
    m: int
    n: int
    k: int
    layout: str
    epilogue: str = "none"

    @property
    def columns(self):
        return self.n // 2 if "swiglu" in self.epilogue else self.n

    @property
    def is_large(self):
        """No extent is short: arithmetic alone is the limit."""
        return min(self.m, self.n, self.k) >= 512

    @property
    def is_small(self):
        return min(self.m, self.n, self.k) <= 64 or any(extent % 16 for extent in (self.m, self.n, self.k))

    def __str__(self):
        return f"{self.m}x{self.n}x{self.k} {self.layout}" + (f" {self.epilogue}" if self.epilogue != "none" else "")

    def text(self, dtype):
        """In Kiln's text form: A, B, [bias,] [residual] to the result."""
        a, b = ("[{1}, {0}]" if letter == "t" else "[{0}, {1}]" for letter in self.layout)
        inputs = [f"%a: {dtype}{a.format(self.m, self.k)}", f"%b: {dtype}{b.format(self.k, self.n)}"]
        lines = [f"%{name}m = permute(%{name}) {{dims = [{'1, 0' if letter == 't' else '0, 1'}]}}"
                 for name, letter in zip("ab", self.layout)]
        if "bias" in self.epilogue:
            inputs.append(f"%bias: {dtype}[{self.n}]")
            lines.append("%product = addmm(%bias, %am, %bm)")
        else:
            lines.append("%product = matmul(%am, %bm)")
        value = "product"
        for name in ("gelu", "relu"):
            if name in self.epilogue:
                lines.append(f"%active = {name}(%product)")
                value = "active"
        if "swiglu" in self.epilogue:
            half = self.columns
            lines += [f"%gate = slice(%product) {{dim = 1, start = 0, end = {half}}}", "%open = silu(%gate)",
                      f"%value = slice(%product) {{dim = 1, start = {half}, end = {2 * half}}}", "%active = mul(%open, %value)"]
            value = "active"
        if "residual" in self.epilogue:
            inputs.append(f"%residual: {dtype}[{self.m}, {self.n}]")
            lines.append(f"%sum = add(%{value}, %residual)")
            value = "sum"
        return f"graph({', '.join(inputs)}) {{\n" + "".join(f"  {line}\n" for line in lines) + f"  return %{value}\n}}\n"

    def operands(self, dtype):
        """A and B as they lie in memory, bias and residual or None."""
        a = torch.randn((self.k, self.m) if self.layout[0] == "t" else (self.m, self.k)).to(dtype)
        b = (torch.randn((self.n, self.k) if self.layout[1] == "t" else (self.k, self.n)) / self.k**0.5).to(dtype)
        return (a, b, torch.randn(self.n).to(dtype) if "bias" in self.epilogue else None,
                torch.randn(self.m, self.n).to(dtype) if "residual" in self.epilogue else None)

    def multiplied(self, a, b):
        """A and B as the product sees them."""
        return a.t() if self.layout[0] == "t" else a, b.t() if self.layout[1] == "t" else b

    def finish(self, y, residual):
        """What follows the product and its bias, in place where torch can."""
        if "gelu" in self.epilogue:
            y = torch.ops.aten.gelu_(y)
        if "relu" in self.epilogue:
            y = y.relu_()
        if "swiglu" in self.epilogue:
            y = F.silu(y[:, :self.columns]).mul_(y[:, self.columns:])
        return y if residual is None else y.add_(residual)


# In the order of their names in --set.
SETS = {
    "gpt2": [Gemm(512, 2304, 768, "nn"), Gemm(512, 768, 768, "nn"), Gemm(512, 3072, 768, "nn"), Gemm(512, 768, 3072, "nn"),
             Gemm(512, 50257, 768, "nt"), Gemm(512, 768, 2304, "nt"), Gemm(512, 768, 768, "nt"), Gemm(512, 768, 3072, "nt"),
             Gemm(512, 3072, 768, "nt"), Gemm(512, 768, 50257, "nn"), Gemm(768, 2304, 512, "tn"), Gemm(768, 768, 512, "tn"),
             Gemm(768, 3072, 512, "tn"), Gemm(3072, 768, 512, "tn"), Gemm(50257, 768, 512, "tn")],
    "squares": [Gemm(n, n, n, layout) for n in (64, 100, 128, 256, 512, 1024, 2048) for layout in ("nn", "nt", "tn")],
    "skinny": [Gemm(m, n, k, layout) for m in (1, 4, 16, 128) for n, k in ((768, 768), (3072, 768), (768, 3072))
               for layout in ("nn", "nt")],
}


def peers_of(case, a, b, bias, residual):
    """torch.mm and addmm (MKL in f32), oneDNN's linear with what it can fuse, OpenBLAS by numpy: each where it serves the case,
    what is left done by torch in eager mode."""
    out = torch.empty((case.m, case.n), dtype=a.dtype)
    fused = next((name for name in ("gelu", "relu") if name in case.epilogue), "none")

    def product():
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)

    functions = {"torch.mm": lambda: case.finish(product(), residual)}
    if residual is not None and fused == "none":
        added = torch.addmm if bias is None else lambda *operands, out: torch.addmm(*operands, out=out).add_(bias)
        functions["torch.addmm"] = lambda: added(residual, a, b, out=out)
    if a.is_contiguous() and b.t().is_contiguous():
        functions["onednn"] = onednn(case, a, b.t(), bias, residual, fused)
    if a.dtype == torch.float32 and case.epilogue == "none":
        left, right, plain = a.numpy(), b.numpy(), out.numpy()
        functions["openblas"] = lambda: (numpy.matmul(left, right, out=plain), out)[1]
    return functions


def onednn(case, a, weight, bias, residual, fused):
    linear = torch.ops.mkldnn._linear_pointwise
    if "swiglu" in case.epilogue:
        gates, values = weight[:case.columns], weight[case.columns:]
        return lambda: linear.binary(a, linear(a, gates, None, "swish", [], ""), values, None, "mul")
    if residual is not None and fused == "none":
        return lambda: linear.binary(a, residual, weight, bias, "add")
    return lambda: (lambda y: y if residual is None else y.add_(residual))(
        linear(a, weight, bias, fused, [], "none" if fused == "gelu" else ""))


def measure(case, options):
    dtype, allowed = kernels.DTYPES[options.dtype]
    operands = case.operands(dtype)
    a, b = case.multiplied(*operands[:2])
    bias, residual = operands[2:]
    product = a.double() @ b.double()
    exact = case.finish(product if bias is None else product + bias.double(), None if residual is None else residual.double())
    peers = peers_of(case, a, b, bias, residual)
    for name, peer in peers.items():
        kernels.require_right(f"{case} {name}", [peer()], [exact], kernels.OF_PEERS * allowed)
    inputs, output = [operand for operand in operands if operand is not None], torch.empty(exact.shape, dtype=dtype)
    mine, facts = kernels.ours(case.text(options.dtype), inputs, [output], [exact], allowed, options)
    return kernels.race(str(case), mine, peers, 2.0 * case.m * case.n * case.k, options, is_small=case.is_small,
                        is_large=case.is_large, **facts)


def set_openblas_threads(count):
    """Of the OpenBLAS that numpy brings."""
    for path in {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}:
        ctypes.CDLL(path).scipy_openblas_set_num_threads64_(count)


def cases_in(file, dtype):
    return list(dict.fromkeys(Gemm(row["M"], row["N"], row["K"], "nt" if row["b_layout"].startswith("NK") else "nn", row["epilogue"])
                              for row in kernels.shapes(file, "gemm", dtype)))


def cases_of(options):
    if options.case:
        sizes, layout, *epilogue = options.case.split(",")
        return [Gemm(*map(int, sizes.split("x")), layout, *epilogue)]
    if options.shapes:
        return cases_in(options.shapes, options.dtype)
    return SETS.get(options.set) or [case for cases in SETS.values() for case in cases]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kernels.add_options(parser)
    parser.add_argument("--set", default="all", choices=[*SETS, "all"])
    parser.add_argument("--case", help="MxNxK,layout[,epilogue]")
    options = parser.parse_args()
    kernels.set_up(options)
    set_openblas_threads(options.threads)
    rows = common.until_interrupted(measure(case, options) for case in cases_of(options))
    common.report(f"gemm {options.dtype}", rows, {"all": common.ratios(rows),
                                                  "small, skinny or odd": common.ratios(row for row in rows if row["is_small"]),
                                                  "the rest": common.ratios(row for row in rows if not row["is_small"]),
                                                  "share of the roof, extents of 512 and more": common.share_of_roof(
                                                      row for row in rows if row["is_large"])})


if __name__ == "__main__":
    main()
