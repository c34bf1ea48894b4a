#!/usr/bin/env python3
"""Are recurrent layers fast? A layer's forward without gradients, and its loss with all gradients, by torch.compile and by
kiln.compile, beside eager; Inductor runs such layers in eager. One layer, (rows, steps, width), inputs as wide.

--threads N; --kinds LSTM,GRU,RNN; --shapes 32x100x256,…
"""
import argparse
import copy
import os
import pathlib
import tempfile

import common

SAMPLE_S = 5e-2
SHAPES = "1x100x128,8x200x64,32x100x256,64x50x512"


def measure(kind, shape, options):
    """Rows of training and of the forward."""
    import torch

    import kiln

    rows, steps, width = map(int, shape.split("x"))
    torch.compiler.reset()
    layer = getattr(torch.nn, kind)(width, width, batch_first=True)
    x = torch.randn(rows, steps, width)
    own = copy.deepcopy(layer)
    runs = {"kiln": kiln.compile(own), "backend": torch.compile(layer, backend="kiln"), "eager": layer}
    parameters = {"kiln": list(own.parameters())}

    def train(name):
        return lambda: torch.autograd.grad(runs[name](x)[0].sum(), parameters.get(name, list(layer.parameters())))

    def forward(name):
        return torch.no_grad()(lambda: runs[name](x))

    for mode, make in (("train", train), ("forward", forward)):
        samples = common.interleave({name: make(name) for name in runs}, options.rounds, warmup=2, sample_s=SAMPLE_S)
        yield common.row(f"{kind} {rows} x {steps} x {width} {mode}", samples, unit="ms", scale=1e3, of=f"{kind} {mode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", default="LSTM,GRU,RNN")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        os.environ.update(KILN_CACHE_DIR=str(pathlib.Path(empty) / "kiln"), KILN_AUTOTUNE_MODE="off")
        import torch

        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        cases = [(kind, shape) for kind in options.kinds.split(",") for shape in options.shapes.split(",")]
        rows = common.until_interrupted(row for case in cases for row in measure(*case, options))
    kinds = dict.fromkeys(row["of"] for row in rows)
    common.report("recurrent", rows, {kind: common.ratios(row for row in rows if row["of"] == kind) for kind in kinds})


if __name__ == "__main__":
    main()
