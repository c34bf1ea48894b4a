"""kiln.compile: a model's repeated blocks are captured once, and captures are kept between processes.

torch.compile traces every layer of a model in every process. Here each class of repeated block has one capture (an
entry function compiled by Dynamo, with its guards), installed on every instance; what is not repeated, embedding, head
and loss, has captures of its own; ops that run between captures go to programs of their own (torch/between.py). Captures
lie in Kiln's cache: the next process installs them and skips Dynamo and AOTAutograd. Guards are evaluated on each call as
always; a miss is captured again, so nothing stale ever runs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import sys
import types
import weakref

import torch

from . import _session
from .torch import captures
from .torch.between import Between, run_capture
from .torch.described import OURS, RUN, Describer, describe_module, given, name_of
from .torch.entry import backend, compile_or_eager, deadline_of, is_freezing_in
from .torch.joint import partition_joint
from .torch.panels import freezing
from .torch.programs import in_mode, waiting_at_most
from .torch.saving import BY_RULE, RACED, way
from .torch.tally import entry_name, tally_of


def call_module(module, arguments, keywords):
    return module._call_impl(*arguments, **keywords)


def call_function(function, arguments, keywords):
    return function(*arguments, **keywords)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How something is to be compiled: what torch.compile calls so, but for the deadline, its option of Kiln's backend."""

    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    deadline_ms: int = 0
    freezing: bool = False

    def of_torch(self) -> dict:
        """The arguments of torch.compile that say the same."""
        by_kiln = functools.partial(backend, mode=self.mode, options={"deadline_ms": self.deadline_ms, "freezing": self.freezing})
        return {"backend": by_kiln, "dynamic": self.dynamic, "fullgraph": self.fullgraph}


def compile(target=None, *, mode: str | None = None, dynamic: bool | None = None, fullgraph: bool = False,  # noqa: A001: the name
            options: dict | None = None):  # fmt: skip
    """Compiles a model in place and returns it: its blocks run in Kiln, whatever calls them. Of an optimizer, its step
    (optimizer.py). Of a function or method, a function that does the same; without a target, a decorator.

    Captured when first run, in each situation (training or not, shapes); kept for the next process. What cannot be
    captured this way is compiled by torch.compile(backend="kiln"), and one line says so. KILN_DISABLE=1 changes nothing.
    mode: as torch.compile's; "max-autotune" waits until candidates for matrix products and attention have raced here.
    dynamic: as torch.compile's; True captures extents as symbols at once, None from the second size on, False never.
    fullgraph: what breaks the graph of a block, or of the function, raises torch's error. options: as the backend's.
    Raises nothing of its own.
    """
    if target is None:
        return functools.partial(compile, mode=mode, dynamic=dynamic, fullgraph=fullgraph, options=options)
    if _session.disabled():
        return target
    settings = Settings(mode, dynamic, fullgraph, deadline_of(options), is_freezing_in(options))
    if isinstance(target, torch.optim.Optimizer):
        from .optimizer import compile_optimizer

        return compile_optimizer(target, mode)
    return compile_model(target, settings) if isinstance(target, torch.nn.Module) else compile_function(target, settings)


def compile_model(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    try:
        packages = captures.adapter()
        entries = find_entries(model, settings)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        known = isinstance(error, captures.NotAvailable)
        what = f"torch {torch.__version__}" if known else name_of(type(model))
        cause = str(error) if known else f"{type(error).__name__}: {error}"
        _session.session().say(what, f"{what} is compiled by torch.compile instead: {cause}")
        model.compile(**settings.of_torch())
        return model
    for entry in entries:
        entry.start(packages)
        entry.place()
    if not any(model in entry.modules for entry in entries):
        model._compiled_call_impl = _Whole(model, settings)
    return model


def compile_function(function, settings: Settings):
    """A function that does what `function` does; of a bound method a method of the same object."""
    function = given(function)  # compiled anew, with these settings
    if isinstance(function, types.MethodType):
        return types.MethodType(compile_function(function.__func__, settings), function.__self__)
    try:
        bound = _bound(function, settings)
    except Exception:  # noqa: BLE001: Kiln never makes its caller fail
        return torch.compile(function, **settings.of_torch())

    @functools.wraps(function)
    def compiled(*arguments, **keywords):
        return bound(*arguments, **keywords)

    setattr(compiled, OURS, bound)
    return compiled


class Entry:
    """Modules, or one function, that share a capture."""

    def __init__(self, role: str, modules: list, describer: Describer, settings: Settings, owner=None) -> None:
        self.role, self.modules, self.owner = role, modules, owner
        first = modules[0]
        self._call = call_module if isinstance(first, torch.nn.Module) else call_function
        self._settings = settings
        self._key, self._code = self._make_key(describer), _code_of(first)
        self.run = self._run_captured  # then, where that cannot be, _run_compiled, then _call; _run_left where it does nothing
        self._left_modes: set[tuple] = set()
        self._capture = self._own = None
        self._reference = weakref.ref(self)
        self._left: list[str] = []  # why it has no captures

    def _make_key(self, describer: Describer) -> bytes:
        """What decides whether an earlier capture is worth looking at; its guards, and what it says of the code that it was
        made of, decide whether it fits."""
        first = self.modules[0]
        if isinstance(first, torch.nn.Module):
            said = [name_of(type(first)), describe_module(first, describer).hex(), repr(signature(first))]
        else:
            said = [name_of(first), describer.lenient(first).hex()]
        session = _session.session()
        said += [repr(self._settings.dynamic), repr(self._settings.freezing)]
        said += [session.random, session.convolution, session.attention]
        return "\0".join([self.role, *said, torch.__version__, sys.version, _importer()]).encode()

    def start(self, packages) -> None:
        """Before its first run."""
        self._packages = packages
        try:
            self._capture = self._start()
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            self._leave_captures(error)

    def start_later(self, packages) -> None:
        """When first run: a function that is decorated has its name only later, and may call what is defined later still."""
        self._packages, self.run = packages, self._run_first

    def _run_first(self, target, arguments: tuple, keywords: dict):
        self._key, self.run = self._make_key(Describer()), self._run_captured
        self.start(self._packages)
        return self.run(target, arguments, keywords)

    def place(self) -> None:
        """Has its modules, or its owner, call it."""
        for target in self.modules:
            if self.owner is None:
                target._compiled_call_impl = _Bound(self, target)
            else:
                setattr(self.owner, self.role, _Bound(self, target))

    def _start(self):
        """This process's capture of the key, or the saved one, or a new one. Its name, which its bytecode has, is the key's."""
        self._name = f"{self.role}_{hashlib.blake2b(self._key, digest_size=8).hexdigest()}"
        settings = self._settings
        shared = self._key, settings
        if shared in _captures:
            return _captures[shared]
        saved = None if _session.session().targets else self._stored()  # a kept graph is not split anew for targets
        # These outlive this entry.
        compiler, partition = (functools.partial(_run_in, settings, f) for f in (compile_or_eager, partition_joint))
        for attempt in (saved, None) if saved is not None else (None,):
            capture = self._packages.Capture(self._name, self._call, compiler, partition, self.modules)
            try:
                with in_mode(settings.mode):
                    capture.start(attempt, settings.dynamic, settings.fullgraph)
            except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                if attempt is None:
                    raise
                _session.session().note_fallback(f"capture of {self.role}", f"{type(error).__name__}: {error}")
            else:
                self._note_loaded(capture)
                _captures[shared] = capture
                return capture
        raise AssertionError("not reached")

    def _kept_as(self, way: str) -> bytes:
        """The key of captures whose forwards save what they do in this way."""
        return self._key + b"\0" + way.encode() if way else self._key

    def _stored(self) -> bytes | None:
        """Where nothing races and there is no capture, that of processes in which something did."""
        own = way(self._settings.mode)
        ways = (own, RACED) if own == BY_RULE else (own,)
        kept = (_stored(self._kept_as(each), fetches) for fetches in (False, True) for each in ways)
        return next((data for data in kept if data is not None), None)

    def _note_loaded(self, capture) -> None:
        _session.session().counts["captures_loaded"] += capture.loaded
        for why in capture.refused:
            _session.session().note_fallback(f"capture of {self.role}", f"not loaded: {why}")

    def _start_again(self) -> None:
        """After methods were replaced on a class, which Dynamo does not guard."""
        first = self.modules[0]
        before, self._key, self._code = self._key, self._make_key(Describer()), _code_of(first)
        if self._key != before:
            self._capture = self._start()

    def _run_captured(self, target, arguments: tuple, keywords: dict):
        try:
            for kind, name, value in self._code:  # on each call: a generator would cost more than what it does here
                if vars(kind).get(name) is not value:
                    self._start_again()
                    break
            self._capture.user = self._reference
            result = self._capture(target, arguments, keywords)
        except Exception as raised:  # noqa: BLE001: whose it is, is looked at next
            if not self._packages.is_torchs_own(raised) or self._breaks(raised):
                raise
            error = raised
        else:
            if self._capture.changed:
                self._save()
            if self._capture.is_torchs:
                self._left_modes.add(_mode_of(target))
                self.run = self._run_left
            return result
        result = self._call(target, arguments, keywords)  # if the caller is at fault, this raises what torch raises
        self._leave_captures(error)
        return result

    def _breaks(self, error: Exception) -> bool:
        """Whether it is what the user wants to know of: why this is not one graph."""
        return self._settings.fullgraph and self._packages.breaks_graph(error)

    def _run_left(self, target, arguments: tuple, keywords: dict):
        """In modes in which all graphs are torch's: as without Kiln, which would do next to nothing there (split.py)."""
        run = self._call if _mode_of(target) in self._left_modes else self._run_captured
        return run(target, arguments, keywords)

    def _leave_captures(self, error: Exception) -> None:
        """From now on by torch.compile, in each process."""
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        _session.session().note_fallback(f"capture of {self.role}", why)
        self._left.append(f"captured, but compiled by torch.compile: {why}")
        _session.session().say(self._name, f"a {self.role} is compiled by torch.compile instead: {why}")
        code = self._call.__code__.replace(co_name=f"{self._name}_compiled")
        own = types.FunctionType(code, self._call.__globals__)  # Dynamo counts and caches by code object
        self._own, self._compiled = own, torch.compile(own, **self._settings.of_torch())
        self.run = self._run_compiled

    def _run_compiled(self, target, arguments: tuple, keywords: dict):
        try:
            return self._compiled(target, arguments, keywords)
        except Exception as raised:  # noqa: BLE001: whose it is, is looked at next
            if not self._packages.is_torchs_own(raised) or self._breaks(raised):
                raise
            error = raised
        result = self._call(target, arguments, keywords)
        _session.session().note_fallback(f"torch.compile of {self.role}", f"{type(error).__name__}: {error}")
        _session.session().say(f"{self._name} eager", f"a {self.role} runs in torch: {type(error).__name__}")
        self._left.append(f"compiled: {type(error).__name__}: {error}")
        self.run = self._call
        return result

    def owners(self) -> list:
        """Of the graphs that its calls made."""
        return [self] if self._own is None else [self, self._own]

    def capture_counts(self) -> dict[str, int]:
        """Situations: loaded from the cache, kept there, not kept, and refused when they were to be loaded."""
        capture = self._capture
        if capture is None:
            return {}
        return {"loaded": capture.loaded, "kept": capture.kept, "not_kept": len(capture.not_kept), "refused": len(capture.refused)}

    def capture_causes(self) -> list[str]:
        """Why it is not what it could be."""
        capture = self._capture
        causes = [] if capture is None else [f"kept: {why}" for why in capture.not_kept.values()]
        return self._left + causes + ([] if capture is None else [f"loaded: {why}" for why in capture.refused])

    def _save(self) -> None:
        """Joins what was captured with what is stored by now, by this process or another one."""
        session, known = _session.session(), len(self._capture.not_kept)
        try:
            key = self._kept_as(way(self._settings.mode))
            data = self._capture.save(_stored(key))
            if data is not None:
                session.client().capture_put(key, data, entry_name("capture", self))
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            self._capture.changed = False
            self._note_not_kept(f"{type(error).__name__}: {error}")
        for why in list(self._capture.not_kept.values())[known:]:
            self._note_not_kept(why)

    def _note_not_kept(self, why: str) -> None:
        _session.session().counts["captures_not_kept"] += 1
        _session.session().note_fallback(f"capture of {self.role}", f"not kept: {why}")


def _run_in(settings: Settings, function, *arguments, **keywords):
    with in_mode(settings.mode), waiting_at_most(settings.deadline_ms), freezing(settings.freezing):
        return function(*arguments, **keywords)


def _mode_of(target) -> tuple:
    """What has most graphs be others: an evaluation says little of training."""
    return torch.is_grad_enabled(), getattr(target, "training", None)


def _code_of(target) -> list[tuple]:
    """(class, name, function) of what a call of the module may run."""
    if not isinstance(target, torch.nn.Module):
        return []
    kinds = {kind for part in target.modules() for kind in type(part).__mro__ if kind not in torch.nn.Module.__mro__}
    own = ((kind, name, value) for kind in kinds for name, value in vars(kind).items() if name not in _NEVER_RUN)
    return [item for item in own if isinstance(item[2], RUN)]


_NEVER_RUN = frozenset(("__init__", "__init_subclass__", "extra_repr", "__repr__", "reset_parameters", "__setstate__"))


# Captures of this process by key and settings: models of any depth share those of their blocks.
_captures: dict[tuple, object] = {}


class _Bound:
    """An entry on one module or function. Not a closure, so that modules stay picklable and copyable."""

    def __init__(self, entry: Entry, target) -> None:
        self.entry, self._target = entry, target
        self._time = tally_of(target).time

    def __call__(self, *arguments, **keywords):
        if torch.compiler.is_compiling():
            return run_capture(self.entry.run, self._target, arguments, keywords)
        return self._time.run(run_capture, self.entry.run, self._target, arguments, keywords)


def _bound(function, settings: Settings) -> _Bound:
    """A function, which has a capture from its first run on."""
    packages = captures.adapter()
    entry = Entry("function", [function], Describer(), settings)
    entry.start_later(packages)
    return _Bound(entry, function)


class _Whole:
    """The whole model: ops that run between captures go to Kiln one by one, losses as captures."""

    def __init__(self, model: torch.nn.Module, settings: Settings) -> None:
        tally = tally_of(model)
        self._model, self._between, self._time = model, Between(tally, self._loss), tally.time
        self._settings, self._losses = settings, {}

    def _loss(self, function) -> _Bound:
        if function not in self._losses:
            self._losses[function] = _bound(function, self._settings)
        return self._losses[function]

    @property
    def losses(self) -> list[_Bound]:
        return list(self._losses.values())

    def __call__(self, *arguments, **keywords):
        if torch.compiler.is_compiling():
            return self._between.run(self._model._call_impl, arguments, keywords)
        return self._time.run(self._between.run, self._model._call_impl, arguments, keywords)


def entries_of(value) -> list[Entry]:
    """Of what stands on a module that was compiled."""
    bounds = value.losses if isinstance(value, _Whole) else [value]
    return [bound.entry for bound in bounds if isinstance(bound, _Bound)]


def _stored(key: bytes, fetches: bool = False) -> bytes | None:
    client = _session.session().client()
    try:
        return client.capture_get(key, fetches) if client is not None else None
    except Exception:  # noqa: BLE001: Kiln never makes its caller fail
        return None


@functools.cache
def _importer() -> str:
    """A digest of this package: another version says graphs otherwise, so captures are its own."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(pathlib.Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def signature(module: torch.nn.Module) -> tuple:
    """Names, shapes, dtypes and devices of all parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return tuple((name, tuple(t.shape), str(t.dtype), str(t.device), t.requires_grad) for name, t in tensors)


def find_entries(model: torch.nn.Module, settings: Settings) -> list[Entry]:
    """Repeated siblings share an entry; so do the largest modules without any that are alike; a loss function has one.

    What remains, the forwards of the modules that hold the blocks, runs in Python as always."""
    describer = Describer()
    blocks = repeated_blocks(model, describer)
    held = {module for group in blocks for module in group}
    entries = [Entry("block", group, describer, settings) for group in blocks]
    parts: dict[tuple, list] = {}
    for module in _parts(model, held):
        parts.setdefault((type(module), signature(module), describe_module(module, describer)), []).append(module)
    entries += [Entry("part", group, describer, settings) for group in parts.values()]
    loss = getattr(model, "loss_function", None) if held else None
    if callable(loss) and not isinstance(loss, torch.nn.Module) and hasattr(type(model), "loss_function"):
        entries.append(Entry("loss_function", [loss], describer, settings, model))
    return entries


def repeated_blocks(model: torch.nn.Module, describer: Describer) -> list[list[torch.nn.Module]]:
    """Groups of two or more siblings of one class with the same parameters and the same code, the outermost first."""
    groups: list[list[torch.nn.Module]] = []
    pending = [model]
    while pending:
        parent = pending.pop(0)
        alike: dict[tuple, list] = {}
        for child in parent.children():
            alike.setdefault((type(child), signature(child)), []).append(child)
        for (_, parameters), modules in alike.items():
            if len(modules) < 2 or not parameters or not _is_called(modules[0]) or not any(True for _ in modules[0].children()):
                pending.extend(modules)
                continue
            same: dict[bytes, list] = {}
            for module in modules:
                same.setdefault(describe_module(module, describer), []).append(module)
            for group in same.values():
                groups.append(group) if len(group) > 1 else pending.extend(group)
    return groups


def _is_called(module: torch.nn.Module) -> bool:
    """Whether it has a forward, which lists of modules and other containers have not."""
    return getattr(module.forward, "__func__", None) is not torch.nn.Module.forward


def _parts(module: torch.nn.Module, blocks: set) -> list[torch.nn.Module]:
    """The largest modules without any that are called."""
    if module in blocks:
        return []
    if _is_called(module) and not any(child in blocks for child in module.modules()):
        return [module]
    return list(dict.fromkeys(part for child in module.children() for part in _parts(child, blocks)))
