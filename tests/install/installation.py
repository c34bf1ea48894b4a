"""A build of Kiln, installed into a folder of a test's own, and processes that see nothing else of Kiln."""

import os
import pathlib
import shutil
import subprocess
import tempfile


class Installation:
    def __init__(self, cmake, build, components=()):
        self.cmake, self.build = cmake, build
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-install-"))
        self.prefix = self.folder / "prefix"
        for component in components or (None,):
            chosen = ["--component", component] if component else []
            self.run([cmake, "--install", build, "--prefix", self.prefix, *chosen])

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "XDG_", "LD_"))}
        return kept | {"PATH": "/usr/bin:/bin", "KILN_CACHE_DIR": str(self.folder / "cache"),
                       "XDG_STATE_HOME": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder / "config"),
                       "KILN_DAEMON_START_TIMEOUT_MS": "20000", "KILN_DAEMON_IDLE_EXIT_MS": "60000"}

    def try_to_run(self, command, **variables):
        return subprocess.run([str(word) for word in command], env=self.environment() | variables, cwd=self.folder,
                              capture_output=True, text=True)

    def run(self, command, **variables):
        """What the command writes to stdout; it must succeed."""
        result = self.try_to_run(command, **variables)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def remove(self):
        self.try_to_run([self.prefix / "bin/kiln", "daemon", "stop"])
        shutil.rmtree(self.folder)
