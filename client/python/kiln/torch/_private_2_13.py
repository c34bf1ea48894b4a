"""All that Kiln uses of torch's private API, as torch 2.13 has it. Nothing else in this package may import from
torch._*, torch.fx.experimental or torch.utils._*; compat.py chooses this file or public.py by torch's version."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import sys
import types
from typing import NoReturn

import sympy
import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._dynamo import eval_frame
from torch._dynamo import exc as dynamo_exceptions
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch._aot_autograd import descriptors, graph_compile, runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType
from torch._decomp import decomposition_table
from torch._higher_order_ops.flex_attention import flex_attention as flex_forward
from torch._higher_order_ops.flex_attention import flex_attention_backward as flex_backward
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException
from torch.autograd import forward_ad, profiler
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _BoxedCodeGen
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _len_torch_dispatch_stack,
)
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
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


def compile_with_autograd(gm, example_inputs, *, forward, compiler, partition):
    """Runs AOTAutograd: `forward(gm, inputs)` is called for the forward graph, `compiler(gm, inputs)` for the backward and the
    inference graph, and `partition(joint, inputs, num_fwd_outputs=…)` splits the joint graph."""
    let_backwards_be_differentiated()
    with functorch_config.patch(force_non_lazy_backward_lowering=True), saved_for_many_backwards():
        wrapped = aot_autograd(
            fw_compiler=forward,
            bw_compiler=compiler,
            inference_compiler=compiler,
            partition_fn=partition,
            decompositions={},
            keep_inference_input_mutations=writes_in_graphs(),
        )
        return wrapped(gm, example_inputs)


def writes_in_graphs() -> bool:
    """Whether the graph that is captured now may write to its inputs itself: one without a backward, which again.py need not
    know to run it again."""
    return not torch.is_grad_enabled()


@functools.cache
def let_backwards_be_differentiated() -> None:
    """From here on, backwards of compiled forwards that have an `again` (again.py) use it where gradients are recorded."""
    factory = runtime_wrappers._AOTDispatchAutogradFunctionFactory
    build = factory.build

    def build_differentiable(self):
        function, known = build(self), getattr(self.spec.compiled_fw_func, "again", None)
        if known is not None and self.spec.maybe_subclass_meta is None and not self.spec.backward_state_indices:
            _differentiate(function, known, self.spec.fw_metadata)
        return function

    factory.build = build_differentiable


def _differentiate(function: type[torch.autograd.Function], again, metadata) -> None:
    """Has the function note its calls, and its backward give gradients that have gradients."""
    forward, backward = function.forward, function.backward
    written = metadata.mutated_inp_runtime_indices

    def noting(ctx, *inputs):
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # as of checkpoints: what is saved is theirs
        ctx.kiln_note = again.note(inputs, written) if hooks is None else None
        return forward(ctx, *inputs)

    @torch.compiler.disable  # Dynamo may be at work on who differentiates
    def differentiable(ctx, incoming: list):
        if not torch.is_grad_enabled():
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                ctx.kiln_note = None
            return backward(ctx, incoming)
        ctx.saved_tensors  # raises where eager does: they were written to, or let go
        tangents = list(incoming)
        return again.gradients(ctx.kiln_note, tangents, ctx.needs_input_grad, lambda i, o: _results(metadata, i, o),
                               lambda: backward(ctx, incoming))  # fmt: skip

    function.forward, function.backward = staticmethod(noting), staticmethod(differentiable)


_WITH_GRADIENT = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


def _results(metadata, inputs: list, outputs: list) -> list[tuple]:
    """What AOTAutograd's forward returns, each with whether its gradient comes in."""
    if len(outputs) != len(metadata.output_info):
        raise ValueError(f"{len(outputs)} outputs, expected {len(metadata.output_info)}")
    written = [(i, metadata.input_info[i]) for i in metadata.mutated_inp_runtime_indices]
    results = [(inputs[i], info.mutates_data and info.requires_grad) for i, info in written]
    results += [(output, info.output_type in _WITH_GRADIENT and info.requires_grad_for_backward)
                for output, info in zip(outputs, metadata.output_info)]  # fmt: skip
    saved_bases = OutputType.alias_of_intermediate_save_as_output
    return results + [(o._base, True) for o, info in zip(outputs, metadata.output_info) if info.output_type == saved_bases]


def trace_written(function, inputs: list) -> fx.GraphModule:
    """The functional graph of a function that writes to its inputs, which the graph does at its end. Within, torch says that it
    compiles: optimizers then leave their counts of steps tensors."""
    original = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        return make_fx(torch.func.functionalize(function), tracing_mode="fake")(*inputs)
    finally:
        torch.compiler._is_compiling_flag = original


@functools.cache
def decompositions() -> dict:
    """torch's own, by overload: a function of the op's arguments. Of its primitives what they are in aten."""
    primitives = (getattr(torch.ops.prims, name).default for name in torch._prims.__all__ if hasattr(torch.ops.prims, name))
    return {**{op: op.impl_aten for op in primitives if hasattr(op, "impl_aten")}, **decomposition_table}


def trace_pieces(function, tensors: list, table: dict) -> fx.GraphModule:
    """The graph of a function of tensors of these types, its ops taken apart by `table`. Nothing is computed. Raises where the graph
    would be another for other values of their symbols."""
    symbols = next((e.node.shape_env for t in tensors for e in t.shape if isinstance(e, torch.SymInt)), None)
    in_general = contextlib.nullcontext() if symbols is None else symbols.error_on_new_guards()
    fake = FakeTensorMode(shape_env=symbols)
    with _disable_current_modes(), tracing(None), torch._C._DisableAutocast(), torch.no_grad(), fake, in_general:
        types = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
        return make_fx(function, decomposition_table=table)(*types)


def flex_attention() -> tuple:
    """The operators of FlexAttention, forward and backward."""
    return flex_forward, flex_backward


def over_scores(function, prefix: tuple, suffix: tuple, out_dims=0):
    """The function of a score's (batch, head, query, key) over all of these; as torch's operators do it. prefix, suffix: the dims
    along which what stands before and after them goes, None where it is one for all."""
    mapped = flex._vmap_for_bhqkv(function, prefix=prefix, suffix=suffix, out_dims=out_dims)

    def run(*arguments):
        with TransformGetItemToIndex():
            return mapped(*arguments)

    return run


def _validate_device(query, key, value) -> None:
    """torch's, which refuses gradients on processors whatever the backend; Kiln has them."""
    if query.device.type != "cpu" or not torch.compiler.is_dynamo_compiling() or not _is_traced_for_kiln():
        _validate_device_as_torch(query, key, value)


# Where what torch wraps a backend in has it, and where a functools.partial does.
_WRAPPED_BACKENDS = ("_torchdynamo_orig_backend", "compiler_fn", "func")


@torch._dynamo.assume_constant_result
def _is_traced_for_kiln() -> bool:
    """Asked while Dynamo traces."""
    backend = InstructionTranslator.current_tx().output.compiler_fn
    while (inner := next((getattr(backend, name) for name in _WRAPPED_BACKENDS if hasattr(backend, name)), None)) is not None:
        backend = inner
    return getattr(backend, "__module__", "").startswith("kiln.")


_validate_device_as_torch, flex._validate_device = flex._validate_device, _validate_device


def _wrap_module(self, module):
    """torch's, which without `allow_rnn` has the whole function that calls a recurrent layer run in eager; recurrent.py has them."""
    with dynamo_config.patch(allow_rnn=True) if _is_traced_for_kiln() else contextlib.nullcontext():
        return _wrap_module_as_torch(self, module)


_wrap_module_as_torch, VariableBuilder.wrap_module = VariableBuilder.wrap_module, _wrap_module

_seen_as: dict = {}


def see_as(functions: dict) -> None:
    """Of functions of torch that Dynamo does not look into, what it has in graphs for Kiln in place of each: functions of the same
    arguments."""
    _seen_as.update(functions)


def _call_in_graph(self, translator, arguments, keywords):
    is_other = isinstance(self.value, (types.BuiltinFunctionType, types.FunctionType)) and self.value in _seen_as and _is_traced_for_kiln()
    variable = TorchInGraphFunctionVariable(_seen_as[self.value]) if is_other else self
    return _call_in_graph_as_torch(variable, translator, arguments, keywords)


_call_in_graph_as_torch, TorchInGraphFunctionVariable.call_function = TorchInGraphFunctionVariable.call_function, _call_in_graph


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether nothing is computed of it: a graph is captured."""
    return detect_fake_mode(tensor) is not None


def leave_to_eager(what: str) -> NoReturn:
    """Called while Dynamo has a function run on fake tensors: the graph ends before it."""
    raise UnsupportedFakeTensorException(what)


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


def fake_tensors():
    """A function that makes of each tensor one of its type, without its data."""
    return FakeTensorMode().from_tensor


def real_mode():
    """A context in which tensors are real: compilers are called under a fake mode."""
    return _disable_current_modes()


def boxed_code(graph: fx.Graph):
    """(source, globals) of a function forward(self, args: list) that frees its arguments as it goes."""
    graph.set_codegen(_BoxedCodeGen())
    code = graph.python_code("self")
    return code.src, dict(code.globals)


def written_inputs(graph: fx.Graph) -> list[fx.Node]:
    """Inputs of a graph that torch writes the graph's results to when it is done."""
    (output,) = graph.find_nodes(op="output")
    written = {d.mutated_input for d in output.meta.get("desc") or () if isinstance(d, descriptors.InputMutationAOTOutput)}
    return [n for n in graph.find_nodes(op="placeholder") if n.meta.get("desc") in written] if written else []


def has_misplaced_outputs() -> bool:
    """Whether torch would look for an output of the graph that is being compiled, a view of an input that it writes to, by the
    place that it has in the functional copy. So it does where it cannot do the views again, as their extents are symbols."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    views = [info for info in metadata.output_info if info.output_type is OutputType.alias_of_input] if metadata else []
    return any(metadata.input_info[info.base_idx].mutates_data and not _can_be_viewed_again(info) for info in views)


def _can_be_viewed_again(info) -> bool:
    views = info.view_meta_sequence
    return views is not None and not any(view.has_symbolic_inputs for view in views.sequence)


def symbolic_expression(extent: torch.SymInt) -> sympy.Expr:
    return extent.node.expr


def stride_expression(stride: torch.SymInt) -> sympy.Expr:
    """Of a tensor with elements: what torch says for any is a product of Max(1, extent)."""
    return stride.node.expr.replace(Max, lambda *of: sympy.Mul(*of) if len(of) == 2 and 1 in of else Max(*of))


@functools.cache
def functions_of_sizes() -> dict:
    """What torch computes a size by, besides sums and products: what does the same with numbers."""
    return {FloorDiv: operator.floordiv, CleanDiv: operator.floordiv, Mod: operator.mod, PythonMod: operator.mod,
            Max: torch.sym_max, Min: torch.sym_min, TruncToInt: math.trunc, FloorToInt: math.floor, CeilToInt: math.ceil}  # fmt: skip


def functions_of_numbers() -> dict:
    """What torch computes of sizes that is no size, as the factor of a resized image is."""
    return {sympy.Add: operator.add, sympy.Mul: operator.mul, ToFloat: torch.sym_float, IntTrueDiv: operator.truediv,
            FloatTrueDiv: operator.truediv}  # fmt: skip


def floor_quotient(over: sympy.Expr, under: sympy.Expr) -> sympy.Expr:
    return FloorDiv(over, under)


def remainder(over: sympy.Expr, under: sympy.Expr) -> sympy.Expr:
    """0 or more, and less than what it is divided by."""
    return PythonMod(over, under)


def differentiates_forward() -> bool:
    """Whether tensors may have tangents, of forward-mode differentiation."""
    return forward_ad._current_level >= 0


def draws_random_numbers(target) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_higher_order(target) -> bool:
    """Whether the operator takes graphs."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def compiled_callable():
    """What the innermost torch.compile that is at work on this thread was given: a module or a function; None if none is."""
    frame = sys._getframe()
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("compile_wrapper", eval_frame.__file__):
        frame = frame.f_back
    if frame is None:
        return None
    function = frame.f_locals.get("fn")
    cells = inspect.getclosurevars(function).nonlocals if isinstance(function, types.FunctionType) else {}
    module = getattr(function, "__self__", cells.get("fn"))  # torch's wrap_inline holds it so
    return module if isinstance(module, torch.nn.Module) else function


def is_control_flow(error: Exception) -> bool:
    """Whether Dynamo raised this to itself through the backend, to trace again."""
    return isinstance(error, dynamo_exceptions.RestartAnalysis)


def _is_composite(op) -> bool:
    """Whether torch makes the op of others, whatever its operands."""
    return isinstance(op, torch._ops.OpOverload) and op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


@contextlib.contextmanager
def _left(mode):
    """Within, the innermost mode is not entered."""
    mode.__exit__(None, None, None)
    try:
        yield
    finally:
        mode.__enter__()


class FunctionInterceptor(TorchFunctionMode):
    """While it is entered and not paused, run(function, arguments, keywords) takes the place of each function of torch that this
    thread calls, but for those that `run` and functions of torch call."""

    def __init__(self, run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        return self._run(function, arguments, keywords or {})

    def paused(self):
        """Does nothing within its own `run`, and below a mode that was entered later."""
        return _left(self) if _get_current_function_mode() is self else contextlib.nullcontext()


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

    def paused(self):
        return _left(self)


def has_dispatch_modes() -> bool:
    """Whether any mode, a fake one or a user's, will see the next op; the one that asks is not counted in its handler."""
    return _len_torch_dispatch_stack() > 0


def profiled(name: str):
    """A context in which torch's profiler, if it runs, shows `name`."""
    return torch.profiler.record_function(name) if profiler._is_profiler_enabled else contextlib.nullcontext()


class NotAvailable(Exception):
    """Never raised here: this version has all that is asked for."""
