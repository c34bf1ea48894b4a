"""Situations as bytes, and back: what one compilation of Dynamo rests on, as torch 2.13 has it.

Dynamo guards everything that a frame reads. In the process that captured, all of these guards hold. To hold in another one,
too, a situation is kept with what torch's own packages keep, the values that guards compare with, and besides:
  - the digest (described.py) of whatever a guard compares by identity, or finds through a class, a closure, a default or a
    global. They are compared when the situation is loaded; then the guard is made for the object that is there;
  - the digest of each function that was traced, found by its name, guarded or not.
Functions and classes are kept as names. What has none, a closure on a module, is found where it was: on the module that the
situation is loaded for. What can be had neither way is not kept, and said (NotKept).
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import json
import pickle
import re
import sys
import threading
import types
import weakref

import torch
from torch._dynamo import guards, pgo
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.source import ChainedSource, ImportSource, LocalSource
from torch._guards import TracingContext, tracing

from ._names_2_13 import NAMES
from .described import ATOMS, Describer, Undescribed, given
from .kept import NotKept

_TYPES = ("TYPE_MATCH", "TENSOR_SUBCLASS_METADATA_MATCH")
_IDENTITIES = ("ID_MATCH", "CLASS_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "MODULE_MATCH", "BUILTIN_MATCH")
_VALUES = ("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "CONSTANT_SUBCLASS_MATCH")
_KEYS = ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK")
# Guards on versions and on lives of objects, which no other process has.
_NOWHERE_ELSE = ("DICT_VERSION", "NN_MODULE", "WEAKREF_ALIVE")
# Kept as names, or as places.
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial, enum.Enum,
         functools._lru_cache_wrapper, type, property, weakref.ref, torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # fmt: skip
# Where a function without a module of its own is looked for.
_HOMES = ("torch", "torch._C._nn", "torch.nn.functional", "torch._C", "builtins")
_UNIQUE = re.compile(r"___\d+")
# A global that Dynamo calls by an address, as what it holds has no name (_globals_2_13.py).
_MADE_UP = re.compile(r"G\['[^']*_\d+_c\d")

_NOT_KEPT = b"not kept: "


class _Thread(threading.local):
    """What a thread is at. While it has a target, the module that is run, Dynamo's situations are kept by the rules of this
    file."""

    target = pickle = locals = globals = None


thread = _Thread()


def why_not_kept(situation: bytes) -> str | None:
    return situation[len(_NOT_KEPT) :].decode() if situation.startswith(_NOT_KEPT) else None


@dataclasses.dataclass(frozen=True)
class Named:
    """A function, class or module, by its name, or an Enum's member. It cannot be called: the reader calls what it is
    told to, and a name is no reason to."""

    module: str
    name: str
    member: str | None = None

    def find(self):
        found = sys.modules.get(self.module)
        if found is None:
            raise pickle.UnpicklingError(f"{self.module} is not imported")
        for part in filter(None, self.name.split(".")):
            found = inspect.getattr_static(found, part) if isinstance(found, type) else getattr(found, part)
        found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        return found[self.member] if self.member is not None else found


@dataclasses.dataclass(frozen=True)
class Placed:
    """An object without a name, by its place below the module that runs."""

    source: object

    def find(self):
        scope = {"L": thread.locals, "G": thread.globals}
        return self.source.get_value(scope, guards._get_closure_vars(), {})


def reference_to(value) -> Named | None:
    """By which a function, class, module or Enum's member is found again; None where it has no name."""
    if value is builtins.__dict__:
        return Named("builtins", "__dict__")
    if isinstance(value, types.ModuleType):
        return Named(value.__name__, "") if sys.modules.get(value.__name__) is value else None
    member = value.name if isinstance(value, enum.Enum) else None
    owner = type(value) if member is not None else value
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None)
    if name is None or "<" in name:
        return None
    home = getattr(owner, "__module__", None)
    for module, found in ((home, name), *((h, name.split(".")[-1]) for h in _HOMES)):
        with contextlib.suppress(Exception):
            named = Named(module, found, member)
            if named.find() is value:
                return named
    return None


# What an object of a class derived from one of these is made of besides attributes; those that are filled first.
_CONTAINERS = (collections.OrderedDict, dict, list)
_PLAIN = (*_CONTAINERS, tuple, int, float, str)


def instance(kind: Named, plain):
    """An object of the class, without its attributes and without a call of its own code."""
    found = kind.find()
    if not isinstance(found, type):
        raise pickle.UnpicklingError(f"{kind} is no class")
    if plain is None:
        return object.__new__(found)
    base = type(plain)
    if base not in _CONTAINERS:
        return base.__new__(found, plain)
    made = base.__new__(found)
    if base is list:
        list.extend(made, _found(plain))
    else:
        for key, item in _found(plain).items():
            base.__setitem__(made, key, item)
    return made


def fill(made, attributes: dict) -> None:
    made.__dict__.update(_found(attributes))


def _found(value):
    """The value with objects in the place of their names."""
    if isinstance(value, (Named, Placed)):
        return value.find()
    if type(value) in (dict, collections.OrderedDict):
        return type(value)((_found(key), _found(item)) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_found(item) for item in value)
    return value


# Of torch's own, what makes the values that guards compare with.
_REBUILDS = frozenset((
    "_unpickle_tensor", "_unpickle_mapping_proxy", "_unpickle_dict_keys", "_unpickle_count_iter",
    "_unpickle_dispatch_key_set", "_unpickle_functorch_interpreter", "_unpickle_sdp_backend",
))  # fmt: skip


def rebuild(name: str, *arguments):
    if name not in _REBUILDS:
        raise pickle.UnpicklingError(f"a capture may not call {name}")
    return getattr(guards.GuardsStatePickler, name)(*arguments)


def import_source(module: str) -> ImportSource:
    """The source of a module. As it is made it asks for a guard, which a situation that is read has already."""
    Named(module, "").find()
    with tracing(TracingContext(None)):
        return ImportSource(module)


def _by_our_names(reduced):
    if isinstance(reduced, tuple) and isinstance(reduced[0], types.MethodType):
        return rebuild, (reduced[0].__name__, *reduced[1])
    return reduced


def _makes_guards(function) -> bool:
    return getattr(function, "__qualname__", "").startswith("GuardBuilder.")


class _Pickler(guards.GuardsStatePickler):
    """Writes the values that guards compare with: functions and classes as names, objects as attributes, gradients and
    whatever no guard looks at not at all."""

    def __init__(self, builder, placed: dict, buffer) -> None:
        super().__init__(builder.guard_tree_values, {}, {}, buffer)
        self._placed = placed  # by id

    def reducer_override(self, value):
        kind = type(value)
        if kind.__module__ == "builtins" and kind in (dict, list, tuple, set, frozenset):
            return NotImplemented
        if isinstance(value, torch.Tensor):
            return self._without_gradient(_by_our_names(super().reducer_override(value)))
        if kind is ImportSource:
            return import_source, (value.module_name,)
        if kind is functools.partial and not _makes_guards(value.func):
            return self._reduce_code(value)
        if (kind.__module__, kind.__qualname__) in NAMES or kind in ATOMS:  # a member of an Enum may be a string, too
            return NotImplemented
        if isinstance(value, _CODE):
            return self._reduce_code(value)
        if isinstance(value, torch.nn.Module) or hasattr(value, "__dict__"):
            return self._reduce_object(value)
        return _by_our_names(super().reducer_override(value))

    def _reduce_code(self, value):
        if (getattr(value, "__module__", None), getattr(value, "__qualname__", None)) in NAMES:
            return NotImplemented
        named = reference_to(value)
        if named is not None:
            return Named, (named.module, named.name, named.member)
        if id(value) in self._placed:
            return Placed, (self._placed[id(value)],)
        if id(value) in self.guard_tree_values:
            raise NotKept(f"{value!r:.80} has no name")
        return guards._Missing, ("no name",)

    def _without_gradient(self, reduced):
        if not isinstance(reduced, tuple) or reduced[0] is not rebuild or reduced[1][0] != "_unpickle_tensor":
            return reduced
        unpickle, (*properties, gradient) = reduced
        return unpickle, (*properties, gradient if id(gradient) in self.guard_tree_values else None)

    def _reduce_object(self, value):
        if id(value) in self._placed:
            return Placed, (self._placed[id(value)],)
        if type(value).__module__.startswith(("torch._dynamo", "torch._guards")):
            raise NotKept(f"{type(value).__module__}.{type(value).__qualname__} is not among the names of captures")
        if id(value) not in self.guard_tree_values:
            return guards._Missing, ("no guard",)
        kind = reference_to(type(value))
        if kind is None:
            raise NotKept(f"class {type(value).__qualname__} has no name")
        plain = next((base(value) for base in _PLAIN if isinstance(value, base)), None)
        attributes = {name: self._attribute(item) for name, item in getattr(value, "__dict__", {}).items()}
        return instance, (kind, plain), attributes, None, None, fill

    def _attribute(self, value):
        wanted = isinstance(value, (*ATOMS, dict, list, tuple, set, torch.nn.Module, torch.Tensor))
        return value if wanted or id(value) in self.guard_tree_values else guards._Missing("no guard")


class Reader(pickle.Unpickler):
    """Reads what is kept. What it may call and make is listed name by name in _names_2_13.py."""

    def find_class(self, module: str, name: str):
        if (module, name) not in NAMES:
            if (module, name) == ("builtins", "type"):
                return _type_of_nothing
            raise pickle.UnpicklingError(f"a capture may not name {module}.{name}")
        return super().find_class(module, name)


def _type_of_nothing(*values):
    """As Python pickles the types of None and its like."""
    if values in ((None,), (Ellipsis,), (NotImplemented,)):
        return type(values[0])
    raise pickle.UnpicklingError("a capture may not ask for types")


def read(data: bytes):
    return Reader(io.BytesIO(data)).load()


def _dump(manager, builder, sorted_guards: list, graph) -> bytes:
    """Of what was just compiled. Raises NotKept."""
    describer = Describer()
    facts = _facts(builder, sorted_guards, describer)
    traced = _traced(graph, builder.f_code, describer)
    places = _places(thread.target)
    roots = {name: places[id(value)] for name, value in graph.local_scope.items() if id(value) in places}
    placed: dict = {}
    for guard in sorted_guards:
        if _MADE_UP.search(guard.name):
            raise NotKept(f"{guard.name} is a global that this process made up")
        _place_nameless(guard, builder, roots, placed)
    bare = [dataclasses.replace(guard, stack=None, user_stack=None) for guard in sorted_guards]
    buffer, states = io.BytesIO(), []

    def write(state) -> None:
        states.append(state)
        bare = dataclasses.replace(state.output_graph, global_scope={})
        _Pickler(builder, placed, buffer).dump(dataclasses.replace(state, output_graph=bare))

    thread.pickle = write
    try:
        _serialize(manager, builder, bare, graph)
    finally:
        thread.pickle = None
    inference = torch.is_inference_mode_enabled()
    said = _signature(states[0], facts, traced, roots, inference)
    return pickle.dumps((said, facts, traced, roots, inference, buffer.getvalue()))


def _places(target) -> dict[int, str | None]:
    """The path of each module below the target, by id; None for a function, which is the target itself."""
    if not isinstance(target, torch.nn.Module):
        return {id(target): None}
    return {id(module): path for path, module in target.named_modules(remove_duplicate=False)}


def _place_nameless(guard, builder, roots: dict, placed: dict) -> None:
    """Notes the sources of nameless objects on the way to a guarded one, and of that one if its identity is guarded."""
    source = guard.originating_source
    guarded = source if guard.create_fn_name() in _IDENTITIES else None
    while source is not None:
        root = source
        while isinstance(root, ChainedSource):
            root = root.base
        if not isinstance(root, LocalSource) or root.local_name not in roots:
            return
        with contextlib.suppress(Exception):
            value = builder.get(source)
            is_wanted = isinstance(value, _CODE) or source is guarded or _has_nameless_class(value)
            if is_wanted and reference_to(value) is None:
                placed.setdefault(id(value), source)
        source = source.base if isinstance(source, ChainedSource) else None


def _has_nameless_class(value) -> bool:
    """As modules have whose weights are computed: torch.nn.utils.parametrize makes a class for each."""
    return isinstance(value, torch.nn.Module) and reference_to(type(value)) is None


def _facts(builder, sorted_guards: list, describer: Describer) -> list[tuple]:
    """(name, kind, digest) of each guard: what is compared when the situation is loaded."""
    return sorted({(g.name, g.create_fn_name(), *_fact(builder, g, describer)) for g in sorted_guards if g.name})


def _fact(builder, guard, describer: Describer) -> tuple:
    kind = guard.create_fn_name()
    options = getattr(guard.create_fn, "keywords", {})
    if kind in _NOWHERE_ELSE:
        raise NotKept(f"a guard {kind} on {guard.name}")
    if kind == "HASATTR":
        return options["attr"], repr(hasattr(builder.get(guard), options["attr"])).encode()
    if kind not in (*_TYPES, *_IDENTITIES, *_VALUES, *_KEYS, "SEQUENCE_LENGTH", "TENSOR_MATCH"):
        return repr(sorted(options)), b""
    value = builder.get(guard)
    if kind in (*_IDENTITIES, *_VALUES):
        try:
            return "", describer.digest(value)
        except Undescribed as error:
            raise NotKept(f"{guard.name} is {error}") from error
    if kind == "TENSOR_MATCH":
        return "", repr((_type_of(value), value.dtype, value.device, value.dim(), value.requires_grad)).encode()
    if kind in _TYPES:
        return "", describer.lenient(_type_of(value))
    if kind == "SEQUENCE_LENGTH":
        return "", repr((type(value), len(value))).encode()
    return "", describer.lenient(list(value) if kind in _KEYS else value)


def _type_of(value) -> type:
    """A tensor is read as one without data, which knows what type it had."""
    return (isinstance(value, torch._subclasses.FakeTensor) and value.pytype) or type(value)


def _traced(graph, own: types.CodeType, describer: Describer) -> list[tuple]:
    """(module, name, digest) of what was inlined. A function within another one is part of that."""
    traced = set()
    for code in graph.traced_code:
        if code is own and (graph.global_scope["__name__"].startswith("kiln_capture_") or _is_continuation(code)):
            continue  # an entry of ours; what follows a graph break, of which the frame before it says what it is
        module = inspect.getmodule(code)
        name = code.co_qualname.split(".<locals>")[0]
        if module is not None and module.__name__.startswith("torch._dynamo.polyfills"):
            continue  # stands for what Python itself does, in this version of torch
        if module is not None and "<" not in name:
            with contextlib.suppress(AttributeError):
                traced.add((module.__name__, name, describer.lenient(_static(module, name))))
        if code not in describer.codes:
            raise NotKept(f"the code of {code.co_qualname} is not found by its name")
    return sorted(traced)


def _is_continuation(code: types.CodeType) -> bool:
    return code.co_name.startswith("torch_dynamo_resume_in_")


def _static(module, name: str):
    found = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    return given(found)


class _Guards(guards.CheckFunctionManager):
    """Guards of a loaded situation, made for what is there in this process if it is as it was."""

    def __init__(self, facts: list, describer: Describer, *arguments, **keywords) -> None:
        self._facts, self._describer = facts, describer
        super().__init__(*arguments, **keywords)

    def build_guards(self, sorted_guards, *arguments, **keywords):
        builder, manager = super().build_guards(sorted_guards, *arguments, **keywords)
        for was, now in zip(self._facts, _facts(builder, sorted_guards, self._describer), strict=True):
            if was != now:
                raise Changed(f"{now[0]} is not what it was ({now[1]})")
        return builder, manager


class Changed(Exception):
    """The situation was captured of other code or values than this process has."""


def load(data: bytes, code: types.CodeType, scope: dict, target, describer: Describer):
    """The situation's guards, for a target. Raises Changed, or whatever else shows that it does not fit this process."""
    thread.locals, thread.globals = _Locals(target), scope
    try:
        _, facts, traced, thread.locals.paths, inference, values = read(data)
        for module, name, digest in traced:
            if module not in sys.modules or describer.lenient(_static(sys.modules[module], name)) != digest:
                raise Changed(f"{module}.{name} is not what it was")
        state = read(values)
        graph = state.output_graph
        local_scope = _found(graph.local_scope)
        if graph.name_of_builtins_dict_key_in_fglobals:
            scope.setdefault(graph.name_of_builtins_dict_key_in_fglobals, builtins.__dict__)
        graph = dataclasses.replace(graph, global_scope=scope, local_scope=local_scope)
        _for_any_threads(graph.global_state_guard)
        with torch.inference_mode() if inference else contextlib.nullcontext():
            return _Guards(facts, describer, code, OutputGraphCommon(graph), shape_code_parts=state.shape_code_parts,
                           runtime_global_scope=scope).guard_manager  # fmt: skip
    finally:
        thread.locals = thread.globals = None


class _Locals(dict):
    """The frame's variables that are known before it runs: the target, and modules below it."""

    def __init__(self, target) -> None:
        self._target, self.paths = target, {}

    def __missing__(self, name: str):
        if name not in self.paths:
            raise Changed(f"{name} is not known before the call")
        path = self.paths[name]
        return self._target if path is None else self._target.get_submodule(path)


def signature(data: bytes) -> bytes:
    """Equal for situations that are the same but for names that a process made up, and for what decides nothing."""
    return read(data)[0]


def _signature(state, *said) -> bytes:
    graph = state.output_graph
    world = {name: value for name, value in json.loads(graph.global_state_guard.__getstate__()).items() if name != _THREADS}
    said = repr((said, graph.input_source_to_sizes_strides, world, state.shape_code_parts, graph.current_device))
    return hashlib.blake2b(_UNIQUE.sub("", said).encode(errors="replace"), digest_size=16).digest()


# How many threads torch has decides nothing of a graph.
_THREADS = "num_threads"


def _for_any_threads(state) -> None:
    state.__setstate__(json.dumps({**json.loads(state.__getstate__()), _THREADS: torch.get_num_threads()}))


_serialize, _pickle = guards.CheckFunctionManager.serialize_guards, guards.pickle_guards_state


def _serialize_or_say(self, builder, sorted_guards, output_graph) -> bytes:
    if thread.target is None:
        return _serialize(self, builder, sorted_guards, output_graph)
    supported = guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES = ()
    try:
        data = _dump(self, builder, sorted_guards, output_graph)
        _try(data, builder.f_code, output_graph)
        return data
    except Exception as error:  # noqa: BLE001: what is not kept works all the same
        return _NOT_KEPT + f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".encode()
    finally:
        guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES = supported


def _try(data: bytes, code: types.CodeType, graph) -> None:
    """Raises NotKept when the situation, loaded in this very process, would not hold for the very call it is of."""
    manager = load(data, code, graph.global_scope, thread.target, Describer())
    if not manager.check(graph.local_scope):
        why = manager.check_verbose(graph.local_scope).verbose_code_parts
        raise NotKept(f"it would not be found again: {why}")


def _pickle_guards(state, builder) -> bytes:
    if thread.pickle is None:
        return _pickle(state, builder)
    thread.pickle(state)
    return b""


guards.CheckFunctionManager.serialize_guards, guards.pickle_guards_state = _serialize_or_say, _pickle_guards


_update_sizes = pgo.update_automatic_dynamic


def _update_sizes_of_target(translator, name: str, entry, **options):
    """Modules that share a capture may each be called with sizes of its own, and always with these: only a second size of the same
    module is captured as a symbol."""
    if isinstance(thread.target, torch.nn.Module) and isinstance(entry.size, tuple):
        name = f"{name} of {id(thread.target)}"
    return _update_sizes(translator, name, entry, **options)


pgo.update_automatic_dynamic = _update_sizes_of_target
