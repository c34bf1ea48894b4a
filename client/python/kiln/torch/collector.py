"""Python's cyclic garbage collector, which stays out of a compilation: it would walk all of torch's objects, several times."""

from __future__ import annotations

import contextlib
import gc
import threading

_lock = threading.Lock()
_pauses = 0  # that hold, of all threads
_was_enabled = False  # before the first of them


@contextlib.contextmanager
def collector_paused():
    """Within, nothing is collected in any thread; afterwards what was allocated counts as always. Pauses may nest. The
    collector stays off where the user has turned it off."""
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()


__all__ = ["collector_paused"]
