"""The commands of examples/ci/workflow.yaml, as a runner runs them: each job in a checkout, with a cache, of its own."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

yaml = pytest.importorskip("yaml", reason="the workflow is YAML, and this Python has no PyYAML")

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples/ci"
PROGRAMS = pathlib.Path(os.environ["KILN_DAEMON_PATH"]).parent


class Runner:
    """Runs jobs; `install` is what the tests' build stands for, and up- and downloads are copies."""

    def __init__(self, folder):
        self.folder, self.uploaded = folder, {}
        subprocess.run([PROGRAMS / "kiln", "key", "create", folder / "keys"], check=True, stdout=subprocess.DEVNULL)
        self.secrets = {"${{ secrets.KILN_KEY }}": (folder / "keys/kiln.key").read_text().rstrip("\n")}

    def run(self, name, job):
        checkout = self.folder / name
        shutil.copytree(EXAMPLE, checkout)
        (checkout / "keys").mkdir(mode=0o700)
        shutil.copy(self.folder / "keys/kiln.pub", checkout / "keys")
        python = pathlib.Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{python}:{os.environ['PATH']}", "KILN_PYTHON_PATH": sys.executable,
                       "KILN_CACHE_DIR": str(self.folder / f"{name}.cache"), "XDG_STATE_HOME": str(self.folder / "state"),
                       "KILN_DAEMON_START_TIMEOUT_MS": "20000", **job.get("env", {})}
        said = ""
        try:
            for step in job["steps"]:
                said = self.step(step, checkout, environment) or said
        finally:
            subprocess.run([PROGRAMS / "kiln", "daemon", "stop"], env=environment, capture_output=True)
        return said

    def step(self, step, checkout, environment):
        action = step.get("uses", "").split("@")[0]
        if action == "actions/upload-artifact":
            self.uploaded[step["with"]["name"]] = checkout / step["with"]["path"]
        elif action == "actions/download-artifact":
            (checkout / step["with"]["path"]).mkdir()
            shutil.copy(self.uploaded[step["with"]["name"]], checkout / step["with"]["path"])
        elif action:
            assert action == "actions/checkout"
        elif step["name"] != "install":
            mine = {name: self.secrets.get(value, value) for name, value in step.get("env", {}).items()}
            result = subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], cwd=checkout, env={**environment, **mine},
                                    capture_output=True, text=True)
            assert result.returncode == 0, f"{step['name']}: {result.stdout}{result.stderr}"
            return result.stdout
        return None


def test_the_workflow_fills_a_pack_and_then_compiles_nothing(tmp_path):
    jobs = yaml.safe_load((EXAMPLE / "workflow.yaml").read_text())["jobs"]
    runner = Runner(tmp_path)
    runner.run("fill", jobs["fill"])
    said = runner.run("use", jobs["use"])
    hits = int(said.split()[0])
    assert said == f"{hits} hits, 0 compilations\n" and hits > 0
