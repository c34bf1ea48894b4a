"""kiln.compile: a model's repeated blocks are captured once, and captures are kept between processes.

torch.compile traces every layer of a model in every process. Here each class of repeated block has one capture (an
entry function compiled by Dynamo, with its guards), installed on every instance; what is not repeated, embedding, head
and loss, has captures of its own. Captures lie in Kiln's cache: the next process installs them and skips Dynamo and
AOTAutograd. Guards are evaluated on each call as always; a miss is captured again, so nothing stale ever runs.
"""

from __future__ import annotations

import hashlib
import inspect
import sys

import torch

from . import _session
from .torch import compat
from .torch.entry import compile_or_eager
from .torch.joint import partition_joint


def call_module(module, arguments, keywords):
    return module._call_impl(*arguments, **keywords)


def call_function(function, arguments, keywords):
    return function(*arguments, **keywords)


def compile(model: torch.nn.Module) -> torch.nn.Module:  # noqa: A001: the name users look for
    """Compiles `model` in place and returns it: its blocks run in Kiln, whatever calls them.

    Captured when first run, in each situation (training or not, shapes); kept for the next process. What cannot be
    captured this way is compiled by torch.compile(backend="kiln"), and one line says so. KILN_DISABLE=1 changes nothing.
    """
    if _session.disabled():
        return model
    try:
        packages = compat.packages()
    except compat.NotAvailable as error:
        _session.session().say("regional", f"torch {torch.__version__} is compiled by torch.compile instead: {error}")
        model.compile(backend="kiln")
        return model
    for gradient in model.parameters():
        gradient.grad = None
    for entry in find_entries(model):
        entry.install(packages)
    return model


class Entry:
    """Modules, or one function, that share a capture."""

    def __init__(self, role: str, modules: list, owner=None) -> None:
        self.role, self.modules, self.owner = role, modules, owner
        self._capture, self._key = None, self._make_key()

    def _make_key(self) -> bytes:
        """What decides whether an earlier capture is worth looking at; its guards decide whether it fits."""
        first = self.modules[0]
        target = type(first) if isinstance(first, torch.nn.Module) else first
        parts = [self.role, target.__module__, target.__qualname__, _source(target), torch.__version__, sys.version]
        if isinstance(first, torch.nn.Module):
            parts.append(repr(signature(first)))
        return "\0".join(parts).encode()

    def install(self, packages) -> None:
        name = f"{self.role}_{hashlib.blake2b(self._key, digest_size=8).hexdigest()}"
        is_module = isinstance(self.modules[0], torch.nn.Module)
        call = call_module if is_module else call_function
        self._capture = self._start(packages, name, call)
        if is_module:
            for module in self.modules:
                module._compiled_call_impl = _Bound(self, module)
        else:
            setattr(self.owner, self.role, _Bound(self, self.modules[0]))

    def _start(self, packages, name: str, call):
        saved = _load(self._key)
        for attempt in (saved, None) if saved is not None else (None,):
            capture = packages.Capture(name, call, compile_or_eager, partition_joint)
            try:
                capture.start(attempt)
                return capture
            except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                if attempt is None:
                    raise
                _session.session().note_fallback(f"capture of {self.role}", f"{type(error).__name__}: {error}")
        raise AssertionError("not reached")

    def run(self, target, arguments: tuple, keywords: dict):
        result = self._capture(target, arguments, keywords)
        if self._capture.changed:
            self._save()
        return result

    def _save(self) -> None:
        session = _session.session()
        try:
            session.client().capture_put(self._key, self._capture.save())
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            self._capture.changed = False
            session.note_fallback(f"capture of {self.role}", f"not kept: {type(error).__name__}: {error}")


class _Bound:
    """An entry on one module or function. Not a closure, so that modules stay picklable and copyable."""

    def __init__(self, entry: Entry, target) -> None:
        self._entry, self._target = entry, target

    def __call__(self, *arguments, **keywords):
        return self._entry.run(self._target, arguments, keywords)


def _load(key: bytes) -> bytes | None:
    client = _session.session().client()
    try:
        return None if client is None else client.capture_get(key)
    except Exception:  # noqa: BLE001: Kiln never makes its caller fail
        return None


def _source(target) -> str:
    try:
        return hashlib.sha256(inspect.getsource(target).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def signature(module: torch.nn.Module) -> tuple:
    """Names, shapes and dtypes of all parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return tuple((name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors)


def find_entries(model: torch.nn.Module) -> list[Entry]:
    """Repeated siblings share an entry; every largest module without any has one; a loss function too.

    What remains is glue: the forwards of the modules that hold the blocks, which run in Python as always."""
    blocks = repeated_blocks(model)
    held = {module for group in blocks for module in group}
    entries = [Entry("block", group) for group in blocks]
    entries += [Entry("part", [module]) for module in _parts(model, held)]
    loss = getattr(model, "loss_function", None) if held else None
    if callable(loss) and not isinstance(loss, torch.nn.Module) and hasattr(type(model), "loss_function"):
        entries.append(Entry("loss_function", [loss], model))
    return entries


def repeated_blocks(model: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """Groups of two or more siblings of one class with the same parameters, the outermost first."""
    groups: list[list[torch.nn.Module]] = []
    pending = [model]
    while pending:
        parent = pending.pop(0)
        alike: dict[tuple, list] = {}
        for child in parent.children():
            alike.setdefault((type(child), signature(child)), []).append(child)
        for (_, parameters), modules in alike.items():
            if len(modules) >= 2 and parameters and any(True for _ in modules[0].children()):
                groups.append(modules)
            else:
                pending.extend(modules)
    return groups


def _parts(module: torch.nn.Module, blocks: set) -> list[torch.nn.Module]:
    if module in blocks:
        return []
    if not any(child in blocks for child in module.modules()):
        return [] if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)) else [module]
    return [part for child in module.children() for part in _parts(child, blocks)]
