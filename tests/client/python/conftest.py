"""Over libkiln's double, subgraphs run in interpreter.py: what the importer's graphs mean. Over libkiln, in its kernels."""

import os
import pathlib
import tempfile

# A cache of the tests' own, and a daemon that leaves when they are done; read when kiln is imported.
_cache = tempfile.TemporaryDirectory(prefix="kiln-test-")
os.environ.update(KILN_CACHE_DIR=_cache.name, KILN_DAEMON_IDLE_EXIT_MS="5000", KILN_DAEMON_START_TIMEOUT_MS="20000")
os.environ.setdefault("KILN_CLIENT_WAIT", "always")  # what a test runs is Kiln's, also where sizes change; test_waiting.py has the rest

import interpreter  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import torch._dynamo.guards  # noqa: E402

from kiln import _kiln, _session  # noqa: E402
from kiln.torch import programs  # noqa: E402

# Dynamo flushes the processor's caches to time its guards, for its log: a third of what compiling a small function takes.
torch._dynamo.guards.profile_guard_manager = lambda *arguments: 0.0

OVER_DOUBLE = _kiln.version() == "double"
CLI = pathlib.Path(os.environ.get("KILN_DAEMON_PATH", "kilnd")).with_name("kiln")  # of the build that is tested


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Counters at zero, one seed, and a subgraph runner."""
    monkeypatch.setattr(_session, "_session", _session.Session())
    if OVER_DOUBLE:
        monkeypatch.setattr(programs, "create_program", interpreter.create_program)
    torch._dynamo.reset()
    torch.manual_seed(0)
