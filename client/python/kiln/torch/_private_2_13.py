"""All that Kiln uses of torch's private API, as torch 2.13 has it. Nothing else in this package may import from
torch._*, torch.fx.experimental or torch.utils._*; compat.py chooses this file or public.py by torch's version."""

from __future__ import annotations

import contextlib

import sympy
import torch
from torch import fx
from torch._dynamo import exc as dynamo_exceptions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch._aot_autograd import descriptors, graph_compile
from torch.autograd import profiler
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _len_torch_dispatch_stack,
)

VERSION = "2.13"


@contextlib.contextmanager
def saved_for_many_backwards():
    """Within, torch notes of no saved tensor that the backward may reuse its memory: with such a note backward(retain_graph=True)
    raises. Another thread's compilation meanwhile has none either."""
    original = graph_compile.collect_bw_donated_buffer_idxs
    graph_compile.collect_bw_donated_buffer_idxs = lambda *_: []
    try:
        yield
    finally:
        graph_compile.collect_bw_donated_buffer_idxs = original


def compile_with_autograd(gm, example_inputs, *, compiler, partition):
    """Runs AOTAutograd: `compiler(gm, inputs)` is called for the forward, the backward and the inference graph, and
    `partition(joint, inputs, num_fwd_outputs=…)` splits the joint graph."""
    with functorch_config.patch(force_non_lazy_backward_lowering=True), saved_for_many_backwards():
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


def written_inputs(graph: fx.Graph) -> list[fx.Node]:
    """Inputs of a forward or inference graph that torch writes the graph's results to when it is done."""
    (output,) = graph.find_nodes(op="output")
    written = {d.mutated_input for d in output.meta.get("desc") or () if isinstance(d, descriptors.InputMutationAOTOutput)}
    return [n for n in graph.find_nodes(op="placeholder") if n.meta.get("desc") in written] if written else []


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


def _is_composite(op) -> bool:
    """Whether torch makes the op of others, whatever its operands."""
    return isinstance(op, torch._ops.OpOverload) and op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


class OpInterceptor(TorchDispatchMode):
    """While it is entered and not paused, run(op, arguments, keywords) takes the place of each op of this thread."""

    supports_higher_order_operators = True

    def __init__(self, run) -> None:
        super().__init__()
        self._run = run

    def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
        if _is_composite(op):  # arrives whole in inference mode
            with self:
                return op.decompose(*arguments, **(keywords or {}))
        return self._run(op, arguments, keywords or {})

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # what the model compiles by itself is compiled as ever

    def is_innermost(self) -> bool:
        return _get_current_dispatch_mode() is self

    @contextlib.contextmanager
    def paused(self):
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()


def has_dispatch_modes() -> bool:
    """Whether any mode, a fake one or a user's, will see the next op; the one that asks is not counted in its handler."""
    return _len_torch_dispatch_stack() > 0


def profiled(name: str):
    """A context in which torch's profiler, if it runs, shows `name`."""
    return torch.profiler.record_function(name) if profiler._is_profiler_enabled else contextlib.nullcontext()


class NotAvailable(Exception):
    """Never raised here: this version has all that is asked for."""
