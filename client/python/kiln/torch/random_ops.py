"""torch's random operators, taken apart where the configuration has kernels draw (`random: fast`): a seed, which is a step on the
host that depends on nothing and so splits no subgraph, the words that each element has of it, and a function of these.

What is drawn in another way than by one function of a few numbers for each element stays torch's, as do draws on devices, from a
generator that is named, and of shapes that only the run tells.
"""

from __future__ import annotations

import inspect
from typing import Callable, NamedTuple

import torch
from torch import fx

from . import distributions as of
from .draws import is_fast, is_static, preserved_strides, words_of_one_seed
from .dropout import separate_masks
from .nodes import all_arguments, applied, node_of
from .tensors import is_empty, relayout
from .text import DTYPES

# By torch's name, whatever the overload. Parameters have torch's names.
FUNCTIONS = {
    "rand": of.uniform, "rand_like": of.uniform, "uniform": of.uniform,
    "randn": of.normal, "randn_like": of.normal, "normal": of.normal, "normal_functional": of.normal,
    "log_normal": of.log_normal, "exponential": of.exponential, "geometric": of.geometric, "cauchy": of.cauchy,
    "bernoulli": of.bernoulli, "randint": of.integers, "randint_like": of.integers, "random": of.integers,
}  # fmt: skip
RENAMED = {"from": "low", "to": "high"}
TAKE_TENSORS = (of.normal, of.bernoulli)


class Draw(NamedTuple):
    function: Callable
    parameters: dict  # numbers, and nodes of tensors
    shaped: torch.Tensor  # an element's words have its place in this
    words: int  # of each element


def separate_draws(graph: fx.Graph) -> None:
    """Takes apart dropout, and what else draws numbers, in place."""
    separate_masks(graph)
    for node in list(graph.nodes):
        if (draw := _draw_of(node)) is not None and is_fast():
            _replace(graph, node, draw)
    graph.eliminate_dead_code()


def _draw_of(node: fx.Node) -> Draw | None:
    """What the node draws; None where it draws nothing, or torch does."""
    if getattr(node.target, "namespace", None) != "aten":
        return None
    value, name = node.meta.get("val"), node.target._schema.name.removeprefix("aten::")
    if name not in FUNCTIONS and name != "multinomial":
        return None
    if not _is_plain(value) or value.stride() != preserved_strides(value):
        return None
    given = _arguments(node)
    if given.get("generator") is not None:
        return None
    draw = _sample(given, value) if name == "multinomial" else _elementwise(FUNCTIONS[name], name, given, value)
    return draw if draw is not None and all(map(_is_known, draw.parameters.values())) else None


def _is_plain(value) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and value.dtype in DTYPES and value.device.type == "cpu"
    return is_tensor and is_static(value) and not is_empty(value)


def _is_known(parameter) -> bool:
    return _is_plain(parameter.meta.get("val")) if isinstance(parameter, fx.Node) else isinstance(parameter, (bool, int, float))


def _arguments(node: fx.Node) -> dict:
    """All that the op takes, by our names."""
    return {RENAMED.get(name, name): value for name, value in all_arguments(node).items()}


def _elementwise(function: Callable, name: str, given: dict, value: torch.Tensor) -> Draw | None:
    if name == "bernoulli":
        given.setdefault("p", given["self"])
    names = list(inspect.signature(function).parameters)[2:]
    parameters = {n: given[n] for n in names if n in given}
    tensors = [p.meta["val"] for p in parameters.values() if isinstance(p, fx.Node)]
    if tensors and (function not in TAKE_TENSORS or not all(map(_is_plain, tensors))):
        return None
    if function is of.integers:
        return _whole(name, parameters, value)
    if function is of.bernoulli:
        return Draw(function, parameters, value, _words_of(*tensors) if tensors else 1)
    return Draw(function, parameters, value, _words_of(value, *tensors) * (2 if function in (of.normal, of.log_normal) else 1))


def _words_of(*tensors: torch.Tensor) -> int:
    """Of a number that is computed for these."""
    is_narrow = any(t.is_floating_point() for t in tensors) and all(t.dtype != torch.float64 for t in tensors)
    return 1 if is_narrow else 2


def _whole(name: str, parameters: dict, value: torch.Tensor) -> Draw | None:
    low, high = parameters.get("low") or 0, parameters.get("high")
    if name == "random" and high is None and not value.is_floating_point() and value.dtype != torch.bool:
        high = torch.iinfo(value.dtype).max + 1
    if type(low) is not int or type(high) is not int or low >= high:
        return None
    return Draw(of.integers, {"low": low, "high": high}, value, of.words_for(high - low))


def _sample(given: dict, value: torch.Tensor) -> Draw | None:
    weights, count = given["self"], given["num_samples"]
    kind = weights.meta.get("val")
    if not _is_plain(kind) or type(count) is not int:
        return None
    if given["replacement"] and count > 1:
        return Draw(of.places, {"weights": weights}, value, _words_of(kind))
    return Draw(of.race, {"weights": weights, "num_samples": count}, kind, _words_of(kind))


def _replace(graph: fx.Graph, node: fx.Node, draw: Draw) -> None:
    value = node.meta["val"]
    with graph.inserting_before(node):
        words = words_of_one_seed(graph, draw.shaped, draw.words)
        arguments = (words, value.dtype, *draw.parameters.values())
        try:
            drawn = draw.function(*fx.map_arg(arguments, lambda n: n.meta["val"]))
        except Exception:  # noqa: BLE001: what the function does not take stays torch's
            return
        if (drawn.dtype, drawn.shape) != (value.dtype, value.shape):
            return
        result = node_of(graph, draw.function, arguments, drawn)
        if drawn.stride() != value.stride():
            result = applied(graph, relayout, result, value.stride())
    node.replace_all_uses_with(result)
    graph.erase_node(node)
