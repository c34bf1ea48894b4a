"""What a wheel holds, installed by CMake from this build: it must work where nothing else of Kiln is to be found."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import kiln
import pytest

BUILD = pathlib.Path(os.environ["KILN_DAEMON_PATH"]).parents[1]
PACKAGE = pathlib.Path(__file__).parents[3] / "client/python/kiln"
TOOLS = pathlib.Path(__file__).parents[3] / "tools"

PROGRAM = """
import json, torch, kiln, kiln.torch
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.GELU()), backend=kiln.torch.backend)
x = torch.randn(5, 9)
assert torch.allclose(model(x), model._orig_mod(x), atol=1e-5)
print(json.dumps(kiln.stats() | {"file": kiln.__file__}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, site / "kiln", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["cmake", "--install", BUILD, "--component", "python", "--prefix", site], check=True,
                   stdout=subprocess.DEVNULL)
    return site


def test_it_brings_its_daemon_and_workers_along(site, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    environment |= {"PYTHONPATH": str(site), "PATH": "/nonexistent", "KILN_CACHE_DIR": str(tmp_path / "cache"),
                    "XDG_STATE_HOME": str(tmp_path / "state"), "KILN_DAEMON_START_TIMEOUT_MS": "20000",
                    "KILN_DAEMON_IDLE_EXIT_MS": "1000"}
    result = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    stats = json.loads(result.stdout)
    assert stats["file"].startswith(str(site))
    assert stats["compilations"] > 0 and stats["nodes_fallback"] == 0, result.stderr


def test_its_command_line_runs_where_nothing_is_on_the_path(site, tmp_path):
    result = subprocess.run([sys.executable, "-m", "kiln", "--version"], cwd=tmp_path, capture_output=True, text=True,
                            env={"PYTHONPATH": str(site), "PATH": "/nonexistent"})
    assert (result.returncode, result.stdout) == (0, f"kiln {kiln.__version__}\n"), result.stderr


def test_a_wheel_that_lacks_a_program_or_a_library_is_not_one(site, tmp_path):
    def contents(folder):
        return subprocess.run([sys.executable, TOOLS / "wheel_contents.py", folder], capture_output=True, text=True).stdout

    assert "is missing" not in contents(site)
    # Before it is repaired, a wheel takes these from the host that built it; auditwheel brings them in.
    assert "kiln/bin/kilnd needs librocksdb.so" in contents(site)
    shutil.copytree(site / "kiln", tmp_path / "kiln", ignore=shutil.ignore_patterns("kiln-worker"))
    assert "kiln/bin/kiln-worker is missing" in contents(tmp_path)


def test_the_library_shows_its_c_interface_and_nothing_else(site):
    library = next((site / "kiln").glob("libkiln.so*"))
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in listing.splitlines()]
    header = (PACKAGE.parents[1] / "include/kiln.h").read_text()
    shown = [name.split("@")[0] for name in names if not name.startswith("KILN_")]
    assert len(shown) > 20
    assert [name for name in shown if f"{name}(" not in header] == []
