"""The same as _private_2_13.py by public means, for other versions of torch: slower to start, never wrong. What cannot
be had raises NotAvailable, and the graph, or its training partition, is torch's own."""

from __future__ import annotations

import contextlib

import torch
from torch import fx

VERSION = "public"


class NotAvailable(Exception):
    """This torch offers no public way to do it."""


def compile_with_autograd(gm, example_inputs, *, forward, compiler, partition):
    from functorch.compile import aot_module_simplified, default_partition as torch_partition

    # Compilers give boxed callables (with _boxed_call), as they do for the pinned adapter.
    return aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=forward,
        bw_compiler=compiler,
        inference_compiler=compiler,
        partition_fn=torch_partition,
        decompositions={},
    )


def decompositions() -> dict:
    return {}  # not told


def flex_attention() -> tuple:
    return None, None


def is_fake(tensor) -> bool:
    return False


def see_as(functions: dict) -> None:
    pass


def default_partition(joint, inputs, **options):
    from functorch.compile import default_partition as torch_partition

    return torch_partition(joint, inputs, **options)


def trace_written(function, inputs: list):
    raise NotAvailable("the update of one parameter as a graph")


def extract_forward_backward(joint, saved, *, num_fwd_outputs, static_inputs=None):
    raise NotAvailable("own training partition")


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and node.name.startswith("tangents")


def is_primal(node: fx.Node) -> bool:
    return node.op == "placeholder" and not is_tangent(node)


def fake_tensors():
    raise NotAvailable("tensors without data")


def real_mode():
    return contextlib.nullcontext()


def boxed_code(graph: fx.Graph):
    """(source, globals) of a function forward(self, args: list)."""
    code = graph.python_code("self")
    source = code.src + "\n_forward = forward\ndef forward(self, args):\n    inputs = tuple(args)\n    args.clear()\n"
    return source + "    return _forward(self, *inputs)\n", dict(code.globals)


def written_inputs(graph: fx.Graph) -> list[fx.Node]:
    return []  # not told


def has_misplaced_outputs() -> bool:
    return False  # not told


class FunctionInterceptor:
    def __init__(self, run) -> None:
        raise NotAvailable("a look at each function")


class OpInterceptor:
    def __init__(self, run) -> None:
        raise NotAvailable("a look at each op")


def symbolic_expression(extent):
    raise NotAvailable("symbolic extents")


stride_expression = symbolic_expression


def functions_of_sizes() -> dict:
    return {}  # not told


functions_of_numbers = functions_of_sizes


def floor_quotient(over, under):
    raise NotAvailable("a quotient of symbolic extents")


remainder = floor_quotient


def differentiates_forward() -> bool:
    return False  # not told


def draws_random_numbers(target) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def is_higher_order(target) -> bool:
    return callable(target) and not hasattr(target, "_schema") and type(target).__module__.startswith("torch")


def compiled_callable():
    return None  # not told


def is_control_flow(error: Exception) -> bool:
    return any(base.__name__ == "RestartAnalysis" for base in type(error).__mro__)
