"""Which adapter to torch's internals this process uses."""

from __future__ import annotations

import functools
import importlib

import torch

PRIVATE = {"2.13": "_private_2_13"}


@functools.cache
def adapter():
    """The adapter pinned to this version of torch; the public one for other versions, or when the pinned one fails."""
    version = ".".join(torch.__version__.split(".")[:2])
    try:
        return importlib.import_module(f".{PRIVATE[version]}", __package__)
    except (KeyError, ImportError, AttributeError):
        from . import public

        return public


class NotAvailable(Exception):
    """This version of torch has no pinned adapter for what was asked."""


@functools.cache
def packages():
    """The adapter to torch's compile packages. Raises NotAvailable."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in PRIVATE:
        raise NotAvailable(f"captures are kept with torch {', '.join(PRIVATE)} only")
    try:
        return importlib.import_module(f"._packages_{version.replace('.', '_')}", __package__)
    except (ImportError, AttributeError) as error:
        raise NotAvailable(str(error)) from error
