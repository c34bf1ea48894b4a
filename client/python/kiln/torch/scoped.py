"""Context variables that hold a value for as long as a block runs."""

from __future__ import annotations

import contextlib
import contextvars


@contextlib.contextmanager
def set_within(variable: contextvars.ContextVar, value):
    """Within, the variable has this value; afterwards the one that it had."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


__all__ = ["set_within"]
