"""Globals that Dynamo makes for objects that bytecode and guards name, as torch 2.13 has it.

Dynamo calls such a global by the address of its object, or by a number, and removes it with the compilation that made it: in
another process it would be missing, or be something else. Here it is called by the object's own name, so that one name is one
object whoever made it, and stays. What has no name keeps Dynamo's, and a situation that rests on it is not kept.
"""

from __future__ import annotations

import importlib
import pickle
import re
import sys

from torch._dynamo.output_graph import OutputGraph

from . import _situations_2_13 as situations

_PREFIX = "__kiln_"
_MADE = re.compile(r"__|.*_\d+_c\d")  # what Dynamo calls globals


def made_for(scope: dict) -> dict:
    """The scope's globals that are called by their objects: references to these, by the global's name."""
    return {name: situations.reference_to(value) for name, value in scope.items() if name.startswith(_PREFIX)}


def make(references: dict, code, scope: dict) -> None:
    """Has the scope such globals, as far as this process has the objects. Raises where the bytecode names another one."""
    named = _names_in(code)
    for name, reference in references.items():
        try:
            imported(reference.module)
            scope[name] = reference.find()
        except Exception:  # noqa: BLE001: a guard on it fails by itself
            if name in named:
                raise


def imported(module: str):
    """A module that a capture names: one that is imported, or part of a package that is."""
    if module.split(".")[0] not in sys.modules:
        raise pickle.UnpicklingError(f"{module} is not imported")
    return sys.modules.get(module) or importlib.import_module(module)


def why_not_found(code, scope: dict, known: set) -> str | None:
    """Which global of the bytecode no other process has; None if there is none. `known` are kept otherwise."""
    for name in sorted(_names_in(code) - known):
        if name in scope and _MADE.match(name) and not name.startswith(_PREFIX):
            return f"the bytecode names {name}, a {type(scope[name]).__name__}"
    return None


def _names_in(code) -> set[str]:
    """What the bytecode and that of functions within it name."""
    return set(code.co_names).union(*(_names_in(part) for part in code.co_consts if hasattr(part, "co_names")))


def _made(scope: dict, value) -> str | None:
    """The name of a global that is the value; None where Dynamo is to choose it."""
    reference = situations.reference_to(value) if situations.thread.target is not None else None
    if reference is None:
        return None
    name = _PREFIX + ":".join(filter(None, (reference.module, reference.name, reference.member)))
    scope[name] = value
    return name


_by_address, _by_number = OutputGraph.install_global_by_id, OutputGraph.install_global


def _install_by_address(self, prefix: str, value) -> str:
    return _made(self.global_scope, value) or _by_address(self, prefix, value)


def _install_by_number(self, prefix: str, value) -> str:
    return _made(self.global_scope, value) or _by_number(self, prefix, value)


OutputGraph.install_global_by_id, OutputGraph.install_global = _install_by_address, _install_by_number
