#!/usr/bin/env python3
"""What does a call cost? A compiled subgraph with 20 tensors (19 in, 1 out, 64 elements each) called from Python, without
gradients: microseconds above the same call through torch.compile with a backend that does nothing (it hands out the same
result each time), so guards and torch's wrapper are in both, and the kernel's own time is in ours.

The module is a sum of its inputs. Ways: kiln.compile, torch.compile(backend="kiln"), the program alone.
--rounds N; --calls N per round."""
import argparse
import statistics

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

import common

INPUTS = 19
ELEMENTS = 64


class Sum(torch.nn.Module):
    def forward(self, *tensors):
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total


def no_op(gm, example_inputs):
    """A backend whose code does nothing but hand out one ready tensor."""
    def compiler(graph, inputs):
        with _disable_current_modes():
            results = [torch.zeros(ELEMENTS)]

        def run(arguments):
            arguments.clear()
            return list(results)
        run._boxed_call = True
        return run
    return aot_autograd(fw_compiler=compiler, inference_compiler=compiler)(gm, example_inputs)


def program_of(module, tensors):
    """The subgraph's program, as the generated code calls it. The first module of this process that Kiln compiles."""
    from kiln._session import live_programs

    module(*tensors)
    return live_programs()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import kiln

    torch.set_num_threads(2)
    tensors = [torch.randn(ELEMENTS) for _ in range(INPUTS)]
    expected = Sum()(*tensors)
    ways = {"kiln": kiln.compile(Sum()), "backend": torch.compile(Sum(), backend="kiln"),
            "no_op": torch.compile(Sum(), backend=no_op), "inductor": torch.compile(Sum())}

    with torch.no_grad():
        program = program_of(ways["kiln"], tensors)
        for name in ("kiln", "backend"):
            torch.testing.assert_close(ways[name](*tensors), expected)

        def batch(call):
            def run():
                for _ in range(arguments.calls):
                    call()
            return run

        calls = {name: batch(lambda module=module: module(*tensors)) for name, module in ways.items()}
        calls["program"] = batch(lambda: program(tensors))
        calls["eager"] = batch(lambda module=Sum(): module(*tensors))
        samples = common.interleave(calls, arguments.rounds)
    per_call = {name: [s / arguments.calls for s in values] for name, values in samples.items()}
    above = {name: [a - b for a, b in zip(per_call[name], per_call["no_op"])] for name in ("kiln", "backend", "inductor")}
    rows = [common.row("20 tensors, above a no-op backend", above, unit="µs", scale=1e6),
            common.row("20 tensors, whole call", per_call, unit="µs", scale=1e6)]
    common.report("call_overhead", rows, {f"{name}_above_no_op_us": round(statistics.median(values) * 1e6, 2)
                                          for name, values in above.items()})


if __name__ == "__main__":
    main()
