"""The extension of this build's libkiln, compiled against the stable ABI of Python and imported by each later Python of this host:
one build serves them all. Arguments: a C++ compiler, the source tree, the build tree's libkiln."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER, SOURCE, LIBRARY = (pathlib.Path(argument) for argument in sys.argv[1:4])
FIRST = (3, 12)  # cmake/KilnPython.cmake
LIMITED_API = f"-DPy_LIMITED_API=0x{FIRST[0]:02X}{FIRST[1]:02X}0000"
SKIPPED = 77

STEPS = r"""
import kiln, pathlib
from kiln import _kiln
assert pathlib.Path(_kiln.__file__).name == "_kiln.abi3.so", _kiln.__file__
assert kiln.__version__ == _kiln.version().split()[0]
text = _kiln.normalise("graph(%x: f32[2]) { %y = exp(%x) return %y }")
assert _kiln.normalise(text) == text
try:
    _kiln.normalise("graph(")
except kiln.Error as error:
    assert error.code_name == "invalid_argument", error.code_name
else:
    raise AssertionError("half a graph was read")
client = _kiln.Client()
assert client.setting("cache.directory").endswith("cache")
stopwatch = _kiln.Stopwatch()
assert stopwatch.run(max, 3, 4) == 4 and stopwatch.calls == 1
print("imported")
"""


def pythons():
    """Interpreters from FIRST on that have their headers: (program, folder of headers)."""
    ask = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_paths()['include'])"
    names = [f"python{FIRST[0]}.{minor}" for minor in range(FIRST[1], FIRST[1] + 8)]
    versions = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    found = {}
    for program in [*filter(None, map(shutil.which, names)), *map(str, sorted(versions.glob("*/bin/python3")))]:
        result = subprocess.run([program, "-c", ask], capture_output=True, text=True)
        if result.returncode != 0:
            continue
        major, minor, headers = result.stdout.split(maxsplit=2)
        if (int(major), int(minor)) >= FIRST and pathlib.Path(headers.strip(), "Python.h").is_file():
            found.setdefault((int(major), int(minor)), (program, headers.strip()))
    return [found[version] for version in sorted(found)]


class StableAbi(unittest.TestCase):
    def test_what_the_first_compiles_each_imports(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-abi-"))
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(SOURCE / "client/python/kiln", folder / "kiln")
        sources = sorted((SOURCE / "client/python/src").glob("*.cc"))
        subprocess.run([COMPILER, "-std=c++20", "-O1", "-fPIC", "-shared", "-fopenmp", LIMITED_API, "-I", SOURCE, "-isystem",
                        pythons()[0][1], *sources, LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}", "-o",
                        folder / "kiln/_kiln.abi3.so"], check=True)
        for program, _ in pythons():
            with self.subTest(python=program):
                result = subprocess.run([program, "-c", STEPS], capture_output=True, text=True, cwd=folder,
                                        env={"PATH": "/usr/bin:/bin", "KILN_CACHE_DIR": str(folder / "cache"),
                                             "KILN_NO_DAEMON": "1", "PYTHONPATH": str(folder)})
                self.assertEqual((result.returncode, result.stdout), (0, "imported\n"), result.stderr)


if __name__ == "__main__":
    if not pythons():
        print(f"skipped: there is no Python from {FIRST[0]}.{FIRST[1]} on with its headers")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
