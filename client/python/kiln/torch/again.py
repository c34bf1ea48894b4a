"""Gradients of gradients, as eager has them.

The backward that AOTAutograd makes of a graph is a program, and a program has no derivative. So where gradients are asked for
that can be differentiated (create_graph=True), the program does not run: torch runs the graph again as Dynamo captured it, on
the inputs that the forward had, and differentiates that. The result is eager's own, to any order.

For this each forward notes what it was called with, by reference: its inputs live until its backward has run (or until nothing
needs its results). Most of them autograd keeps as well. Besides, where they count: small inputs that the graph itself writes
to, copied, and the state of torch's generator. Inputs that others write to meanwhile are found by their versions. Where the
graph cannot run again, gradients have their values, and only who differentiates them is told why that cannot be.
"""

from __future__ import annotations

import contextlib
import types

import torch
from torch import fx

from . import compat
from .described import ATOMS
from .draws import draw_seed
from .kept import dump_names, load_names
from .panels import with_backward
from .partition import draws

# Inputs that a graph writes to are copied by each forward, up to so many elements each: running statistics, counters.
MAX_COPIED = 1 << 16

# That any source of fx may name.
_TYPES = (type(None), torch.device)

# What torch.autocast takes.
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu")


class Again:
    """A graph of Dynamo, as source: a function of its inputs that gives its outputs.

    Attributes: draws, whether it takes random numbers from torch's generator; why_not, why it cannot run again, empty if it can."""

    def __init__(self, source: str, names: dict, attributes: dict, autocast: list, draws: bool = False, why_not: str = "") -> None:
        self.source, self.names, self.attributes, self.autocast = source, names, attributes, autocast
        self.draws, self.why_not = draws, why_not
        self._function = None

    @classmethod
    def of(cls, gm: fx.GraphModule) -> Again:
        """To be made where the graph is compiled: what autocast does there, it did for the capture."""
        code = gm.graph.python_code("self")
        named = [*gm.graph.find_nodes(op="get_attr"), *gm.graph.find_nodes(op="call_module")]
        attributes = {name: getattr(gm, name) for name in (n.target.split(".")[0] for n in named)}
        autocast = [(d, torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES if torch.is_autocast_enabled(d)]
        # As torch runs a torch.autograd.Function that Dynamo captured, its gradients have none.
        graphs = [str(n.target) for n in gm.graph.nodes if compat.adapter().is_higher_order(n.target)]
        why_not = f"it has {graphs[0]}, which takes graphs" if graphs else ""
        return cls(code.src, dict(code.globals), attributes, autocast, why_not=why_not)

    def attached(self, compiler):
        """A compiler of forward graphs that gives what `compiler` does, with this as its `again`. Weights that have gradients are
        not taken for constant."""

        def compile(gm: fx.GraphModule, example_inputs):
            self.draws = any(map(draws, gm.graph.nodes))
            with with_backward():
                compiled = compiler(gm, example_inputs)
            if gm.graph.find_nodes(op="call_function", target=draw_seed):
                self.why_not = "kernels drew its random numbers, and torch would draw others"
            compiled.again = self
            return compiled

        return compile

    @property
    def is_plain(self) -> bool:
        """Whether it can be had in another process: modules, by name, and plain values are all that it holds."""
        values = [v for name, v in self.names.items() if name != "__builtins__"]
        return not self.attributes and all(isinstance(v, (types.ModuleType, *ATOMS)) or any(v is t for t in _TYPES) for v in values)

    def dump(self) -> tuple:
        """Its plain form, which a capture keeps; why it cannot run again, where it has none."""
        if not self.why_not and not self.is_plain:
            return "", {}, [], False, "it holds what only the process has that captured it"
        return self.source, {} if self.why_not else dump_names(self.names), self.autocast, self.draws, self.why_not

    @classmethod
    def load(cls, source: str, names: dict, autocast: list, draws: bool, why_not: str) -> Again:
        return cls(source, load_names(names), {}, autocast, draws, why_not)

    def note(self, inputs: tuple, written: list[int]) -> Note:
        """Of one call of the forward with these inputs, of which the graph writes to those at `written`."""
        return Note(self, inputs, written)

    def gradients(self, note: Note | None, incoming: list, wanted: tuple, outputs_of, compiled) -> tuple:
        """Gradients of the forward's inputs, each None unless it is `wanted`. incoming: those of outputs_of(inputs, outputs), pairs
        of an output and whether it has a gradient. compiled: gives the same without derivatives. To be called where gradients are
        recorded; note is None where hooks for saved tensors were in place."""
        why = note.why_not if note is not None else "its inputs were not noted, as hooks for saved tensors were in place"
        if not why:
            try:
                return _differentiable(note, incoming, wanted, outputs_of)
            except Exception as error:  # noqa: BLE001: said to who asks for the derivative
                why = f"{type(error).__name__}: {error}"
        return _NoDerivative.apply(why, compiled, torch.empty(0, requires_grad=True))

    def __call__(self, inputs: list) -> list:
        if self._function is None:
            scope = dict(self.names)
            exec(compile(self.source, "<kiln again>", "exec"), scope)  # noqa: S102: fx's own source
            self._function = scope["forward"]
        with contextlib.ExitStack() as stack:
            for device in _AUTOCAST_DEVICES:
                dtype = dict(self.autocast).get(device)
                if dtype is not None or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, dtype is not None, cache_enabled=False))
            outputs = self._function(types.SimpleNamespace(**self.attributes), *inputs)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


class Note:
    """What one forward was called with. Attributes: why_not, why it cannot run again; empty if it can."""

    def __init__(self, again: Again, inputs: tuple, written: list[int]) -> None:
        """written: which inputs the graph writes to."""
        self.again, self.why_not, self._inputs, self._written = again, again.why_not, [], written
        if not self.why_not and any(inputs[i].numel() > MAX_COPIED for i in written):
            self.why_not = f"it writes to an input of more than {MAX_COPIED} elements"
        if self.why_not:
            return
        self._inputs = list(inputs)
        if written:
            with torch.enable_grad():  # a copy is a function of what the input was a function of before it was written to
                for i in written:
                    self._inputs[i] = inputs[i].clone()
        self._versions = _versions(self._inputs)
        self._random = _random_state(inputs) if again.draws else None

    def run(self) -> tuple[list, list, list]:
        """(sources, inputs, outputs): the graph run again. Sources stand for the forward's inputs, as what may be differentiated
        by; inputs are what the graph may have written to."""
        for i, (before, now) in enumerate(zip(self._versions, _versions(self._inputs))):
            if before != now:
                raise RuntimeError(f"its input {i}, of shape {tuple(self._inputs[i].shape)}, was modified after the forward")
        sources = [t.view_as(t) if isinstance(t, torch.Tensor) and t.requires_grad else t for t in self._inputs]
        inputs = [t.clone() if i in self._written else t for i, t in enumerate(sources)]
        with _drawing_from(self._random) if self._random else contextlib.nullcontext():
            return sources, inputs, self.again(list(inputs))


def _versions(inputs: list) -> list[int]:
    """0 of what has none: sizes, tensors of inference mode."""
    try:
        return [t._version for t in inputs]
    except (AttributeError, RuntimeError):
        return [t._version if isinstance(t, torch.Tensor) and not t.is_inference() else 0 for t in inputs]


def _random_state(inputs: tuple) -> dict:
    """Of the generators of all devices of the inputs, by device; None is the host's."""
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor) and t.device.type != "cpu"}
    return {None: torch.get_rng_state(), **{d: torch.get_device_module(d).get_rng_state(d) for d in devices}}


@contextlib.contextmanager
def _drawing_from(states: dict):
    """Within, torch's generators are in these states; then in those before."""
    before = {device: _exchange(device, state) for device, state in states.items()}
    try:
        yield
    finally:
        for device, state in before.items():
            _exchange(device, state)


def _exchange(device, state: torch.Tensor) -> torch.Tensor:
    module = torch if device is None else torch.get_device_module(device)
    where = () if device is None else (device,)
    before = module.get_rng_state(*where)
    module.set_rng_state(state, *where)
    return before


class _NoDerivative(torch.autograd.Function):
    """What run() gives, which has no derivative: apply(why, run, anchor), where the anchor requires a gradient."""

    @staticmethod
    def forward(ctx, why: str, run, anchor: torch.Tensor):
        ctx.why = why
        return run()

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("kiln: the gradients of a compiled graph cannot be differentiated as the graph cannot run again: "
                           f"{ctx.why}; let torch run what is differentiated twice, under torch.compiler.disable or in a process "
                           "with KILN_DISABLE=1")  # fmt: skip


def _differentiable(note: Note, incoming: list, wanted: tuple, outputs_of) -> tuple:
    sources, inputs, outputs = note.run()
    pairs = [(o, g) for (o, has_gradient), g in zip(outputs_of(inputs, outputs), incoming, strict=True)
             if has_gradient and g is not None and o.requires_grad]  # fmt: skip
    sources = [t for t, is_wanted in zip(sources, wanted, strict=True) if is_wanted]
    if not pairs or not sources:
        return (None,) * len(wanted)
    found = iter(torch.autograd.grad([o for o, _ in pairs], sources, [g for _, g in pairs], create_graph=True, allow_unused=True))
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)
