"""Which adapter to torch's internals this process uses."""

from __future__ import annotations

import functools
import importlib

import torch

# Versions of torch with adapters of their own: _private_*.py, and what captures.py chooses.
PINNED = ("2.13",)


def version() -> str:
    """torch's, without what comes after the minor number."""
    return ".".join(torch.__version__.split(".")[:2])


@functools.cache
def adapter():
    """The adapter pinned to this version of torch; the public one for other versions, or when the pinned one fails."""
    try:
        return importlib.import_module(f"._private_{version().replace('.', '_')}", __package__)
    except (ImportError, AttributeError):
        from . import public

        return public
