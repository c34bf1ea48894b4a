"""One call of a model, recorded: its program, and where what the program takes and gives lies in what the model takes and gives.

The graph that torch.compile captures is compiled as for the backend, and called once. Tensors are then told by their memory: an
argument of the program is memory of an input, or of what the graph holds (parameters, buffers, constants); a result is memory of
an output of the program, or of one of those. Views between them are offsets and strides.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Callable

import torch

from .. import _session
from .._reasons import ExportError
from . import check, compat
from .compiler import compile_graph
from .graphs import CompiledGraph
from .joint import partition_joint
from .subgraphs import StaticSubgraph
from .text import DTYPES


WRITES = "it writes to its inputs, parameters or buffers"


@dataclasses.dataclass
class Call:
    """A program's: `tensors` are its arguments, in their order, `results` what it made of them."""

    subgraph: StaticSubgraph
    tensors: list[torch.Tensor]
    results: list[torch.Tensor]
    held: list[torch.Tensor]  # what the graph was given, and its constants


class Recorder:
    """A backend of torch.compile: compiles as Kiln's does, and keeps what calls of the graph were."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refused: ExportError | None = None  # why a graph is not to be exported; torch wraps what a backend raises

    def __call__(self, gm, example_inputs):
        return compat.adapter().compile_with_autograd(
            gm, example_inputs, forward=self._compile, compiler=self._compile, partition=partition_joint
        )

    def _compile(self, gm, example_inputs):
        graph = compile_graph(gm, example_inputs)
        try:
            _insist_on_one_program(graph)
        except ExportError as error:
            self.refused = error
            raise
        held: list[torch.Tensor] = []

        def observe(subgraph, tensors: list, targets: list | None) -> list:
            if targets is not None:
                raise ExportError(WRITES)
            results = subgraph(tensors)
            self.calls.append(Call(subgraph, list(tensors), list(results), list(held)))
            return results

        constants = [value for value in graph.attributes.values() if isinstance(value, torch.Tensor)]
        graph.observe(observe)

        def run(arguments: list):
            held[:] = [*constants, *(argument for argument in arguments if isinstance(argument, torch.Tensor))]
            before = _versions(held)
            results = graph(arguments)
            if _versions(held) != before:
                raise ExportError(WRITES)
            return results

        run._boxed_call = True
        return run


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    """What torch counts of writes in place; of tensors of inference mode it counts none."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _insist_on_one_program(graph: CompiledGraph) -> None:
    """Raises ExportError."""
    if graph.outside:
        reasons = dict.fromkeys(f"{op}: {why}" for op, why in graph.outside)
        raise ExportError(f"{len(graph.outside)} of its nodes run in torch ({'; '.join(list(reasons)[:4])})")
    made = [value for value in graph.attributes.values() if not isinstance(value, torch.Tensor)]
    if len(made) != 1 or not isinstance(made[0], StaticSubgraph):
        why = [str(getattr(each, "reason", "")) for each in made]
        raise ExportError(f"it is not one program ({'; '.join(filter(None, why)) or f'{len(made)} parts'})")


def record(run: Callable, recorder: Recorder, arguments: tuple, keywords: dict) -> tuple[Call, object]:
    """The call that run(*arguments, **keywords) is, and what that gave. `run` is compiled by the recorder."""
    session = _session.session()
    wait, session.wait = session.wait, "always"
    recorder.calls.clear()
    try:
        with torch.no_grad():
            result = run(*arguments, **keywords)
    except ExportError:
        raise
    except Exception as error:
        raise recorder.refused or ExportError(f"it is not one graph: {type(error).__name__}: {error}") from error
    finally:
        session.wait = wait
    if len(recorder.calls) != 1:
        raise ExportError(f"it is {len(recorder.calls)} programs, expected one")
    call = recorder.calls[0]
    if check.WRONG in call.subgraph.checks():
        raise ExportError("its program did not agree with torch; kiln.explain() says more")
    return call, result


def inputs_by_name(model: Callable, arguments: tuple, keywords: dict) -> list[tuple[str, torch.Tensor]]:
    """The tensors that the model is given, in the order of its parameters. What is no tensor is a constant of the export."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    bound = inspect.signature(function).bind(*arguments, **keywords)
    return [named for name, value in bound.arguments.items() for named in named_tensors(value, name)]


def named_tensors(value, name: str) -> list[tuple[str, torch.Tensor]]:
    """The tensors in dicts, lists and tuples, by name: "past.0". Raises ExportError for anything else that may hold one."""
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return []
    else:
        raise ExportError(f"{name or 'its result'} is a {type(value).__name__}, expected tensors in dicts, lists and tuples")
    return [named for key, item in items for named in named_tensors(item, f"{name}.{key}" if name else str(key))]


def layout(name: str, tensor: torch.Tensor, strides: tuple[int, ...] | None = None) -> dict:
    """As the request of an export has it; `strides`: other ones than the tensor's."""
    if tensor.device.type != "cpu":
        raise ExportError(f"{name} is on {tensor.device}, exports are of the host")
    if tensor.dtype not in DTYPES:
        raise ExportError(f"{name} is of {tensor.dtype}, which Kiln does not have")
    return {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "strides": tensor.stride() if strides is None else strides}


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


__all__ = ["Call", "Recorder", "inputs_by_name", "layout", "memory_of", "named_tensors", "record"]
