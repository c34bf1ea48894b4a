"""All that Kiln uses of torch's private API, as torch 2.13 has it. Nothing else in this package may import from
torch._*, torch.fx.experimental or torch.utils._*; compat.py chooses this file or public.py by torch's version."""

from __future__ import annotations

import collections
import contextlib

import sympy
import torch
from torch import fx
from torch._dynamo import exc as dynamo_exceptions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

VERSION = "2.13"


def compile_with_autograd(gm, example_inputs, *, compiler, partition):
    """Runs AOTAutograd: `compiler(gm, inputs)` is called for the forward, the backward and the inference graph, and
    `partition(joint, inputs, num_fwd_outputs=…)` splits the joint graph."""
    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        wrapped = aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=compiler,
            partition_fn=partition,
            decompositions={},
            keep_inference_input_mutations=False,
        )
        return wrapped(gm, example_inputs)


def default_partition(joint, inputs, **options):
    """torch's own partition, without recomputation."""
    return partitioners.default_partition(joint, inputs, **options)


def extract_forward_backward(joint: fx.GraphModule, saved: list[fx.Node], *, num_fwd_outputs: int, static_inputs=None):
    """The forward and backward graphs of a joint graph whose forward hands over `saved`."""
    return partitioners._extract_fwd_bwd_modules(
        joint, saved, [], num_fwd_outputs=num_fwd_outputs, static_lifetime_input_nodes=static_inputs
    )


def is_tangent(node: fx.Node) -> bool:
    return partitioners._is_tangent(node)


def is_primal(node: fx.Node) -> bool:
    return partitioners._is_primal(node)


def real_mode():
    """A context in which tensors are real: compilers are called under a fake mode."""
    return _disable_current_modes()


def boxed_code(graph: fx.Graph):
    """(source, globals) of a function forward(self, args: list) that frees its arguments as it goes."""
    graph.set_codegen(_BoxedCodeGen())
    code = graph.python_code("self")
    return code.src, dict(code.globals)


def symbolic_expression(extent: torch.SymInt) -> sympy.Expr:
    return extent.node.expr


def draws_random_numbers(target) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_higher_order(target) -> bool:
    """Whether the operator takes graphs."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def is_control_flow(error: Exception) -> bool:
    """Whether Dynamo raised this to itself through the backend, to trace again."""
    return isinstance(error, dynamo_exceptions.RestartAnalysis)


class OpCounter(TorchDispatchMode):
    """Counts, by name, the ops that torch runs while it is entered and not paused; `views` do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: collections.Counter = collections.Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if not function.is_view:
            self.ops[str(function)] += 1
        return function(*arguments, **(keywords or {}))

    @contextlib.contextmanager
    def paused(self):
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()


class NotAvailable(Exception):
    """Never raised here: this version has all that is asked for."""
