"""Packed copies of weights: made once, found by tensor, and shared by the processes of a machine.

A copy holds for a tensor as it was: torch counts in-place changes of a tensor (`_version`), and while a copy is there its tensor's
memory is held, so that no other can lie at the same address. What changed is packed again. What torch does not count, writes by
way of `.data` or of NumPy, is not seen.

A copy lies in a file of the cache, which is mapped: its pages are those of all processes. Its name says what it was packed of, its
head what it holds, and both are checked when it is mapped. Files come to be by a rename; those not in use for longest go first
when there is no room. A file that is cut while it is mapped ends the process, as with any file of weights that is mapped.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import pathlib
import stat
import tempfile
import weakref

import torch

from .. import _session
from .panels import Panels

# So many changes from one call to the next, and a tensor is packed only when it is met again as it was.
MOST_CHANGES = 8
# What all files of packed weights of a cache may take.
MOST_BYTES = 4 << 30
HEAD_BYTES = mmap.PAGESIZE
MAGIC = b"kiln panels 1\n"


class _Known:
    """A tensor as it was when it was last given, and its packed copies."""

    def __init__(self, tensor: torch.Tensor, changes: int) -> None:
        self.reference = weakref.ref(tensor, functools.partial(_forget, id(tensor)))
        self.state, self.changes = _state_of(tensor), changes
        self.memory, self.was_met_again = tensor.detach(), False
        self.copies: dict[Panels, torch.Tensor] = {}


_known: dict[int, _Known] = {}  # by id


def _forget(key: int, reference: weakref.ref) -> None:
    known = _known.get(key)
    if known is not None and known.reference is reference:
        del _known[key]


def _state_of(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride()


def copy_of(tensor: torch.Tensor, panels: Panels) -> torch.Tensor | None:
    """The tensor packed; None for what is no parameter, and for one that changes from call to call."""
    if not isinstance(tensor, torch.nn.Parameter) or tensor.is_inference():
        return None
    known = _known.get(id(tensor))
    if known is None or known.reference() is not tensor:
        known = _known[id(tensor)] = _Known(tensor, 0)
    elif known.state != _state_of(tensor):
        known = _known[id(tensor)] = _Known(tensor, 0 if known.was_met_again else known.changes + 1)
    else:
        known.was_met_again = True
    if known.changes >= MOST_CHANGES and not known.was_met_again:
        return None
    if panels not in known.copies:
        known.copies[panels] = _shared(known.memory, panels)
    return known.copies[panels]


def _shared(weight: torch.Tensor, panels: Panels) -> torch.Tensor:
    """The weight packed, in a file's pages; in memory of its own where there can be no file."""
    counts = _session.session().counts
    said = repr((panels, weight.dtype)).encode()
    name = hashlib.sha256(said + b"\0" + hashlib.sha256(_bytes_of(weight)).digest()).hexdigest()
    path = pathlib.Path(_session.session().cache_directory, "weights", name)
    copy = _mapped(path, panels, weight.dtype)
    if copy is not None:
        counts["weights_mapped"] += 1
        return copy
    packed = panels.pack(weight)
    counts["weights_packed"] += 1
    try:
        _write(path, packed)
        copy = _mapped(path, panels, weight.dtype)
    except OSError as error:
        _session.session().say("packed weights", f"packed weights are not shared: {error}")
    return packed if copy is None else copy


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())


def _mapped(path: pathlib.Path, panels: Panels, dtype: torch.dtype) -> torch.Tensor | None:
    """What the file holds, unless there is none, or anything about it is not as it was written."""
    count = panels.rows * panels.columns
    size = HEAD_BYTES + count * dtype.itemsize
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(file, "rb") as reader:
        facts = os.fstat(file)
        is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
        if not is_ours or facts.st_size != size:
            return None
        # Writable as far as torch knows, and written to by nobody: so the pages are the file's.
        memory = mmap.mmap(reader.fileno(), size, access=mmap.ACCESS_COPY)
        if memory[: len(MAGIC) + 32] != MAGIC + hashlib.sha256(memoryview(memory)[HEAD_BYTES:]).digest():
            return None
        os.utime(file)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=HEAD_BYTES).reshape(panels.shape)


def _write(path: pathlib.Path, packed: torch.Tensor) -> None:
    """In place of what was there. Raises OSError."""
    data = _bytes_of(packed)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _make_room(path.parent, HEAD_BYTES + len(data))
    file, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(file, "wb") as writer:
            writer.write((MAGIC + hashlib.sha256(data).digest()).ljust(HEAD_BYTES, b"\0"))
            writer.write(data)
        os.rename(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _make_room(folder: pathlib.Path, needed: int) -> None:
    """Lets the files go that were not mapped for longest, until there is room for one more. Raises OSError where there is none."""
    if needed > MOST_BYTES:
        raise OSError(f"one has {needed} bytes, all may have {MOST_BYTES}")
    files = sorted(((entry.stat(follow_symlinks=False), entry.path) for entry in os.scandir(folder)), key=lambda f: f[0].st_mtime)
    total = needed + sum(facts.st_size for facts, _ in files)
    for facts, path in files:
        if total <= MOST_BYTES:
            return
        total -= facts.st_size
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


__all__ = ["copy_of"]
