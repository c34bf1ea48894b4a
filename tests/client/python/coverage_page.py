"""What each row of the importer's table takes, found by asking it of the cases that it is tested with: docs/coverage.md.

    tools/env python tests/client/python/coverage_page.py

writes the page; test_coverage.py holds it to what rows say.
"""

import collections
import functools
import os
import pathlib
import sys
import textwrap
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import test_convolution
import test_rows
import test_sorting
from kiln import _session
from kiln.torch.rows.complex_rules import RULES
from kiln.torch.partition import is_free, ops_of, why_not
from kiln.torch.place import place_of
from kiln.torch.rows import FAMILIES, NO_ROW, ROWS, complex_numbers, row_of
from kiln.torch.tensors import tensors_in
from kiln.torch.text import DTYPES

PAGE = pathlib.Path(__file__).parents[3] / "docs/coverage.md"
# Ops whose kernels are the CPU's alone (docs/kernels.md), and in whose place rows put no others elsewhere.
ON_THE_CPU = {"attention", "attention_backward", "argsort", "grouped_matmul"}
# What no row says and torch runs as ever, with the reason.
LEFT = (
    ("rand, randn, randint, random, uniform, normal, log_normal, exponential, geometric, cauchy, bernoulli, multinomial, dropout's masks",
     "numbers drawn in torch's order from its generator, unless `random: fast` has kernels draw, on the host, where sizes are known"),
    ("randperm", "torch shuffles in one pass; kernels would sort"),
    ("poisson, binomial, _standard_gamma, _sample_dirichlet, rrelu_with_noise", "numbers drawn as often as the data say, or no row yet"),
    ("nonzero, _unique, unique_consecutive, masked_select, bincount", "the size of the result is in the data"),
    ("repeat_interleave of a tensor", "the size of the result is in the data; where it is given torch refuses numbers that do not add up to it"),
    ("_fft_r2c, _fft_c2r, _fft_c2c", "torch calls MKL's or pocketfft's, which no kernel of ours beats; what is around them is Kiln's"),
    ("of complex numbers: inverse functions, log1p, logaddexp, products of all elements, elements by a mask", "no rule yet"),
    ("triangular systems, and solves by Cholesky factors, of more than six unknowns", "LAPACK takes less time for many of these, and programs take long to compile: they name each element"),
    ("cholesky", "a verdict's samples are not positive definite, their pivots cancel, and what is left of one is rounding; of eight rows and fewer a program took half of LAPACK's time at best"),
    ("matrix_exp", "how often it squares is in the data"),
    ("linalg factorisations and solves: lu, qr, svd, eigh, solve, det, inverse", "LAPACK's"),
    ("gcd, lcm, powers of integers by tensors", "loops as long as the data say"),
    ("batch norm of halves in training, of rows, of images that are not in row-major order", "torch sums these in other orders"),
    ("sampling of grids in half precision", "torch rounds places to it"),
    ("upsampling with antialias of large images", "torch's loops over the pixels that weigh something take less time than products"),
    ("fractional pools of halves", "torch rounds places to it"),
    ("segment_reduce of products, along other axes than the first, of sizes that change", "no row yet"),
    ("scans along sizes that change but of sums, mode, products by index", "places are compared within blocks, and no polynomial says of how many blocks a size is"),
    ("zeta, ndtri, incomplete gamma functions, Bessel functions but I0 and I1, orthogonal polynomials, nextafter, frexp", "no row yet"),
    ("histc over the range of its data", "torch looks at the range, and refuses one that is not finite"),
    ("gradients of bags scaled by frequency", "torch takes the frequencies of other indices"),
    ("embedding_renorm", "it writes to weights what eager writes, to the last place"),
    ("nn.LSTM of f32 and bf16 with oneDNN", "oneDNN's kernel of all steps takes less time than a program for each step"),
    ("ctc_loss of sizes that change, or of few labels", "an op of the graph, which torch's kernels do: programs are for sizes that are known, and of few labels do not take less time"),
    ("recurrent layers with projections, of packed sequences, under autocast", "no form that is known; the graph ends before them"),
    ("ctc_loss of halves, of targets one after another whose lengths are in a tensor", "torch has none of halves; the size of what the kernel gives is in the data"),
    ("_assert_async", "an error that torch raises"),
    ("_local_scalar_dense", "a number that Python reads"),
)  # fmt: skip


@dataclass
class Found:
    """What is known of one overload."""

    dtypes: set = field(default_factory=set)
    ops: set = field(default_factory=set)
    is_differentiated: bool | None = None  # None: torch has no derivative of it
    takes_symbols: bool = False


def cases():
    yield from test_rows.CASES.values()
    yield from map(convolution, test_convolution.KINDS.values())
    for name, use in test_sorting.CHOICES.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        yield (lambda x, use=use, op=op: use(op, x)), (lambda: [test_sorting.rows(torch.float32, 9)])
        yield (lambda x, use=use, op=op: use(op, x)), (lambda: [test_sorting.rows(torch.int64, 9)])


def convolution(kind):
    *_, options = test_convolution.tensors(kind)

    def run(x, weight, bias):
        out = torch.ops.aten.convolution(x, weight, bias, *options)
        return out, torch.ops.aten.convolution_backward(out, x, weight, list(bias.shape), *options, [True, True, True])

    return run, lambda: test_convolution.tensors(kind)[:3]


def captured(function, inputs, mode="fake"):
    """The calls of rows in the function's graph; nothing, where torch does not take such inputs."""
    try:
        graph = make_fx(lambda *tensors: function(*tensors), tracing_mode=mode)(*inputs).graph
    except Exception:  # noqa: BLE001
        return []
    return [n for n in graph.nodes if n.op == "call_function" and row_of(n.target) is not NO_ROW and list(tensors_in(n.meta.get("val")))]


def dtype_of(node) -> str:
    """The first operand's, or the result's."""
    tensors = list(tensors_in([n.meta.get("val") for n in node.all_input_nodes])) or list(tensors_in(node.meta["val"]))
    return DTYPES.get(tensors[0].dtype, "")


def look(found: dict, nodes: list) -> None:
    for node in nodes:
        if why_not(node, place_of(node.graph)) is None:
            entry = found[node.target]
            entry.dtypes.add(dtype_of(node))
            entry.ops |= ops_of(node)


def has_symbols(node) -> bool:
    """Whether an operand or a result has an extent that changes."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(e, torch.SymInt) for t in tensors_in(values) for e in t.shape)


def derivative_in_kiln(node) -> bool | None:
    """Whether all that torch's derivative of the node calls has rows; None where there is none."""
    tensors = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    if not any(t.is_floating_point() for t in tensors) or len(tensors) != len(node.all_input_nodes):
        return None

    def run(floating, others):
        floating, others = iter(floating), iter(others)
        places = {n: next(floating if n.meta["val"].is_floating_point() else others) for n in node.all_input_nodes}
        result = node.target(*torch.fx.map_arg(node.args, places.get), **torch.fx.map_arg(node.kwargs, places.get))
        return tuple(t for t in tensors_in(result) if t.is_floating_point())

    def step(*given):
        floating, others = ([t for t in given if t.is_floating_point() == is_floating] for is_floating in (True, False))
        outs, pull = torch.func.vjp(lambda *leaves: run(leaves, others), *floating)
        return pull(tuple(map(torch.ones_like, outs))) if outs else None

    inputs = [torch.ones(t.shape, dtype=t.dtype) if t.is_floating_point() else torch.zeros(t.shape, dtype=t.dtype) for t in tensors]
    try:
        graph = make_fx(torch.func.functionalize(step), tracing_mode="fake")(*inputs).graph
    except Exception:  # noqa: BLE001: torch has no derivative of it, or none where nothing is known
        return None
    place = place_of(graph)
    return all(is_free(n) or why_not(n, place) is None for n in graph.nodes)


@functools.cache
@mock.patch.dict(os.environ, KILN_CONVOLUTION="kiln")  # or the processor decides who computes those of halves
@mock.patch.object(_session, "_session", _session.Session())
def survey() -> dict:
    found = collections.defaultdict(Found)
    for function, make in cases():
        torch.manual_seed(0)
        inputs = make()
        nodes = captured(function, inputs)
        look(found, nodes)
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            others = [t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]
            look(found, captured(function, others))
        for node in captured(function, inputs, "symbolic"):
            if has_symbols(node) and why_not(node, place_of(node.graph)) is None:
                found[node.target].takes_symbols = True
        for node in nodes:
            entry = found[node.target]
            if entry.is_differentiated is None and entry.dtypes & {"f32", "bf16"}:
                entry.is_differentiated = derivative_in_kiln(node)
    return found


def page() -> str:
    found = survey()
    lines = [HEAD]
    for family in FAMILIES:
        if family is complex_numbers:
            names = sorted(name_of(target) for target in RULES if hasattr(target, "_schema"))
            lines += [COMPLEX, textwrap.fill(", ".join(names) + ".", 125, break_on_hyphens=False)]
            continue
        late = [t for t in ROWS if str(t) in family.FAMILY.later]  # that torch knows since the survey
        rows = [t for t in {*family.FAMILY.rows, *late} if "aten" in str(t) or "prims" in str(t)]
        lines += [f"\n## {family.__name__.rsplit('.', 1)[1].replace('_', ' ')}\n", "| op | dtypes | backward | sizes that change | devices |", "|---|---|---|---|---|"]
        lines += [line_of(target, found.get(target)) for target in sorted(rows, key=str)]
    lines += [TAIL, *(f"| {ops} | {why} |" for ops, why in LEFT)]
    return "\n".join(lines) + "\n"


def name_of(target) -> str:
    return str(target).removeprefix("aten.").removesuffix(".default")


def line_of(target, entry: Found | None) -> str:
    name = name_of(target)
    if entry is None or not entry.dtypes:
        return f"| {name} | | | | |"
    dtypes = " ".join(d for d in DTYPES.values() if d in entry.dtypes)
    backward = {None: "", True: "yes", False: "in part"}[entry.is_differentiated]
    return f"| {name} | {dtypes} | {backward} | {'yes' if entry.takes_symbols else ''} | {'CPU' if entry.ops & ON_THE_CPU else 'all'} |"


HEAD = """# Coverage

The overloads of torch's operators that have a row in `client/python/kiln/torch/rows` ([adding_an_op.md](adding_an_op.md)), as
`tests/client/python/coverage_page.py` finds by asking each row of the cases that it is tested with. An operator that is not here is
taken apart by torch's own decomposition where rows say all of its pieces, and else it alone runs in torch.

*dtypes*: of the first operand, among those of the cases. *backward*: whether rows say all that torch's derivative calls;
empty where torch has none. *sizes that change*: a program serves symbolic extents. *devices*: those whose backends have kernels
for what the row says. An empty line: the row's cases are models', or on other devices."""
COMPLEX = """
## complex numbers

Complex tensors are pairs of real ones (`client/python/kiln/torch/complex_numbers.py`), forward and backward. In complex64 and
complex128 rules say, besides what torch takes apart into these:
"""
TAIL = """
## What stays in torch

| op | why |
|---|---|"""


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE}: {sum(1 for line in PAGE.read_text().splitlines() if line.startswith('| '))} lines", file=sys.stderr)
