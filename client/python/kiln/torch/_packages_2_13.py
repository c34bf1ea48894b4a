"""The rest of torch's private API that Kiln uses, as torch 2.13 has it: compile packages, by which what Dynamo and
AOTAutograd captured, guards included, is kept and installed again. compat.py chooses it; without it kiln.compile is
torch.compile.

Six things a package needs that torch does not do by itself, each found the hard way:
  - an entry function of our own, in a module of its own: two packages on one code object overwrite one another, and
    functools.wraps'd forwards send globals to the wrong module;
  - guards that cannot be serialised are dropped (identity of functions, classes, modules, closures). Their place is
    taken by the checksums of all inlined source, which torch checks on loading;
  - module aliases in the bytecode's globals that torch does not save (ModelOutput's collections);
  - a counter of unique names that starts where no process's saved names are;
  - guards built anew in the mode they were made in: those on tensors of inference mode hold nowhere else;
  - gradients left out of the guards' tensors: torch saves a mark in their place that it cannot load back.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib
import io
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
from torch._dynamo import bytecode_transformation, exc, guards, optimize, package
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.precompile_context import PrecompileContext
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode

from . import kept
from ._private_2_13 import saved_for_many_backwards
from .runtime import CompiledGraph, count_instances

# Saving guards looks at the gradients of all tensors met, which are none of the user's business.
warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", module=r"torch\._dynamo\.guards")

# A capture that grew beyond this is kept as it was: loading it would cost more than its latest situation is worth.
MAX_SITUATIONS = 16

_UNSERIALISABLE = set(guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
_FUNCTION_PARTS = ("__defaults__", "__kwdefaults__", "__closure__", "__code__")

# What a capture may name; where it was defined counts, not where it was found. Nothing else is called while one is read.
_TRUSTED_CLASSES = (
    "torch", "torch._C", "torch._dynamo", "torch._functorch", "torch._guards", "torch._subclasses", "torch.fx", "torch.nn",
    "torch.torch_version", "torch.utils._ordered_set", "torch.utils._traceback", "kiln.torch", "sympy.core", "collections",
    "functools", "traceback", "types",
)  # fmt: skip
_TRUSTED_FUNCTIONS = (
    "torch._dynamo.guards", "torch._utils", "torch.fx.graph_module", "kiln.torch.runtime", "kiln.torch.dropout", "kiln.torch.partition",
    "_operator",
)  # fmt: skip
_TRUSTED_BUILTINS = frozenset(
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple type".split()
)
_TRUSTED_VALUES = (torch.dtype, torch.memory_format, torch.layout)


_CONFIG = {
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,  # else the backward is lowered outside of this, and not kept
    "strict_autograd_cache": True,  # what cannot be kept says so
    "bypass_autograd_cache_key": True,  # torch's own cache is neither asked nor trusted; its key costs more than a block
    "cse": False,  # imports Inductor; Kiln does it itself
}


@dataclasses.dataclass
class KeptCode(OutputCode):
    """A compiled graph in the form AOTAutograd keeps with a capture."""

    state: dict | None = None

    def __post_init__(self) -> None:
        self._graph = None
        self._boxed_call = True  # on the instance: functools.update_wrapper copies __dict__ only

    @classmethod
    def of(cls, graph: CompiledGraph) -> KeptCode:
        code = cls(kept.dump(graph))
        code._graph = graph
        code._time_taken_ns = 0
        return code

    def __call__(self, inputs: list):
        if self._graph is None:
            self._graph = kept.load(self.state)
        return self._graph(inputs)

    def prepare_for_serialization(self) -> None:
        pass

    def post_compile(self, example_inputs, constants, graph_kwargs) -> None:
        if self._graph is None:
            self._graph = kept.load(self.state)

    def set_triton_bundle(self, bundle) -> None:
        pass

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_graph": None}

    def __deepcopy__(self, memo) -> KeptCode:  # torch copies artifacts to keep them; ours are immutable
        copy = KeptCode(self.state)
        copy.__dict__.update(self.__getstate__())
        return copy


def _keep_guards(entries) -> list[bool]:
    return [
        entry.guard_type not in _UNSERIALISABLE
        and not _UNSERIALISABLE.intersection(entry.derived_guard_types)
        and not any(part in entry.name for part in _FUNCTION_PARTS)
        for entry in entries
    ]


class _GuardsPickler(guards.GuardsStatePickler):
    def reducer_override(self, value):
        reduced = super().reducer_override(value)
        if not isinstance(reduced, tuple) or reduced[0].__name__ != "_unpickle_tensor":
            return reduced
        unpickle, (*properties, gradient) = reduced
        return unpickle, (*properties, gradient if id(gradient) in self.guard_tree_values else None)


guards.GuardsStatePickler = _GuardsPickler


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        if module == "builtins":
            if name in _TRUSTED_BUILTINS:
                return getattr(builtins, name)
            if name == "getattr":
                return _attribute
        elif module in sys.modules or module.split(".")[0] in ("torch", "sympy"):
            found = super().find_class(module, name)
            if _is_trusted(found):
                return found
        raise pickle.UnpicklingError(f"a capture may not name {module}.{name}")


def _attribute(owner, name: str):
    found = getattr(owner, name)
    if not _is_trusted(found):
        raise pickle.UnpicklingError(f"a capture may not name {name} of {owner!r}")
    return found


def _is_trusted(found) -> bool:
    if isinstance(found, _TRUSTED_VALUES):
        return True
    home = getattr(found, "__module__", None) or ""
    if not isinstance(found, type):
        return callable(found) and home in _TRUSTED_FUNCTIONS
    if home == "torch" or home.startswith(tuple(f"{name}." for name in _TRUSTED_CLASSES[1:])) or home in _TRUSTED_CLASSES:
        return True
    # A class of the user's, imported already: the type of a module or of a configuration.
    return home.split(".")[0] not in {*sys.stdlib_module_names, "torch", "kiln", "sympy"}


@functools.cache
def _number_names_apart() -> None:
    """From here on, names made in this process do not meet those that captures bring along, which other processes made,
    some of them after they, too, had loaded a capture."""
    bytecode_transformation._unique_id_counter = itertools.count(1 + secrets.randbits(48) << 8)


def _read(data: bytes):
    return _Unpickler(io.BytesIO(data)).load()


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


@contextlib.contextmanager
def _loading_guards(modes: list[bool]):
    """Within, torch's packages read guards by our strict list, and build those of each situation in its mode."""
    read, build = package.load_guards_state, package.load_guard_manager
    pending = iter(modes)

    def build_in_mode(*arguments):
        with torch.inference_mode() if next(pending) else contextlib.nullcontext():
            return build(*arguments)

    package.load_guards_state, package.load_guard_manager = _read, build_in_mode
    try:
        yield
    finally:
        package.load_guards_state, package.load_guard_manager = read, build


class Capture:
    """One entry, compiled by Dynamo: `capture(module, arguments, keywords)`. Captured when first called, or installed
    from bytes that an earlier process saved; new situations (shapes, modes) are captured beside the old ones.

    `changed` says that there is something to save. Threading: as torch.compile."""

    def __init__(self, name: str, call, backend_compiler, partition, instances: int) -> None:
        """instances: how many modules run it, by which its nodes count."""
        self._module = types.ModuleType(f"kiln_capture_{name}")
        self._module.__dict__["__builtins__"] = builtins.__dict__
        sys.modules[self._module.__name__] = self._module
        self._function = types.FunctionType(call.__code__.replace(co_name=name), self._module.__dict__, name)
        self._function.__module__ = self._module.__name__
        self._module.__dict__[name] = self._function
        self._compiler, self._partition = backend_compiler, partition
        self._package = self._compiled = None
        self._instances = instances
        self._backends: dict = {}  # what an earlier process saved
        self._modes: list[list[bool]] = []  # by code and situation: whether it was captured in inference mode
        self.changed = False

    def start(self, saved: bytes | None = None) -> None:
        """Raises when `saved` does not fit this process (another torch, changed sources, damage)."""
        # Else hooks that are added later would not be noticed.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        if saved is None:
            self._package = package.CompilePackage(self._function)
        else:
            self._install(saved)
        wrap = optimize(self._backend, package=self._package, guard_filter_fn=_keep_guards)
        self._compiled = wrap(self._function)

    def __call__(self, module, arguments: tuple, keywords: dict):
        result = self._compiled(module, arguments, keywords)
        if self.changed:
            self._note_modes()
        return result

    def _note_modes(self) -> None:
        codes = self._package.cache_entry().codes
        self._modes += [[] for _ in codes[len(self._modes) :]]
        for code, modes in zip(codes, self._modes):
            modes += [torch.is_inference_mode_enabled()] * (len(code.guarded_codes) - len(modes))

    def save(self) -> bytes:
        """Raises kept.NotKept for what cannot be saved."""
        entry = self._package.cache_entry()
        situations = max(len(code.guarded_codes) for code in entry.codes)
        if situations > MAX_SITUATIONS:
            raise kept.NotKept(f"{situations} situations, at most {MAX_SITUATIONS}")
        backends = {key: self._backends.get(key) or PrecompileContext.serialize_artifact_by_key(key)
                    for key in entry.backend_ids}  # fmt: skip
        if None in backends.values():
            raise kept.NotKept("a graph was not kept by torch")
        self.changed = False
        return pickle.dumps((package.PrecompileCacheEntry(entry, backends), self._module_aliases(entry), self._modes))

    def _backend(self, gm, example_inputs, **_options):
        self.changed = True
        compiler = SerializableAOTDispatchCompiler(KeptCode, lambda g, i: KeptCode.of(self._compiler(g, i)))
        with functorch_config.patch(_CONFIG), saved_for_many_backwards(), _own_keys(), count_instances(self._instances):
            wrapped = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler,
                                   partition_fn=self._partition, decompositions={},
                                   keep_inference_input_mutations=False)  # fmt: skip
            return wrapped(gm, example_inputs)

    def _install(self, saved: bytes) -> None:
        entry, aliases, self._modes = _read(saved)
        self._package = package.CompilePackage(self._function, entry.dynamo)
        for name, module in aliases.items():
            self._module.__dict__[name] = importlib.import_module(module)
        _number_names_apart()
        self._backends = dict(entry.backends)
        with _loading_guards(list(itertools.chain(*self._modes))), count_instances(self._instances):
            self._package.install(entry.backends)

    def _module_aliases(self, entry) -> dict:
        """Globals of the bytecode that torch does not save: modules by their name."""
        aliases, scope = {}, self._module.__dict__
        for code in entry.codes:
            known = {*code.import_sources, *code.backend_ids, *code.function_names}
            for guarded in code.guarded_codes:
                for name in guarded.dynamo_code.co_names:
                    if name in known or not name.startswith("__") or name not in scope:
                        continue
                    if isinstance(scope[name], types.ModuleType):
                        aliases[name] = scope[name].__name__
                    elif not name.startswith("__resume"):
                        raise kept.NotKept(f"the bytecode names {name}, a {type(scope[name]).__name__}")
        return aliases


__all__ = ["Capture", "KeptCode", "is_torchs_own"]
assert torch.__version__.startswith("2.13"), "compat.py chooses this file for torch 2.13 only"
