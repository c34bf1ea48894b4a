"""Which adapter to torch's compile packages this process uses: what keeps captures, for kiln.compile."""

from __future__ import annotations

import functools
import importlib

from . import compat


class NotAvailable(Exception):
    """This version of torch has no adapter that keeps captures."""


@functools.cache
def adapter():
    """Raises NotAvailable."""
    if compat.version() not in compat.PINNED:
        raise NotAvailable(f"captures are kept with torch {', '.join(compat.PINNED)} only")
    try:
        return importlib.import_module(f"._packages_{compat.version().replace('.', '_')}", __package__)
    except (ImportError, AttributeError) as error:
        raise NotAvailable(str(error)) from error
