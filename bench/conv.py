#!/usr/bin/env python3
"""How fast are convolutions and their gradients beside torch's eager ones (oneDNN)? Each through torch.compile(backend="kiln"),
alternating with eager in one process, after a check against f64.

--dtype f32|bf16; --threads N; --batch N; --of out,input,weight; --set resnet|depthwise|unet|all
"""
import argparse
import os
import time
from typing import NamedTuple

import common
import kernels
import torch

aten = torch.ops.aten
SAMPLE_S = 5e-2


class Conv(NamedTuple):
    """Square images of `size`, padded by half the kernel but where patches are cut (stride == kernel)."""
    channels: int
    filters: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self):
        return 0 if self.stride == self.kernel else self.kernel // 2

    @property
    def positions(self):
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def options(self):
        return [self.stride] * 2, [self.padding] * 2, [1, 1], False, [0, 0], self.groups

    def work(self, batch):
        return 2.0 * batch * self.filters * self.positions**2 * self.channels // self.groups * self.kernel**2

    def __str__(self):
        groups = f" groups {self.groups}" if self.groups > 1 else ""
        return f"{self.channels}->{self.filters} {self.kernel}x{self.kernel}/{self.stride} at {self.size}{groups}"


# In the order of their names in --set.
SETS = {
    "resnet": [Conv(3, 64, 224, 7, 2), Conv(64, 64, 56, 1), Conv(64, 64, 56, 3), Conv(64, 256, 56, 1), Conv(128, 128, 56, 3, 2),
               Conv(256, 512, 56, 1, 2), Conv(128, 128, 28, 3), Conv(256, 256, 14, 3), Conv(1024, 256, 14, 1), Conv(512, 512, 7, 3)],
    "depthwise": [Conv(96, 96, 56, 7, groups=96), Conv(384, 384, 14, 7, groups=384), Conv(72, 72, 56, 3, 2, groups=72),
                  Conv(240, 240, 28, 5, groups=240), Conv(128, 128, 56, 3, groups=32), Conv(3, 96, 224, 4, 4), Conv(96, 192, 56, 2, 2)],
    "unet": [Conv(3, 64, 128, 3), Conv(64, 64, 128, 3), Conv(128, 64, 128, 3), Conv(128, 128, 64, 3), Conv(256, 256, 32, 3),
             Conv(1024, 512, 16, 3)],
}


def functions_of(case, batch, dtype):
    """By what is computed: (function, operands)."""
    x = torch.randn(batch, case.channels, case.size, case.size).to(dtype)
    weight = (torch.randn(case.filters, case.channels // case.groups, case.kernel, case.kernel) / case.kernel).to(dtype)
    grad = torch.randn(batch, case.filters, case.positions, case.positions).to(dtype)

    def gradient(number):
        mask = [number == i for i in range(3)]
        return lambda *operands: aten.convolution_backward(*operands, None, *case.options, mask)[number]

    return {"out": (lambda x, weight: aten.convolution(x, weight, None, *case.options), (x, weight)),
            "input": (gradient(0), (grad, x, weight)), "weight": (gradient(1), (grad, x, weight))}


def measure(case, which, options):
    dtype, allowed = kernels.DTYPES[options.dtype]
    function, operands = functions_of(case, options.batch, dtype)[which]
    exact = function(*(operand.double() for operand in operands))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln")
    with common.runs_in_kiln(f"{case} {which}"):
        got = compiled(*operands)
    kernels.require_right(f"{case} {which}", [got, function(*operands)], [exact, exact], allowed)
    races = {"kiln": lambda: compiled(*operands), "onednn": lambda: function(*operands)}
    clock = time.thread_time if options.threads == 1 else time.perf_counter  # a thread's own stands while others have its processor
    samples = common.interleave(races, options.rounds, sample_s=SAMPLE_S, most_s=options.seconds, clock=clock)
    return common.row(f"{which} {case}", samples, unit="GF/s", work=case.work(options.batch) / 1e9, of=which)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--of", default="out,input,weight")
    parser.add_argument("--set", default="all", choices=[*SETS, "all"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5, help="after which a case begins no further round")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels.set_up(options)
    os.environ["KILN_CONVOLUTION"] = "kiln"  # those of halves, too
    wanted = options.of.split(",")
    cases = SETS.get(options.set) or [case for cases in SETS.values() for case in cases]
    rows = common.until_interrupted(measure(case, which, options) for case in cases for which in wanted)
    common.report(f"conv {options.dtype}", rows,
                  {"images": options.batch, "all": common.ratios(rows), **{name: common.ratios(row for row in rows if row["of"] == name) for name in wanted}})


if __name__ == "__main__":
    main()
