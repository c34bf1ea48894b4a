"""The first run of a program is checked against torch.

Whatever was wrong on the way from a captured graph to a program, its first call shows: the subgraph's fallback, torch's own
functions, runs on the same inputs, and outputs are compared. Subgraphs are pure: what draws random numbers or writes to a
tensor stays in torch, so both see the same inputs, and the caller sees one effect. Agreement is kept in the cache under the
program's key, so that no later process pays. Where they differ torch's result counts: the program is not used again, by any
process, until `kiln repro BUNDLE --lift` or `kiln warm` finds that it agrees.

Of a subgraph that has programs for many sizes the first ones are checked, and then ever fewer (is_due): they are made of one text.

Configured by client.check: first, never, or always.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import hashlib
import json
import math
import os
import pathlib
import platform
import random
import re
import tempfile
import threading
import weakref
from dataclasses import dataclass

import torch

from .. import _session
from . import compat
from .nodes import gives_view
from .place import Place
from .rows import row_of
from .tally import entry_name, is_on_trial, note_disturbance
from .tensors import span_of
from .text import DTYPES

# What a right program stays below, as a share of the element plus its tensor's root mean square; integers are exact.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# Where a difference is beyond it, torch's own sensitivity decides: results where inputs, and what each op gives, are changed
# by so many units in the last place, how much farther from them a right program may be, and how many more elements may jump
# (comparisons do).
PERTURBATION, ROUNDING, PERTURBED_RUNS, MARGIN = 4.0, 2.0, 4, 16.0
# Memory that a check may need, in times of the subgraph's inputs and outputs: torch's result and what it makes on the way.
MEMORY_FACTOR = 4
# What a check needed is given back to the system from so many bytes on: the allocator would keep it, in holes of its heap, and
# less is soon used again.
GIVEN_BACK_BYTES = 64 << 20
# Results are compared in pieces of about so many elements: on the host they lie in a core's cache; a device, which is asked for an
# answer after each, has enough to do.
PIECE, DEVICE_PIECE = 1 << 16, 1 << 24
# Bundles are written up to so many bytes each, and so many in all.
BUNDLE_BYTES, BUNDLES = 1 << 30, 16

WRONG_ADVICE = "torch's result counts; replay the bundle with `kiln repro` and report it"
WRONG, AGREED, UNKNOWN = "wrong", "agreed", "unknown"
# What became of a program's first run, besides: it was another process's, it is to come, it was not checked.
BEFORE, WAITING, SKIPPED = "before", "waiting", "skipped"
# There is no program: it is being built, or cannot be had (waiting.py).
BUILDING, FAILED = "building", "failed"


class Quarantined(Exception):
    """The program was found wrong by some process on this machine."""

    advice = WRONG_ADVICE


class Record:
    """What is known of one program: whether it agreed with torch. Kept in the cache under its key."""

    def __init__(self, program) -> None:
        """Programs of tests that cannot describe themselves have no key, and are not kept."""
        facts = json.loads(program.describe()) if hasattr(program, "describe") else {}
        self.name = f"check {facts['key']}" if "key" in facts else ""
        self._called = entry_name("check")
        self._plans = hashlib.blake2b("".join(facts.get("plans", ())).encode(), digest_size=16).hexdigest()

    def read(self) -> str:
        """Agreement holds for the very plans that agreed, a quarantine for the key."""
        if (writing := _writing.get(self.name)) is not None and writing.is_alive():
            writing.join()
        client = _session.session().client()
        if not self.name or client is None:
            return UNKNOWN
        state, _, plans = (client.capture_get(self.name.encode(), True) or b"").decode().partition(" ")
        return state if state == WRONG or (state == AGREED and plans == self._plans) else UNKNOWN

    def write(self, state: str) -> None:
        session = _session.session()
        client = session.client()
        if not self.name or client is None or session.is_check_unkept:
            return
        try:
            client.capture_put(self.name.encode(), f"{state} {self._plans}".encode(), self._called)
        except Exception as error:  # noqa: BLE001: without a daemon, each process checks for itself
            session.is_check_unkept = True
            session.note_fallback("check", f"not kept: {error}")

    def write_beside(self, state: str) -> None:
        """As write, but the caller does not wait for the daemon: read() does, and Python when it ends."""
        context = contextvars.copy_context()

        def write() -> None:
            context.run(self.write, state)
            _writing.pop(self.name, None)

        _writing[self.name] = thread = threading.Thread(target=write, name="kiln-check")
        try:
            thread.start()
        except RuntimeError:  # Python ends, or there are too many threads
            write()


_writing: dict[str, threading.Thread] = {}  # what is being kept of programs, by their records' names


@dataclass(frozen=True)
class Facts:
    """What a program was made of. Layouts are (dtype, shape, strides)."""

    text: str
    inputs: list
    outputs: list
    place: Place
    symbols: tuple = ()

    def bytes(self) -> int:
        """Of all inputs and outputs."""
        sizes = {name: dtype.itemsize for dtype, name in DTYPES.items()}
        return sum(sizes[dtype] * span_of(shape, strides) for dtype, shape, strides in (*self.inputs, *self.outputs))


def is_due(count: int, sizes: tuple) -> bool:
    """Whether the first run of a subgraph's count-th program, of one for each binding of its sizes, is checked: where the count is a
    power of two, and where a size is one of those that much treats apart."""
    return count & (count - 1) == 0 or min(sizes, default=2) < 2


# By name, of programs for many sizes: what was known of one when this process first looked. Its first runs for further sizes are
# checked where none had been before.
_known_of_many: dict[str, str] = {}


def on_first_run(owner, program, eager, facts: Facts, is_checked: bool = True, is_of_many: bool = False) -> None:
    """Sets owner.run, which takes and gives lists of tensors: the program, or something in its place that checks it first, where
    it is one that is checked (is_due); `eager` gives torch's results. owner.check says what became of that. is_of_many: the program
    is one of those that a program for many sizes gives, whose key they share. Raises Quarantined."""
    session = _session.session()
    owner.run, owner.check = program, SKIPPED
    if session.check == "never" or (is_of_many and not is_checked and session.check == "first" and not session.is_forced):
        return
    record = Record(program)
    state = record.read()
    if is_of_many and state != WRONG:
        state = _known_of_many.setdefault(record.name, state)
    if state == WRONG and not session.is_forced:
        raise Quarantined(f"it did not agree with torch when it first ran; `kiln repro` replays that ({record.name})")
    if is_on_trial():
        return
    if not is_checked and session.check == "first" and state == UNKNOWN and not session.is_forced:
        return
    owner.check = BEFORE
    if session.check == "always" or state != AGREED or session.is_forced:
        owner.check = WAITING
        owner.run = Checked(owner, program, eager, facts, record, session.check == "always")


def with_rows_choice(op, arguments: tuple, keywords: dict):
    """What the op gives: of several right results that which its row gives, as of the places of equal elements."""
    return (row_of(op).settled or op)(*arguments, **keywords)


def by_torch(eager, facts: Facts, tensors: list, step=with_rows_choice) -> list | None:
    """What a first run is compared with: each op as `step` gives it. None, and it is said, when memory does not allow it."""
    needed, available = MEMORY_FACTOR * facts.bytes(), available_bytes(facts.place)
    if needed > available:
        _session.session().say("check memory", f"a program is not checked against torch: that may take "
                               f"{needed >> 20} MiB, {available >> 20} MiB are available")  # fmt: skip
        return None
    with torch.no_grad(), intercepted(step):
        return eager(tensors)


class Checked:
    """A program beside torch, until they agreed, or `always`. Once they do not, torch's results count.

    Threading: any; two first calls at once are both checked."""

    def __init__(self, owner, program, eager, facts: Facts, record: Record, always: bool) -> None:
        self._owner, self.program, self._eager, self._facts = weakref.ref(owner), program, eager, facts
        self._record, self._always, self._kept = record, always, False

    def __call__(self, tensors: list, targets: list | None = None) -> list:
        """Outputs are made apart from inputs, which both need: where `targets` are is not looked at."""
        session = _session.session()
        note_disturbance()
        try:
            wanted = by_torch(self._eager, self._facts, tensors)
        except IndexError:
            return self.program(tensors)  # raises the same, and is looked at again on the next call
        except Exception as error:  # noqa: BLE001: no reason to stop
            session.say("check", f"a program could not be checked against torch: {error}")
            wanted = None
        if wanted is None:
            self._settle(self.program, SKIPPED)
            return self.program(tensors)
        return self.compared(tensors, wanted)

    def compared(self, tensors: list, wanted: list) -> list:
        """The outputs, where they agree with torch's, which are wanted, and let go of; else those."""
        session = _session.session()
        got = self.program(tensors)
        difference = differ(got, wanted, lambda: self._by_torch_otherwise_rounded(tensors))
        _factors.cache_clear()  # they are megabytes, and a job has few checks
        session.counts["checked"] += 1
        if difference:
            self._reject(difference, tensors, wanted, got)
            return wanted
        self._agree()
        wanted.clear()
        if MEMORY_FACTOR * self._facts.bytes() >= GIVEN_BACK_BYTES:
            give_back_memory()
        return got

    def _by_torch_otherwise_rounded(self, tensors: list) -> list:
        with intercepted(rounded_otherwise):
            return by_torch(self._eager, self._facts, _perturbed(tensors))

    def _settle(self, function, check: str) -> None:
        """From now on the owner runs the function; nothing of this remains in the way."""
        if (owner := self._owner()) is not None:
            owner.run, owner.check = function, check

    def _agree(self) -> None:
        self._settle(self if self._always else self.program, AGREED)
        if not self._kept:
            self._kept = True
            self._record.write_beside(AGREED)

    def _reject(self, difference: str, tensors: list, wanted: list, got: list) -> None:
        session = _session.session()
        self._settle(self._eager, WRONG)
        session.counts["checks_failed"] += 1
        self._record.write(WRONG)
        bundle = _write_bundle(self._facts, self._record, difference, tensors, wanted, got)
        session.note_fallback("subgraph", f"did not agree with torch: {difference}; {bundle}")
        session.say(f"wrong {self._record.name}", f"a program did not agree with torch, whose result counts; it is not used "
                    f"again: {difference}; {bundle}")  # fmt: skip


def differ(got: list, wanted: list, again) -> str | None:
    """How results differ beyond what rounding explains; again() gives torch's results for inputs that hardly differ."""
    suspects = [i for i, (mine, torchs) in enumerate(zip(got, wanted, strict=True)) if not _agree(mine, torchs)]
    if not suspects:
        return None
    noises = {i: torch.zeros_like(wanted[i], dtype=torch.float32) for i in suspects}
    try:
        for _ in range(PERTURBED_RUNS):
            results = again()
            for i in suspects:
                if _is_alike(results[i], wanted[i]):
                    _raise(noises[i], results[i], wanted[i])
            # Noise only grows, so what agrees once does so for good.
            suspects = [i for i in suspects if not _agree(got[i], wanted[i], noises[i])]
            if not suspects:
                return None
    except Exception:  # noqa: BLE001, S110: torch cannot say, so nothing excuses the difference
        pass
    return f"output {suspects[0]}, {describe(wanted[suspects[0]])}, {_said(got[suspects[0]], wanted[suspects[0]])}"


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _agree(mine: torch.Tensor, torchs: torch.Tensor, noise: torch.Tensor | None = None) -> bool:
    """noise: how far torch's own results go, of each element."""
    if not _is_alike(mine, torchs):
        return False
    if torch.equal(mine, torchs):
        return True
    tolerance, scale = _tolerance(torchs), _scale(torchs)
    if noise is None:
        return scale is not None and all(_is_near(a, b, tolerance, scale) for a, b in _pieces(mine, torchs))
    beyond, jumps, farthest, loudest = 0, 0, 0.0, 0.0
    for a, b, near in _pieces(mine, torchs, noise):
        error = _error(a, b, scale)
        beyond += int((error > tolerance + MARGIN * near).sum())
        jumps += int((near > tolerance).sum())
        farthest, loudest = max(farthest, float(error.max())), max(loudest, float(near.max()))
    return beyond == 0 or (beyond <= MARGIN * jumps and farthest <= MARGIN * loudest)


def _raise(noise: torch.Tensor, other: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = _scale(wanted)
    for near, a, b in _pieces(noise, other, wanted):
        near.copy_(torch.maximum(near, _error(a, b, scale)))


def _is_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _tolerance(tensor: torch.Tensor) -> float:
    return TOLERANCE.get(tensor.dtype, 0.0)


def _pieces(*tensors: torch.Tensor):
    """Tensors of one shape, cut alike along its longest dim: what is made of a piece is small beside what it is of."""
    shape = tensors[0].shape
    if not shape:
        return iter([tensors])
    dim = max(range(len(shape)), key=shape.__getitem__)
    count = max(1, -(-tensors[0].numel() // (PIECE if tensors[0].device.type == "cpu" else DEVICE_PIECE)))
    return zip(*(tensor.detach().chunk(count, dim) for tensor in tensors))


def _scale(torchs: torch.Tensor) -> float | None:
    """The root mean square, of which errors are a share besides; those of integers are of none."""
    if not torchs.is_floating_point():
        return None
    return math.sqrt(sum(_squares(piece) for (piece,) in _pieces(torchs)) / max(1, torchs.numel()))


def _squares(piece: torch.Tensor) -> float:
    """Of its finite elements, the sum."""
    norm = float(torch.linalg.vector_norm(piece, dtype=torch.float64))
    return norm**2 if math.isfinite(norm) else float(_finite(piece.double()).square().sum())


def _is_near(mine: torch.Tensor, torchs: torch.Tensor, tolerance: float, scale: float) -> bool:
    """Whether no error of a piece is beyond the tolerance, in few passes; _error() says each."""
    wide = torch.promote_types(mine.dtype, torch.float32)
    a, b = mine.to(wide), torchs.to(wide)
    near = (a - b).abs_() <= b.abs().mul_(tolerance).add_(tolerance * scale)
    return bool(near.all()) or bool((_error(mine, torchs, scale) <= tolerance).all())


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isfinite(), values, 0.0)


def _error(mine: torch.Tensor, torchs: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Of each element of a piece, as a share of it and the scale of the whole."""
    a, b = mine.double(), torchs.double()
    error = (a - b).abs()
    if scale is not None:
        error /= (_finite(b).abs() + scale).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, error).nan_to_num(nan=torch.inf)


def _said(mine: torch.Tensor, torchs: torch.Tensor) -> str:
    if not _is_alike(mine, torchs):
        return f"is {describe(mine)}"
    scale, count, farthest = _scale(torchs), 0, 0.0
    for a, b in _pieces(mine, torchs):
        error = _error(a, b, scale)
        count, farthest = count + int((error > _tolerance(torchs)).sum()), max(farthest, float(error.max()))
    return f"{count} elements differ, by up to {farthest:.2g} of their scale"


def _perturbed(tensors: list) -> list:
    """The tensors, floating ones changed in their last places; torch's generator is left alone."""
    return [_perturb(t) if t.is_floating_point() and t.numel() else t for t in tensors]


def intercepted(run):
    """A context in which `run` takes the place of each op, where this torch lets one look at them."""
    try:
        return compat.adapter().OpInterceptor(run)
    except compat.adapter().NotAvailable:
        return contextlib.nullcontext()


def rounded_otherwise(op, arguments: tuple, keywords: dict):
    """What the op gives, as if it had been rounded otherwise: operands that cancel no longer do so exactly. What changes an operand
    gives that operand, whatever is returned here."""
    result = op(*arguments, **keywords)
    if gives_view(op) or not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    is_shared = any(isinstance(a, torch.Tensor) and a.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
                    for a in (*arguments, *keywords.values()))  # fmt: skip
    is_packed = span_of(result.shape, result.stride()) == result.numel()  # no elements that share memory, and no gaps
    if not op._schema.is_mutable and (is_shared or not is_packed):
        result = result.clone(memory_format=torch.contiguous_format)
    _multiply(_memory_of(result), _factors(result.device, result.dtype, ROUNDING, False))
    return result


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """From the first element to the last, whatever its strides."""
    return tensor.detach().resolve_neg().as_strided((span_of(tensor.shape, tensor.stride()),), (1,))


def _multiply(memory: torch.Tensor, factors: torch.Tensor) -> None:
    """In place, by factors that come again and again from a place at random on."""
    first = _random().randrange(len(factors))
    for begin in range(-first, len(memory), len(factors)):
        piece = memory[max(begin, 0) : begin + len(factors)]
        piece.mul_(factors[max(-begin, 0) :][: len(piece)])


@functools.cache
def _factors(device: torch.device, dtype: torch.dtype, units: float, is_all_or_nothing: bool) -> torch.Tensor:
    """1, and up to so many units in the last place more or less, at random. Their count is prime, so that few tensors' rows
    meet the same again."""
    changes = torch.rand(999983, generator=torch.Generator().manual_seed(0)) * 2 - 1
    if is_all_or_nothing:
        changes = (1.5 * changes).round()
    return 1 + (changes * (units * torch.finfo(dtype).eps)).to(device, dtype)


@functools.cache
def _random() -> random.Random:
    """Not Python's own, which is left alone, as torch's is."""
    return random.Random(0)  # noqa: S311: nothing is kept secret by it


def _perturb(tensor: torch.Tensor) -> torch.Tensor:
    """In the tensor's strides; but elements that share memory have their own, or what cancels because of that, as a row of
    equal elements less its mean, would cancel again."""
    if span_of(tensor.shape, tensor.stride()) < tensor.numel():
        tensor = tensor.detach().contiguous()
    changed = _memory_of(tensor).clone()
    _multiply(changed, _factors(changed.device, changed.dtype, PERTURBATION, True))
    return changed.as_strided(tensor.shape, tensor.stride())


def give_back_memory() -> None:
    """What the C library's allocator holds free goes back to the system, where the library can be told so."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def available_bytes(place: Place) -> int:
    if place.device.type == "cuda":
        return torch.cuda.mem_get_info(place.device)[0]
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        free.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):  # a container's; "max" is none
        most, used = (int((pathlib.Path("/sys/fs/cgroup") / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(most - used)
    return min(free)


def _write_bundle(facts: Facts, record: Record, difference: str, tensors: list, wanted: list, got: list) -> str:
    """For `kiln repro`; what to tell the user of it."""
    from .. import _kiln

    try:
        folder = _bundle_folder()
        files = {}
        if facts.bytes() <= BUNDLE_BYTES:
            for name, group, layouts in (("input", tensors, facts.inputs), ("torch", wanted, facts.outputs),
                                         ("kiln", got, facts.outputs)):  # fmt: skip
                files[name] = [_write(folder / f"{name}_{i}.bin", tensor, layout[2])
                               for i, (tensor, layout) in enumerate(zip(group, layouts))]  # fmt: skip
        (folder / "graph.kiln").write_text(facts.text)
        names = re.search(r" symbols\(([^)]*)\)", facts.text)
        symbols = dict(zip(names[1].split(", "), facts.symbols)) if names else {}
        versions = {"kiln": _kiln.version(), "torch": torch.__version__, "python": platform.python_version(),
                    "machine": platform.machine()}  # fmt: skip
        (folder / "bundle.json").write_text(json.dumps({
            "said": difference, "record": record.name, "symbols": symbols, "versions": versions,
            "inputs": files.get("input", []), "torch": files.get("torch", []), "kiln": files.get("kiln", []),
        }, indent=1))  # fmt: skip
        return f"kiln repro {folder}"
    except Exception as error:  # noqa: BLE001: the result is right without it
        return f"no bundle was written: {error}"


def _bundle_folder() -> pathlib.Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = pathlib.Path(state, "kiln", "repro")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sum(1 for _ in folder.iterdir()) >= BUNDLES:
        raise OSError(f"{folder} has {BUNDLES} bundles already")
    return pathlib.Path(tempfile.mkdtemp(prefix="bundle-", dir=folder))


def _write(path: pathlib.Path, tensor: torch.Tensor, strides: tuple) -> str:
    """All bytes from the first element to the last, in these strides."""
    tensor = tensor.detach().cpu()
    if tensor.stride() != strides or tensor.is_neg():
        memory = torch.zeros(span_of(tensor.shape, strides), dtype=tensor.dtype)
        tensor = memory.as_strided(tensor.shape, strides).copy_(tensor)
    path.write_bytes(ctypes.string_at(tensor.data_ptr(), span_of(tensor.shape, strides) * tensor.element_size()))
    return path.name
