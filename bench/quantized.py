#!/usr/bin/env python3
"""Are products with bytes fast? Of signed bytes on both sides beside torch._int_mm (oneDNN), and with weights of bytes and a
scale of each channel, on bf16, beside torch._weight_int8pack_mm and a product with weights in bf16.

    python quantized.py [--cases 1x4096x4096,128x4096x4096] [--threads 1] [--rounds 30] [--json FILE]

A case is M x N x K: rows, channels, depth; weights lie channel by channel. Alternating in one process, so that each way finds
in the caches what the others left; calls from Python are included.
"""
import argparse

import torch

import common
import kiln  # noqa: F401  registers the backend

aten = torch.ops.aten


def int_mm(x, weight):
    return torch._int_mm(x, weight.t())


def weight_only(x, weight, scale):
    return torch.mm(x, weight.t().to(x.dtype)) * scale


def signed_bytes(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def ways_of_bytes(m, n, k):
    x, weight = signed_bytes(m, k), signed_bytes(n, k)
    ours = torch.compile(int_mm, backend="kiln", dynamic=False)
    assert torch.equal(ours(x, weight), int_mm(x, weight))
    return {"kiln": lambda: ours(x, weight), "torch._int_mm": lambda: int_mm(x, weight)}


def ways_of_weights(m, n, k):
    x, weight, scale = torch.randn(m, k).bfloat16(), signed_bytes(n, k), torch.rand(n).bfloat16()
    wide = (weight * scale[:, None]).bfloat16()
    ours = torch.compile(weight_only, backend="kiln", dynamic=False)
    exact = (x.double() @ weight.double().t()) * scale.double()
    assert (ours(x, weight, scale).double() - exact).abs().max() <= 0.02 * exact.abs().max()
    return {"kiln": lambda: ours(x, weight, scale),
            "torch._weight_int8pack_mm": lambda: aten._weight_int8pack_mm(x, weight, scale),
            "bf16 mm": lambda: torch.mm(x, wide.t())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1x4096x4096,8x4096x4096,128x4096x4096,512x768x768")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for case in options.cases.split(","):
        shape = [int(extent) for extent in case.split("x")]
        for what, ways in (("bytes", ways_of_bytes), ("weights of bytes, bf16", ways_of_weights)):
            with torch.no_grad():
                samples = common.interleave(ways(*shape), options.rounds, warmup=3)
            rows.append(common.row(f"{case} {what}", samples, unit="ms", scale=1e3))
    common.report("quantized", rows, {"geometric mean of ratios": common.geometric_mean(row["ratio"] for row in rows)})


if __name__ == "__main__":
    main()
