"""Where there is no device, the check says so with the reason, writes no table, and ends with status 3."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPT, LIBRARIES = sys.argv[1:]


def main():
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "result.json"
        env = dict(os.environ, KILN_BENCH_LIBRARIES=LIBRARIES, CUDA_VISIBLE_DEVICES="")
        done = subprocess.run([sys.executable, SCRIPT, "--output", str(output)], env=env, capture_output=True, text=True,
                              timeout=100, check=False)
        assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
        assert "no device: unavailable: cuda:" in done.stdout, done.stdout
        result = json.loads(output.read_text())
        assert result["verdict"] == "no device", result
        assert result["rows"] == [] and [step["step"] for step in result["steps"]] == ["device"], result


main()
