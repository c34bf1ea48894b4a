"""The rest of torch's private API that Kiln uses, as torch 2.13 has it: compile packages, by which what Dynamo and
AOTAutograd captured, guards included, is kept and installed again. captures.py chooses it; without it kiln.compile is
torch.compile.

Things a package needs that torch does not do by itself, each found the hard way:
  - an entry function of our own, in a module of its own: two packages on one code object overwrite one another, and
    functools.wraps'd forwards send globals to the wrong module;
  - situations in a form of our own (_situations_2_13.py), each of which is installed where it fits, or left alone;
  - globals by which bytecode and guards name objects, which Dynamo calls by addresses (_globals_2_13.py);
  - a counter of unique names that starts where no process's saved names are.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import itertools
import pathlib
import pickle
import secrets
import sys
import traceback
import types
import uuid
import warnings

import torch
from torch._dynamo import bytecode_transformation, eval_frame, exc, guards, optimize, package
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.precompile_context import PrecompileContext
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode

from . import _globals_2_13 as made_globals
from . import _situations_2_13 as situations
from ._private_2_13 import let_backwards_be_differentiated, saved_for_many_backwards, writes_in_graphs
from .again import Again
from .described import Describer
from .graphs import CompiledGraph
from .kept import NotKept
from .tally import count_instances, owned_by
from .waiting import Situation

# Saving guards looks at the gradients of all tensors met, which are none of the user's business.
warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", module=r"torch\._dynamo\.guards")

# Of one capture. Beyond it the oldest go: loading them would cost more than the latest is worth.
MAX_SITUATIONS = 16

_CONFIG = {
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,  # else the backward is lowered outside of this, and not kept
    "strict_autograd_cache": True,  # what cannot be kept says so
    "unlift_effect_tokens": True,  # else the metadata of a graph that checks or prints has tensors, which are not kept
    "bypass_autograd_cache_key": True,  # torch's own cache is neither asked nor trusted; its key costs more than a block
    "cse": False,  # imports Inductor; Kiln does it itself
}


@dataclasses.dataclass
class KeptCode(OutputCode):
    """A compiled graph in the form AOTAutograd keeps with a capture."""

    state: dict | None = None

    def __post_init__(self) -> None:
        self._graph, self._capture = None, None
        self._boxed_call = True  # on the instance: functools.update_wrapper copies __dict__ only

    @classmethod
    def of(cls, graph) -> KeptCode:
        """Of what the compiler gave. Raises NotKept, too, where that is the graph in torch."""
        if not isinstance(graph, CompiledGraph):
            raise NotKept("a graph runs in torch")
        code = cls(graph.dump())
        code._graph = graph
        code._time_taken_ns = 0
        code._join_capture()
        return code

    @property
    def again(self) -> Again | None:
        """Of a forward with a backward."""
        if self._graph is not None:
            return self._graph.again
        return Again.load(*self.state["again"]) if self.state["again"] else None

    def __call__(self, inputs: list):
        if self._graph is None:  # loaded when it first runs here, if ever
            with self._capture.for_its_user() if self._capture else contextlib.nullcontext():
                self._graph = CompiledGraph.load(self.state)
        return self._graph(inputs)

    def prepare_for_serialization(self) -> None:
        pass

    def post_compile(self, example_inputs, constants, graph_kwargs) -> None:
        self._join_capture()

    def _join_capture(self) -> None:
        """Notes whose it is: of the capture that is at work."""
        self._capture = Capture.current.get(None)
        if self._capture is not None:
            self._capture.note_graph(CompiledGraph.has_subgraphs_in(self.state))

    def set_triton_bundle(self, bundle) -> None:
        pass

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_graph": None, "_capture": None}

    def __deepcopy__(self, memo) -> KeptCode:  # torch copies artifacts to keep them; ours are immutable
        copy = KeptCode(self.state)
        copy.__dict__.update(self.__getstate__())
        return copy


def _keeping(compiler) -> SerializableAOTDispatchCompiler:
    return SerializableAOTDispatchCompiler(KeptCode, lambda graph, inputs: KeptCode.of(compiler(graph, inputs)))


@functools.cache
def _number_names_apart() -> None:
    """From here on, names made in this process do not meet those that captures bring along, which other processes made,
    some of them after they, too, had loaded a capture."""
    bytecode_transformation._unique_id_counter = itertools.count(1 + secrets.randbits(48) << 8)


@contextlib.contextmanager
def _own_keys():
    """Within, torch's autograd cache has a fresh key for each graph, so that it never finds any: its own key costs more
    than a block's capture, and imports all of Inductor. Another thread's compilation meanwhile misses that cache."""
    original = autograd_cache.autograd_cache_key
    autograd_cache.autograd_cache_key = lambda *_, **__: (f"kiln_{uuid.uuid4().hex}", [])
    try:
        yield
    finally:
        autograd_cache.autograd_cache_key = original


# Where an exception comes from torch's compilation, or ours, not from the program that is compiled.
_MACHINERY = tuple(
    str(folder)
    for folder in (
        *(pathlib.Path(torch.__file__).parent / name for name in ("_dynamo", "_functorch", "_inductor", "_guards.py", "fx")),
        pathlib.Path(__file__).parent,
    )
)


def is_torchs_own(error: Exception) -> bool:
    """Whether capturing may be at fault, not the user's program; running it in eager mode tells for certain."""
    if isinstance(error, exc.TorchDynamoException):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_filename.startswith(_MACHINERY)


def breaks_graph(error: Exception) -> bool:
    """Whether it says why something is not one graph."""
    return isinstance(error, exc.Unsupported)


@contextlib.contextmanager
def _installing(managers: dict, unfit: set):
    """Within, torch's packages install guards that are there already, by the situation's bytes, and go on looking at code of
    which no situation fits."""
    read, build, skip = package.load_guards_state, package.load_guard_manager, eval_frame.skip_code

    def as_state(data: bytes):
        return guards.GuardsState(types.SimpleNamespace(name_of_builtins_dict_key_in_fglobals=None, data=data), None)

    package.load_guards_state = as_state
    package.load_guard_manager = lambda state, *_: managers[state.output_graph.data].pop(0)
    eval_frame.skip_code = lambda code: None if code in unfit else skip(code)
    try:
        yield
    finally:
        package.load_guards_state, package.load_guard_manager, eval_frame.skip_code = read, build, skip


class _Package(package.CompilePackage):
    def add_inlined_source(self, sources) -> None:
        """Nothing: each situation says for itself what was inlined."""


class Capture:
    """One entry, compiled by Dynamo: `capture(module, arguments, keywords)`. Captured when first called, or installed
    from bytes that an earlier process saved; new situations (shapes, modes) are captured beside the old ones.

    `changed` says that there is something to save; `loaded` counts situations of earlier processes that hold here, `kept` new
    ones that were saved; `refused` says why others do not hold, `not_kept` why new ones cannot be had in another process.
    `is_torchs`: there are graphs, and none has anything of Kiln's.
    Threading: as torch.compile."""

    current: contextvars.ContextVar = contextvars.ContextVar("current")

    def __init__(self, name: str, call, backend_compiler, partition, targets: list) -> None:
        """targets: the modules that run it first, or a function."""
        self._module = types.ModuleType(f"kiln_capture_{name}")
        self._module.__dict__["__builtins__"] = builtins.__dict__
        sys.modules[self._module.__name__] = self._module
        self._function = types.FunctionType(call.__code__.replace(co_name=name), self._module.__dict__, name)
        self._function.__module__ = self._module.__name__
        self._module.__dict__[name] = self._function
        self._compiler, self._partition, self._targets = backend_compiler, partition, targets
        self._package = self._compiled = None
        self._backends: dict = {}  # what an earlier process saved
        self._fitted: set[tuple] = set()  # what was loaded for which target
        self.changed, self.loaded, self.kept = False, 0, 0
        self._graphs: set[bool] = set()  # whether they have subgraphs of Kiln's
        self.is_torchs = False
        self.user = lambda: None
        self.refused: list[str] = []
        self.not_kept: dict[bytes, str] = {}

    def start(self, saved: bytes | None, dynamic: bool | None, fullgraph: bool) -> None:
        """dynamic, fullgraph: as torch.compile's. Raises when `saved` cannot be read."""
        # Else hooks that are added later would not be noticed.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        _number_names_apart()
        if saved is None or not self._install(situations.read(saved)):
            self._package = _Package(self._function)
        # Modules whose numbers differ, as a layer's place in a cache does, have situations of their own.
        limit = torch._dynamo.config.recompile_limit * max(1, len(self._targets))
        self._compiled = optimize(
            self._backend, package=self._package, nopython=fullgraph, dynamic=dynamic, recompile_limit=limit
        )(self._function)

    def __call__(self, module, arguments: tuple, keywords: dict):
        thread = situations.thread
        before, thread.target = thread.target, module
        try:
            return self._compiled(module, arguments, keywords)
        finally:
            thread.target = before

    def note_graph(self, has_subgraphs: bool) -> None:
        self._graphs.add(has_subgraphs)
        self.is_torchs = self._graphs == {False}

    @contextlib.contextmanager
    def for_its_user(self):
        """Within, graphs are made for whoever called last: `user`, a reference to something with `modules` that run it."""
        user = self.user()
        with owned_by(user), count_instances(len(user.modules) if user is not None else 1):
            yield

    @contextlib.contextmanager
    def _at_work(self):
        """Within, what torch makes is of this capture."""
        token = Capture.current.set(self)
        try:
            yield
        finally:
            Capture.current.reset(token)

    def save(self, stored: bytes | None) -> bytes | None:
        """Bytes of what this process and earlier ones (`stored`) captured, or None when there is nothing to keep."""
        self.changed = False
        entry = self._package.cache_entry()
        references: dict = {}
        codes = [self._kept(entry, code, references) for code in entry.codes]
        wanted = {name for code in codes for name in code.backend_ids}
        backends = {key: self._backends.get(key) or _bare(PrecompileContext.serialize_artifact_by_key(key)) for key in wanted}
        own = Record(codes, backends, references)
        self.kept = sum(len(code.guarded_codes) for code in codes) - self.loaded
        if not codes[0].guarded_codes:
            return None
        if stored is not None:
            with contextlib.suppress(Exception):  # what cannot be read is replaced
                own.join(situations.read(stored))
        data = pickle.dumps(own)
        situations.read(data)  # what is stored loads
        return data

    def _kept(self, entry, code, references: dict):
        """The code with the situations that can be kept, and their graphs."""
        scope = sys.modules[code.python_module].__dict__
        references |= made_globals.made_for(scope)
        fit = []
        for situation in code.guarded_codes:
            why = situations.why_not_kept(situation.guards_state) or self._why_not_found(entry, situation.dynamo_code, scope)
            if why is None:
                fit.append(situation)
            else:
                self.not_kept.setdefault(situation.dynamo_code.co_code + situation.guards_state, why)
        return dataclasses.replace(code, guarded_codes=fit, backend_ids=_named(fit, code.backend_ids))

    def _why_not_found(self, entry, bytecode, scope: dict) -> str | None:
        """Why another process could not find what the bytecode names; None if it could."""
        backends = {name for code in entry.codes for name in code.backend_ids}
        for backend in backends.intersection(bytecode.co_names):
            if backend not in self._backends and PrecompileContext.serialize_artifact_by_key(backend) is None:
                return "a graph was not kept by torch"
        known = {name for code in entry.codes for name in (*code.import_sources, *code.function_names)}
        return made_globals.why_not_found(bytecode, scope, known | backends)

    def _backend(self, gm, example_inputs, **_options):
        self.changed = True
        let_backwards_be_differentiated()
        forward, other = _keeping(Again.of(gm).attached(self._compiler)), _keeping(self._compiler)
        with functorch_config.patch(_CONFIG), saved_for_many_backwards(), _own_keys(), self.for_its_user(), self._at_work():
            wrapped = aot_autograd(fw_compiler=forward, bw_compiler=other, inference_compiler=other,
                                   partition_fn=self._partition, decompositions={},
                                   keep_inference_input_mutations=writes_in_graphs())  # fmt: skip
            situation = Situation(gm)
            with situation.at_work():
                return situation.by_sizes(wrapped(gm, example_inputs))

    def _install(self, record: Record) -> bool:
        """Whether any situation fits this process."""
        describer, managers, unfit = Describer(), collections.defaultdict(list), set()
        codes = []
        for index, code in enumerate(record.codes):
            own = package.SerializedCode.to_code_object(code.python_code) if index else self._function.__code__
            fit = [s for s in code.guarded_codes if self._load(s, code, own, record.references, managers, describer)]
            if len(fit) < len(code.guarded_codes):
                unfit.add(own)
            codes.append(dataclasses.replace(code, guarded_codes=fit, backend_ids=_named(fit, code.backend_ids)))
        if not codes[0].guarded_codes:
            return False
        self.loaded = sum(map(len, managers.values()))
        entry = package._DynamoCacheEntry(codes, package.SourceInfo(set()), "cpu")
        self._package, self._backends = _Package(self._function, entry), record.backends
        let_backwards_be_differentiated()
        with _installing(managers, unfit), self._at_work():
            self._package.install(record.backends)
        return True

    def _load(self, situation, code, own, references: dict, managers: dict, describer: Describer) -> bool:
        """Whether the situation fits one of the targets for which none that is the same was loaded: where targets have classes of
        their own, as by torch.nn.utils.parametrize, each was captured for itself."""
        why, data = "", situation.guards_state
        for target in self._targets:
            try:
                fitted = situations.signature(data), own, id(target)
                if fitted in self._fitted:
                    continue
                scope = sys.modules[code.python_module].__dict__
                scope.update((alias, made_globals.imported(module)) for alias, module in code.import_sources.items())
                made_globals.make(references, situation.dynamo_code, scope)
                managers[data].append(situations.load(data, own, scope, target, describer))
            except Exception as error:  # noqa: BLE001: it is captured anew
                why = f"{type(error).__name__}: {error}"
            else:
                self._fitted.add(fitted)
                return True
        if why:
            self.refused.append(why)
        return False


@dataclasses.dataclass
class Record:
    """What is stored of a capture: codes with their situations, graphs by name, and what the globals are that Dynamo made."""

    codes: list
    backends: dict
    references: dict

    def join(self, other: Record) -> None:
        """Adds what the other one has and this one has not."""
        have = {situations.signature(s.guards_state) for code in self.codes for s in code.guarded_codes}
        by_code = {code.python_code: code for code in self.codes[1:]}
        for index, code in enumerate(other.codes):
            mine = self.codes[0] if index == 0 else by_code.get(code.python_code)
            more = [s for s in code.guarded_codes if situations.signature(s.guards_state) not in have]
            if mine is None:
                mine = dataclasses.replace(code, guarded_codes=[], backend_ids=[], import_sources={})
                self.codes.append(mine)
            mine.guarded_codes[:0] = more
            mine.backend_ids[:0] = _named(more, code.backend_ids)
            mine.import_sources.update(code.import_sources)
        for code in self.codes:
            del code.guarded_codes[:-MAX_SITUATIONS]
        self._drop_unreachable()
        self.references = {**other.references, **self.references}
        wanted = {name for code in self.codes for name in code.backend_ids}
        self.backends = {name: graph for name, graph in {**other.backends, **self.backends}.items() if name in wanted}

    def _drop_unreachable(self) -> None:
        """Continuations that no bytecode names any more."""
        before = None
        while before != len(self.codes):
            before = len(self.codes)
            named = {n for code in self.codes for s in code.guarded_codes for n in s.dynamo_code.co_names}
            self.codes = [c for c in self.codes if not c.install_to_global or named.intersection(c.function_names)]


def _bare(artifact):
    """Without the backward graph for compiled autograd, which is source that would run when it is read."""
    artifact = copy.copy(artifact)
    artifact.content = dataclasses.replace(artifact.content, serialized_bw_module=None)
    return artifact


def _named(fit: list, backends: list) -> list:
    """The graphs that the situations' bytecode names."""
    names = {name for situation in fit for name in situation.dynamo_code.co_names}
    return [name for name in dict.fromkeys(backends) if name in names]


__all__ = ["Capture", "KeptCode", "is_torchs_own"]
assert torch.__version__.startswith("2.13"), "captures.py chooses this file for torch 2.13 only"
