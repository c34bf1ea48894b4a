"""A cache of the tests' own, and a daemon that leaves when they are done; read when kiln is imported."""

import os
import tempfile

_cache = tempfile.TemporaryDirectory(prefix="kiln-zoo-")
os.environ.update(KILN_CACHE_DIR=_cache.name, KILN_DAEMON_IDLE_EXIT_MS="5000", KILN_DAEMON_START_TIMEOUT_MS="20000")
