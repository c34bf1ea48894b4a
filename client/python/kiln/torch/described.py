"""What an object is, in terms that hold in another process: names, code and values, never addresses.

A function is its qualified name, bytecode, constants, defaults and closure; a class its name and the code of its methods and
its bases'; an Enum's member its name and value; a functools.partial what it holds. Two objects of one digest do the same
when called. Numbers in a class's body are left out: guards hold those that are read.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import inspect
import sys
import types

import torch

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_TORCH_ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
ATOMS = (*_ATOMS, *_TORCH_ATOMS)
_CODE_FIELDS = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_posonlyargcount",
    "co_kwonlyargcount", "co_flags",
)  # fmt: skip
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
          types.ClassMethodDescriptorType, types.MethodWrapperType)  # fmt: skip


# The attribute by which a function is kiln.compile's: what runs the one that it was given, which is `__wrapped__`.
OURS = "_kiln_bound"


def given(value):
    """What kiln.compile was given, of a function of its own; else the value."""
    return value.__wrapped__ if isinstance(value, types.FunctionType) and OURS in value.__dict__ else value


class Undescribed(Exception):
    """The object is one of a kind: nothing but its address says which it is."""


class Describer:
    """Digests of objects. It remembers what it has met, and is used for one look only: objects may change after it.

    Attributes: codes, the code objects that were met on the way. Threading: one thread."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self._known: dict[int, tuple[bytes, object]] = {}  # with the object, so that its address stays its own
        self._bodies: dict[type, bytes] = {}
        self._open: set[int] = set()
        self._cycles = 0

    def digest(self, value) -> bytes:
        """Raises Undescribed."""
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        if id(value) in self._open:
            self._cycles += 1
            return b"again"
        self._open.add(id(value))
        cycles = self._cycles
        try:
            digest = hashlib.blake2b(repr(self._parts(value)).encode(errors="replace"), digest_size=16).digest()
        finally:
            self._open.discard(id(value))
        if cycles == self._cycles:  # else it depends on where the look began
            self._known[id(value)] = digest, value
        return digest

    def lenient(self, value) -> bytes:
        """As digest(), but what is one of a kind is described by its type."""
        try:
            return self.digest(value)
        except Undescribed:
            return repr(("a", name_of(type(value)))).encode()

    def _parts(self, value) -> tuple:
        kind = type(value)
        if kind is float:
            return "float", value.hex()
        if kind in _ATOMS or isinstance(value, _TORCH_ATOMS):
            return kind.__name__, repr(value)
        if isinstance(value, enum.Enum):
            return "member", name_of(kind), value.name, self.lenient(value.value)
        if isinstance(value, type):
            return self._class(value)
        if kind.__module__ == "typing":
            return "typing", repr(value)
        for types_, describe in self._KINDS:
            if isinstance(value, types_):
                return describe(self, value)
        return self._instance(value)

    def _function(self, value) -> tuple:
        value = given(value)
        cells = [self._cell(cell) for cell in value.__closure__ or ()]
        keywords = [(name, self._held(default)) for name, default in sorted((value.__kwdefaults__ or {}).items())]
        defaults = [self._held(default) for default in value.__defaults__ or ()]
        return "function", name_of(value), self.digest(value.__code__), defaults, keywords, cells

    def _cell(self, cell) -> bytes:
        try:
            return self._held(cell.cell_contents)
        except ValueError:
            return b"empty"

    def _held(self, value) -> bytes:
        """Classes by name: methods that say super() hold their own."""
        return name_of(value).encode() if isinstance(value, type) else self.lenient(value)

    def _code(self, value) -> tuple:
        self.codes.add(value)
        return ("code", *(getattr(value, field) for field in _CODE_FIELDS), [self.digest(c) for c in value.co_consts])

    def _builtin(self, value) -> tuple:
        owner = value.__self__
        is_found = getattr(sys.modules.get(value.__module__), value.__name__, None) is value
        if is_found or owner is None or isinstance(owner, (types.ModuleType, type)):
            return "builtin", name_of(value), name_of(type(owner))
        return "builtin", name_of(value), self.digest(owner)

    def _class(self, value) -> tuple:
        if issubclass(value, enum.Enum):
            return "enum", name_of(value), [(m.name, self.lenient(m.value)) for m in value]
        plain = (torch.Tensor, torch._C.TensorBase)  # torch's compiler replaces methods of theirs while it traces
        bases = [name_of(b) if b.__module__ == "builtins" or b in plain else self._body(b) for b in value.__mro__]
        return "class", bases

    def _body(self, value) -> bytes:
        """Of one class without its bases: what it has that can be run."""
        if value in self._bodies:
            return self._bodies[value]
        cycles = self._cycles
        skipped = _DYNAMOS if value is torch.nn.Module else ()
        body = [(name, self._member(item)) for name, item in sorted(vars(value).items()) if name not in skipped]
        said = repr((name_of(value), [item for item in body if item[1]])).encode(errors="replace")
        digest = hashlib.blake2b(said, digest_size=16).digest()
        if cycles == self._cycles:
            self._bodies[value] = digest
        return digest

    def _member(self, value) -> bytes:
        if isinstance(value, RUN):
            return self.lenient(value)
        return b"" if isinstance(value, (*ATOMS, *_SLOTS, type)) else name_of(type(value)).encode()

    def _instance(self, value) -> tuple:
        """A dataclass, a configuration: its class and attributes. A module: its code alone, since guards hold what is read of
        its state. What the standard library and torch make is opaque."""
        kind = type(value)
        if isinstance(value, torch.nn.Module):
            return "nn.Module", describe_module(value, self)
        if kind.__module__.split(".")[0] in _OPAQUE or not hasattr(value, "__dict__") or isinstance(value, torch.Tensor):
            raise Undescribed(f"a {name_of(kind)}")
        return "instance", self.digest(kind), {name: self.lenient(item) for name, item in sorted(vars(value).items())}

    def _unordered(self, values) -> list:
        return sorted(map(self.digest, values))

    _KINDS = (
        (types.FunctionType, _function),
        (types.CodeType, _code),
        (types.BuiltinFunctionType, _builtin),
        (types.MethodType, lambda self, v: ("method", self.digest(v.__func__), self.lenient(v.__self__))),
        (types.ModuleType, lambda self, v: ("module", v.__name__)),
        (functools.partial, lambda self, v: ("partial", *map(self.digest, (v.func, v.args, v.keywords)))),
        (functools._lru_cache_wrapper, lambda self, v: ("cache", self.digest(v.__wrapped__))),
        ((staticmethod, classmethod), lambda self, v: (type(v).__name__, self.lenient(v.__func__))),
        (property, lambda self, v: ("property", *map(self.lenient, (v.fget, v.fset, v.fdel)))),
        (functools.cached_property, lambda self, v: ("cached", self.lenient(v.func))),
        (_SLOTS, lambda self, v: ("slot", repr(getattr(v, "__objclass__", None)), v.__name__)),
        ((tuple, list, collections.deque),
         lambda self, v: (name_of(type(v)), [self.digest(item) for item in v])),
        ((dict, types.MappingProxyType),
         lambda self, v: (name_of(type(v)), [(self.digest(k), self.digest(item)) for k, item in v.items()])),
        ((set, frozenset), lambda self, v: (name_of(type(v)), self._unordered(v))),
        ((range, slice), lambda self, v: (type(v).__name__, repr(v))),
        ((type(torch.ops.aten.add.Tensor), type(torch.ops.aten.add)), lambda self, v: ("op", str(v))),
    )  # fmt: skip


# What can be run, or says what is.
RUN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, staticmethod, classmethod,
        property, functools.cached_property, functools._lru_cache_wrapper, enum.Enum)  # fmt: skip
# What Dynamo replaces in torch.nn.Module when it first compiles; no forward runs it.
_DYNAMOS = ("__init__", "__setstate__", "___needs_generation_tag_patch")
# Whose instances are handles, locks, streams: nothing that another process could have again.
_OPAQUE = {*sys.stdlib_module_names, "torch"} - {"dataclasses", "__main__"}


def name_of(value) -> str:
    """The module and the qualified name of a function, class or module."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or ""
    return f"{getattr(value, '__module__', None) or ''}.{name}"


def describe_module(module: torch.nn.Module, describer: Describer) -> bytes:
    """What guards on tensors, numbers and types do not say of a module and all below it: the code of its classes, attributes
    that can be run or that Python compares by identity, and which of its attributes are one object."""
    places: dict[int, int] = {}
    said = [(path, describer.digest(type(part)), _attributes(part, describer, places)) for path, part in module.named_modules()]
    return hashlib.blake2b(repr(said).encode(), digest_size=16).digest()


_STATE = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}  # the latter says how it is run, not what it is
_HOOKS = sorted(name for name in _STATE if "_hooks" in name)  # torch's dicts of them, by handle


def _attributes(module: torch.nn.Module, describer: Describer, places: dict) -> list:
    own = sorted((name, value) for name, value in vars(module).items() if name not in _STATE)
    hooks = [(name, tuple(vars(module)[name].values())) for name in _HOOKS if vars(module).get(name)]
    return [(name, _code_in(value, describer, places)) for name, value in own + hooks]


def _code_in(value, describer: Describer, places: dict):
    """The digests of what can be run in the value, through containers, and in what place each object was first met: where two
    attributes are one, Dynamo guards that they are; where they are two, it does not. What objects hold is for guards to say."""
    if isinstance(value, ATOMS):
        return ""
    if isinstance(value, tuple):  # Python is free to make one of equal ones
        return [_code_in(item, describer, places) for item in value]
    if id(value) in places:
        return places[id(value)]
    place = places[id(value)] = len(places)
    if isinstance(value, list):
        return place, [_code_in(item, describer, places) for item in value]
    if isinstance(value, dict):
        return place, [(str(name), _code_in(item, describer, places)) for name, item in value.items()]
    if isinstance(value, (*RUN, type)) or inspect.isroutine(value):
        return place, describer.lenient(value)
    return place
