"""What training saves, chosen by a race of whole partitions: a forward and its backward, compiled for each choice and timed.

joint.py says which partitions there are, its rule's first. They race where a program is handed out after its kernels have raced
(mode="max-autotune", or autotune.mode: max): each is compiled, and steps of all run in turns on sample tensors of the graph's
types. Another partition than the rule's is taken where its step is GAIN faster in the median of the pairs, and faster in three
pairs of four. The first process that races a graph on a machine settles it: what it found is kept in the cache, and others, also
ranks beside it, take that. With `deterministic: true` the rule holds, as everywhere where nothing is tuned or nobody waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import operator
import os
import pathlib
import statistics
import time
from typing import Callable

import torch
from torch import fx

from .. import _session
from . import ahead, check, compat, programs, waiting
from .compiler import compile_graph
from .panels import with_backward
from .place import place_of
from .subgraphs import EagerSubgraph
from .tally import entry_name, instances, on_trial
from .tensors import span_of, tensors_in

# Of records; one of another is none.
FORMAT = 1
# What another partition must be faster by than the rule's.
GAIN = 0.01
# Steps of each partition: at least and at most so many; in between until all of them took so long.
LEAST_TURNS, MOST_TURNS, RACE_S = 5, 15, 20.0
# What a partition may save beyond the rule's, all modules of the graph together; and its share of the memory that is available.
MOST_EXTRA_BYTES, EXTRA_SHARE = 1 << 30, 0.25
# Memory that a race may need, in times of the step's inputs, results and saved values.
MEMORY_FACTOR = 2
# What is written between a forward and its backward, so that no core's cache has what other layers would have driven out.
SWEPT_BYTES = 64 << 20
# How long others wait for the process that races, and for samples that others take.
SETTLED_S, QUIET_S = 600.0, 2.0
_MEASURING = "/dev/shm/kiln-measuring.lock"  # autotune/machine_lock.h


class NotRaced(Exception):
    """The rule holds, as its message says why."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which partition, and what the race said; empty where there was none."""

    name: str
    said: str = ""


# Ways in which it may be decided what training saves; BY_RULE_ALONE takes nothing from processes of other ways.
BY_RULE, BY_RULE_ALONE, RACED = "", "alone", "raced"


def way(mode: str | None) -> str:
    """The one in this mode."""
    with programs.in_mode(mode):
        if _is_deterministic():
            return BY_RULE_ALONE
        return RACED if is_asked() else BY_RULE


def is_asked() -> bool:
    """Whether what is compiled here is to have raced."""
    client = _session.session().client()
    is_tuned = programs.is_tuned() or (client is not None and client.setting("autotune.mode") == "max")
    return is_tuned and client is not None and not _is_deterministic()


def _is_deterministic() -> bool:
    client = _session.session().client()
    return torch.are_deterministic_algorithms_enabled() or (client is not None and client.setting("deterministic") == "true")


def choose(joint: fx.GraphModule, num_fwd_outputs: int, partitions: dict[str, Callable]) -> Choice:
    """The partition to take. partitions: by name, each gives (forward, backward) of the joint graph; the first is the rule's."""
    rule = Choice(next(iter(partitions)))
    try:
        if not is_asked() or place_of(joint.graph).name or not all(map(_is_pure, joint.graph.nodes)):
            return rule
        return _settled(joint, num_fwd_outputs, partitions) or rule
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        why = str(error) if isinstance(error, NotRaced) else f"{type(error).__name__}: {error}"
        _session.session().note_fallback("what training saves", f"not raced: {why}")
        _session.session().say("saving", f"what training saves is said by rule, not by a race: {why}")
        return rule


def _is_pure(node: fx.Node) -> bool:
    """Whether a sample step may run the node: nobody notices, and no other process takes part."""
    if node.op != "call_function":
        return node.op != "call_module"
    if (namespace := getattr(node.target, "namespace", None)) is not None:
        return namespace in ("aten", "prims") and not node.target._schema.is_mutable
    return node.target is operator.getitem or getattr(node.target, "__module__", "").startswith("kiln.")


# ---- records


def _settled(joint: fx.GraphModule, num_fwd_outputs: int, partitions: dict) -> Choice | None:
    """What the first race on this machine says; None where partitions do not differ."""
    key = key_of(joint, num_fwd_outputs)
    if (choice := _kept(key, partitions)) is not None:
        return choice
    session = _session.session()
    is_readonly = session.client().setting("cache.readonly") == "true"
    if is_readonly or waiting.meetings() != 0 or session.requires_hits or session.targets:
        return None
    with _alone():
        if (choice := _kept(key, partitions)) is not None:  # found while this one waited
            return choice
        record = _race(joint, num_fwd_outputs, partitions)
        if record is None:
            return None
        session.client().capture_put(key, json.dumps(record).encode(), entry_name("race of what is saved"))
        if (choice := _kept(key, partitions)) is None:
            raise NotRaced("the cache did not keep what the race found")
        return choice


def key_of(joint: fx.GraphModule, num_fwd_outputs: int) -> bytes:
    """What a choice is kept by: the joint graph, the machine with its threads, and who partitions."""
    numbers = {node: i for i, node in enumerate(joint.graph.nodes)}
    digest = hashlib.blake2b(digest_size=16)
    for node in joint.graph.nodes:
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: f"%{numbers[n]}")
        types = [(t.dtype, tuple(t.shape), t.stride(), t.device) for t in tensors_in(node.meta.get("val"))]
        digest.update(repr((node.op, _name_of(node.target), arguments, types)).encode())
    parts = ("saving", str(FORMAT), torch.__version__, machine(), str(num_fwd_outputs), digest.hexdigest())
    return "\0".join(parts).encode()


def _name_of(target) -> str:
    return str(target) if not callable(target) or hasattr(target, "_schema") else f"{target.__module__}.{target.__qualname__}"


def machine() -> str:
    """The processor, and the threads that programs have."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model} cores={os.cpu_count()} threads={torch.get_num_threads()}"


def _kept(key: bytes, partitions: dict) -> Choice | None:
    """What a record says; None where there is none, or one that cannot be read."""
    try:
        record = json.loads(_session.session().client().capture_get(key) or b"{}")
        by_rule, *_ = partitions
        known = {each["name"]: statistics.median(each["ms"]) for each in record["candidates"]}
        name = record["choice"]
        others = ", ".join(f"{known[each]:.2f} ms {each}" for each in known if each != name)
        said = f"{name}, {known[name]:.2f} ms a step ({others})"
        return Choice(name, said) if record["format"] == FORMAT and name in partitions and by_rule in known else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


# ---- the race


def _race(joint: fx.GraphModule, num_fwd_outputs: int, partitions: dict) -> dict | None:
    """A record; None where partitions do not differ, or only in what memory does not allow."""
    made = {name: divide() for name, divide in partitions.items()}
    rule, *others = made
    inputs = {n.name: n.meta["val"] for n in joint.graph.find_nodes(op="placeholder")}
    saved = {name: _saved(backward, inputs) for name, (_, backward) in made.items()}
    available = check.available_bytes(place_of(joint.graph))
    most_extra = min(MOST_EXTRA_BYTES, int(EXTRA_SHARE * available))
    others = [name for name in others if saved[name].keys() != saved[rule].keys()
              and (_bytes(saved[name]) - _bytes(saved[rule])) * instances() <= most_extra]  # fmt: skip
    if not others:
        return None
    (output,) = joint.graph.find_nodes(op="output")
    results = [t for n in output.all_input_nodes for t in tensors_in(n.meta.get("val"))]
    needed = _bytes(inputs) + sum(map(_bytes_of, results)) + max(_bytes(saved[name]) for name in (rule, *others))
    if MEMORY_FACTOR * needed > available:
        raise NotRaced(f"it may take {MEMORY_FACTOR * needed >> 20} MiB, {available >> 20} MiB are available")
    _session.session().counts["saving_races"] += 1
    with on_trial():
        steps = [Step(name, *made[name], num_fwd_outputs) for name in (rule, *others)]
        with _unnoticed():
            samples = {name: sample_like(value) for name, value in inputs.items()}
            for step in steps:
                step.take(samples)
            times = run_in_turns(steps)
    candidates = [{"name": name, "saved_bytes": _bytes(saved[name]), "ms": [1e3 * s for s in times[name]]} for name in times]
    return {"format": FORMAT, "choice": winner(times), "candidates": candidates, "load": os.getloadavg()[0]}


@contextlib.contextmanager
def _unnoticed():
    """Within, tensors are real and have no gradients, ops are as in the graph, and torch's generator may be drawn from."""
    with compat.adapter().real_mode(), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        yield


def _saved(backward: fx.GraphModule, inputs: dict) -> dict:
    """What lives on between forward and backward for the backward's sake, by name: a joint graph's inputs live anyway."""
    return {n.name: n.meta["val"] for n in backward.graph.find_nodes(op="placeholder") if n.name not in inputs}


def _bytes(values: dict) -> int:
    return sum(_bytes_of(t) for value in values.values() for t in tensors_in(value))


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.dtype.itemsize * span_of(tensor.shape, tensor.stride())


def sample_like(value) -> torch.Tensor:
    """A tensor of the value's type: integers are 0, an index of whatever is not empty, and conditions hold; of matrices and more
    dims elements are such that products keep their size; vectors, variances perhaps, are positive. Raises NotRaced."""
    if not isinstance(value, torch.Tensor):
        raise NotRaced(f"an input is a {type(value).__name__}")
    span, dtype = span_of(value.shape, value.stride()), value.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        memory = torch.full((span,), dtype is torch.bool, dtype=dtype)
    elif value.dim() < 2:
        memory = torch.rand(span).mul_(0.5).add_(0.5).to(dtype)
    else:
        memory = torch.rand(span).sub_(0.5).mul_((12 / max(1, value.shape[-1])) ** 0.5).to(dtype)
    return memory.as_strided(value.shape, value.stride())


class Step:
    """A forward and its backward, compiled, and sample tensors to run them on. Attributes: name."""

    def __init__(self, name: str, forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int) -> None:
        """Raises NotRaced where another process might have a program that this one has not."""
        self.name, self._num_fwd_outputs = name, num_fwd_outputs
        self._names, incoming = ([n.name for n in gm.graph.find_nodes(op="placeholder")] for gm in (forward, backward))
        (output,) = forward.graph.find_nodes(op="output")
        self._tangent_names = incoming[len(output.args[0]) - num_fwd_outputs :]
        ahead.begin(backward)
        with with_backward():
            self._forward = compile_graph(forward, ())
        self._backward = compile_graph(backward, ())
        for subgraph in (*self._forward.subgraphs, *self._backward.subgraphs):
            if isinstance(subgraph, EagerSubgraph) and not subgraph.is_final:
                raise NotRaced(f"a program of the partition '{name}' cannot be had: {subgraph.reason}")

    def take(self, samples: dict) -> None:
        """samples: of the joint graph's inputs, by name."""
        self._inputs, self._tangents = ([samples[name] for name in names] for names in (self._names, self._tangent_names))

    def seconds(self) -> float:
        """Of one step."""
        _drive_out()
        start = time.perf_counter()
        results = self._forward(list(self._inputs))
        forward = time.perf_counter() - start
        _drive_out()
        start = time.perf_counter()
        self._backward([*results[self._num_fwd_outputs :], *self._tangents])
        return forward + time.perf_counter() - start


def _drive_out() -> None:
    torch.ones(SWEPT_BYTES, dtype=torch.uint8)


def run_in_turns(steps: list[Step]) -> dict[str, list[float]]:
    """Seconds of each step's samples, by name, in pairs: one of each a turn, each turn beginning with another one."""
    times: dict[str, list[float]] = {step.name: [] for step in steps}
    for step in steps:
        step.seconds()  # memory is had, and code mapped
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and sum(map(sum, times.values())) > RACE_S:
            break
        first = turn % len(steps)
        for step in steps[first:] + steps[:first]:
            with _measuring():
                times[step.name].append(step.seconds())
    return times


def winner(times: dict[str, list[float]]) -> str:
    """The name of the fastest of those that beat the first, or the first."""
    rule, *others = times
    won = {}
    for name in others:
        _, median, most = statistics.quantiles([mine / its for mine, its in zip(times[name], times[rule])], n=4)
        if median <= 1 - GAIN and most < 1:
            won[name] = median
    return min(won, key=won.get, default=rule)


@contextlib.contextmanager
def _alone():
    """Within, no other process races in this cache, or it was waited for in vain, which raises NotRaced."""
    folder = pathlib.Path(_session.session().cache_directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # else the daemon's first act, which nobody may have started
    file = os.open(folder / "saving.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with _locked(file, SETTLED_S) as is_alone:
        if not is_alone:
            raise NotRaced(f"another process has been racing for {SETTLED_S:.0f} s")
        yield


@contextlib.contextmanager
def _measuring():
    """Within, nobody on this machine times or compiles, if that can be had."""
    try:
        file = os.open(_MEASURING, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield
        return
    with _locked(file, QUIET_S):
        yield


@contextlib.contextmanager
def _locked(file: int, seconds: float):
    """Gives whether this process has the file's lock, then until the end of the block; waits for so long. Closes the file."""
    until, is_held = time.monotonic() + seconds, False
    try:
        while not is_held:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_held = True
            except BlockingIOError:
                if time.monotonic() >= until:
                    break
                time.sleep(0.005)
        yield is_held
    finally:
        if is_held:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file, too
        os.close(file)


__all__ = ["BY_RULE", "BY_RULE_ALONE", "RACED", "Choice", "Step", "choose", "key_of", "run_in_turns", "sample_like", "way",
           "winner"]  # fmt: skip
