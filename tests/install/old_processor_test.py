"""This build on a processor without AVX, which QEMU stands for: command, daemon, compile worker and the kernels that they make.
Arguments: the folder with the build's programs."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = pathlib.Path(sys.argv[1])
QEMU = shutil.which("qemu-x86_64")
PROCESSOR = "Nehalem"  # SSE4.2, and nothing later
SKIPPED = 77

GRAPH = """graph(%x: f32[16, 64], %w: f32[64, 32], %b: f32[32], %h: bf16[16, 32]) {
  %p = addmm(%b, %x, %w)
  %y = gelu(%p) {approximate = "tanh"}
  %s = softmax(%y) {dim = 1}
  %d = mul(%h, %h)
  return %s, %d
}
"""


class OldProcessor(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-old-"))
        self.addCleanup(shutil.rmtree, self.folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "XDG_"))}
        self.environment = kept | {
            "KILN_CACHE_DIR": str(self.folder / "cache"), "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"), "KILN_DAEMON_START_TIMEOUT_MS": "60000",
            "KILN_DAEMON_PATH": self.emulated("kilnd"), "KILN_WORKER_PATH": self.emulated("kiln-worker")}
        self.addCleanup(self.kiln, "daemon", "stop")

    def emulated(self, program):
        path = self.folder / program
        path.write_text(f'#!/bin/sh\nexec {QEMU} -cpu {PROCESSOR} {PROGRAMS / program} "$@"\n')
        path.chmod(0o700)
        return str(path)

    def kiln(self, *arguments):
        return subprocess.run([QEMU, "-cpu", PROCESSOR, PROGRAMS / "kiln", *map(str, arguments)], env=self.environment,
                              capture_output=True, text=True)

    def test_a_graph_is_compiled_checked_and_run(self):
        graph = self.folder / "graph.kiln"
        graph.write_text(GRAPH)
        for found in ("built, ", "mapped hit"):
            ran = self.kiln("run", graph, "--check")
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertIn(found, ran.stdout)
            self.assertRegex(ran.stdout, r"target +x86-64-v2\n")
            self.assertEqual(ran.stdout.count(" right\n"), 2, ran.stdout)

    def test_the_doctor_says_what_the_processor_lacks(self):
        self.assertRegex(self.kiln("doctor").stdout, r"cpu processor .*: sse4\.2\n")


if __name__ == "__main__":
    if QEMU is None:
        print("skipped: there is no qemu-x86_64")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
