"""kiln.compile of an optimizer: its step runs as one program for each kind of parameter.

torch.compile traces all parameters of a step as one graph. Most optimizers treat each parameter by itself, so here one
parameter's update is traced, for each layout and set of options that there are, and run for all that are alike. Parameters
and state are written in place. Options are part of a trace, but for the learning rate, which schedulers change: it and the
counts of steps are tensors, and what is computed of them is computed in f64, as Python does.

What cannot be had this way is torch's own step: the first one of a parameter, which makes its state; sparse gradients;
options that change all the time; optimizers whose parameters are not independent of one another (keeps_state).
"""

from __future__ import annotations

import collections
import inspect
import types

import torch
from torch.overrides import TorchFunctionMode

from . import _session
from .torch import compat
from .torch.compiler import compile_graph
from .torch.programs import in_mode

# Sets of options that one optimizer is traced with; beyond, they change too often.
MAX_OPTION_SETS = 8
# What a group may say of its parameters without a part in the update, and what is a tensor in it.
NO_OPTIONS = ("params", "lr", "initial_lr", "param_names")
# Which of torch's ways of computing the same an optimizer takes.
WAYS = ("foreach", "fused")


def compile_optimizer(optimizer: torch.optim.Optimizer, mode: str | None = None) -> torch.optim.Optimizer:
    """Compiles optimizer.step in place and returns the optimizer. Raises nothing of its own."""
    updates = Updates(mode)
    try:
        for group in optimizer.param_groups:
            updates.note_options(optimizer, group)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        _session.session().say(f"optimizer {type(optimizer)}", f"{type(optimizer).__name__}.step stays torch's: {_said(error)}")
        return optimizer

    def step(optimizer, closure=None):
        return updates.step(optimizer, closure)

    hooked = torch.optim.Optimizer.profile_hook_step(step)
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        hooked._wrapped_by_lr_sched = True  # a scheduler that was there before finds its step
    optimizer.step = types.MethodType(hooked, optimizer)
    return optimizer


class Stays(Exception):
    """Why a step is torch's own."""


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Stays) else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class Updates:
    """The traced updates of one optimizer.

    Threading: as the optimizer's own step, one thread at a time."""

    def __init__(self, mode: str | None) -> None:
        self._mode = mode
        self._graphs: dict[tuple, object] = {}  # compiled graphs, by what update they are of
        self._keeps_state: dict[tuple, bool] = {}  # by options
        self._is_lost = False

    def step(self, optimizer, closure):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer._opt_called = True  # what a scheduler that was there before looks at
        try:
            with torch.no_grad(), in_mode(self._mode):
                calls = [] if self._is_lost else self._calls(optimizer)
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            calls = []
            self._is_lost = not isinstance(error, _NotYet)
            if self._is_lost:
                said = f"{type(optimizer).__name__}.step is torch's from now on: {_said(error)}"
                _session.session().say(f"optimizer {id(self)}", said)
        if not calls:
            type(optimizer).step.__wrapped__(optimizer)  # without hooks, which are called around this
            return loss
        with torch.no_grad():
            for graph, tensors in calls:
                graph(tensors)
        return loss

    def _calls(self, optimizer) -> list[tuple]:
        """What to run, each with its tensors: nothing has been written yet. Raises Stays, _NotYet."""
        calls = []
        for group in optimizer.param_groups:
            options, rate = self.note_options(optimizer, group), _rate_of(group)
            for param in group["params"]:
                if param.grad is not None:
                    calls.append(self._call(optimizer, group, options, rate, param))
        return calls

    def _call(self, optimizer, group: dict, options: tuple, rate: torch.Tensor, param) -> tuple:
        state = optimizer.state.get(param, {})
        if not state and self._keeps_state[options]:
            raise _NotYet
        names = tuple(name for name, value in state.items() if isinstance(value, torch.Tensor))
        if any(state[name] is not None for name in state.keys() - set(names)):
            raise Stays("state that is no tensor")
        tensors = [param, param.grad, rate, *(state[name] for name in names)]
        if not all(map(_is_plain, tensors)):
            raise Stays("a tensor that is sparse, complex or on a device")
        key = options, names, tuple((t.dtype, t.shape, t.stride()) for t in tensors)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._trace(optimizer, group, names, tensors)
        return graph, tensors

    def note_options(self, optimizer, group: dict) -> tuple:
        """The group's options (options_of). Raises Stays."""
        options = options_of(group)
        if options not in self._keeps_state:
            if len(self._keeps_state) >= MAX_OPTION_SETS:
                raise Stays("its options change from step to step")
            self._keeps_state[options] = keeps_state(optimizer, group)
        return options

    def _trace(self, optimizer, group: dict, names: tuple, tensors: list):
        def update(param, grad, rate, *state):
            _update(optimizer, group, names, param, grad, rate, state)

        graph = compat.adapter().trace_written(update, [t.detach() for t in tensors])
        return compile_graph(graph, tensors)


class _NotYet(Exception):
    """A parameter has no state: torch's step makes it."""


def options_of(group: dict) -> tuple:
    """The group's options, by name, that its update is traced with. Raises Stays."""
    options = tuple((name, value) for name, value in group.items() if name not in NO_OPTIONS)
    try:
        hash(options)
    except TypeError:
        raise Stays("options that are no numbers") from None
    if any(isinstance(value, torch.Tensor) for _, value in options):
        raise Stays("options that are tensors")
    return options


def _rate_of(group: dict) -> torch.Tensor:
    """The group's learning rate. Raises Stays."""
    rate = group.get("lr", 0.0)
    if not isinstance(rate, torch.Tensor):
        return torch.tensor(rate, dtype=torch.float64)
    if rate.dim() != 0 or rate.device.type != "cpu":
        raise Stays("a learning rate of several elements, or on a device")
    return rate


def shadow_of(optimizer, group: dict, params: list, state: dict, **options):
    """An optimizer of the same class and options over other parameters."""
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    plain = {name: False for name in WAYS if name in group}
    shadow.param_groups = [{**group, **plain, **options, "params": params}]
    shadow.state = collections.defaultdict(dict, state)
    return shadow


def _update(optimizer, group: dict, names: tuple, param, grad, rate, state: tuple) -> None:
    """One step of one parameter, in place. Counts of steps are widened to f64 for it."""
    param.grad = grad
    mine = {name: tensor.double() if _is_count(name, tensor, param) else tensor for name, tensor in zip(names, state)}
    shadow = shadow_of(optimizer, group, [param], {param: mine}, **({"lr": rate} if "lr" in group else {}))
    with _NumbersAsTensors():
        _raw_step(optimizer)(shadow)
    for name, tensor in zip(names, state):
        if mine[name] is not tensor:
            tensor.copy_(mine[name])


def _is_plain(tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex() and tensor.device.type == "cpu"


def _is_count(name: str, tensor, param) -> bool:
    """Of a parameter that is a number itself, all state may be one."""
    return tensor.dim() == 0 and tensor.dtype == torch.float32 and (param.dim() > 0 or name == "step")


def _raw_step(optimizer):
    return inspect.unwrap(type(optimizer).step)


class _NumbersAsTensors(TorchFunctionMode):
    """Lets a tensor be given where torch takes a number: `alpha`, a factor of the second operand; and `value`, of a product or
    quotient of two that is added to a third."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if isinstance(keywords.get("alpha"), torch.Tensor):
            first, second, *others = arguments
            return function(first, second * keywords.pop("alpha"), *others, **keywords)
        if isinstance(keywords.get("value"), torch.Tensor) and len(arguments) == 3:
            base, x, y = arguments
            name = getattr(function, "__name__", "")
            product = (x / y if "div" in name else x * y) * keywords["value"]
            return base.add_(product) if name.endswith("_") else base + product
        return function(*arguments, **keywords)


def keeps_state(optimizer, group: dict) -> bool:
    """Whether the optimizer keeps state of its parameters; tried with small ones. Raises Stays where they cannot be updated one
    by one: where several steps of two together give other values than those of each alone."""
    if getattr(optimizer, "grad_scale", None) is not None or group.get("differentiable"):
        raise Stays("it is differentiable, or takes a gradient scaler's factor")
    together = _after_steps(optimizer, group, (0, 1))
    alone = [_after_steps(optimizer, group, (i,)) for i in (0, 1)]
    for both, single in zip(together.param_groups[0]["params"], (each.param_groups[0]["params"][0] for each in alone)):
        if not torch.equal(both, single):
            raise Stays("its parameters are not independent of one another")
    return any(together.state.values())


def _after_steps(optimizer, group: dict, which: tuple):
    """A shadow of the optimizer over small parameters of the group's rank, those of two that are asked for, after some steps."""
    generator = torch.Generator().manual_seed(3)
    like = group["params"][0]
    shape = [min(extent, 3) for extent in like.shape]

    def small(scale: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(like.dtype)

    params = [torch.nn.Parameter(small(1)) for _ in range(2)]
    shadow = shadow_of(optimizer, group, [params[i] for i in which], {})
    for _ in range(3):
        for i, param in enumerate(params):
            param.grad = small(1 + 30 * i)
        with torch.no_grad():
            _raw_step(optimizer)(shadow)
    return shadow


__all__ = ["compile_optimizer"]
