"""Where there is no device, the check says so with the reason, writes no table, and ends with status 3. Its graphs and
its training are right on the host, where torch is."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPTS, LIBRARIES, PROGRAMS, PYTHON = sys.argv[1:]


def run(script, *arguments):
    env = dict(os.environ, GPU_CHECK_LIBRARIES=LIBRARIES, GPU_CHECK_BIN=PROGRAMS, GPU_CHECK_PYTHON=PYTHON, CUDA_VISIBLE_DEVICES="")
    return subprocess.run([sys.executable, f"{SCRIPTS}/{script}", *arguments], env=env, capture_output=True, text=True,
                          timeout=100, check=False)


def no_device_is_said(output):
    done = run("gpu_check.py", "--output", str(output))
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert "no device: unavailable: cuda:" in done.stdout, done.stdout
    result = json.loads(output.read_text())
    assert result["verdict"] == "no device", result
    assert result["rows"] == [] and [step["step"] for step in result["steps"]] == ["device"], result


def graphs_are_right_on_the_host(output):
    done = run("graphs.py", str(output), "--device", "host")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    result = json.loads(output.read_text())
    assert result["compilations"] > 0 and len(result["errors"]) > 1, result


def training_is_right_on_the_host(output, *arguments):
    done = run("training.py", str(output), "--layers", "2", "--width", "64", "--vocabulary", "500", "--batch", "1", "--length", "40",
               *arguments, "--device", "cpu")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    result = json.loads(output.read_text())
    assert result["cold"]["stats"]["compilations"] > 0 and result["warm"]["stats"]["compilations"] == 0, result


def main():
    with tempfile.TemporaryDirectory() as folder:
        no_device_is_said(pathlib.Path(folder) / "check.json")
        if importlib.util.find_spec("torch"):
            graphs_are_right_on_the_host(pathlib.Path(folder) / "graphs.json")
            training_is_right_on_the_host(pathlib.Path(folder) / "gpt2.json")
            training_is_right_on_the_host(pathlib.Path(folder) / "llama.json", "--model", "llama", "--entry", "compile")
            training_is_right_on_the_host(pathlib.Path(folder) / "resnet.json", "--model", "resnet", "--layers", "1", "--width", "8",
                                          "--batch", "2")


main()
