"""What only a device can show, in at most nine minutes: conformance of every kernel, graphs through libkiln on torch's
stream and memory, gemms beside cuBLAS, a GPT-2 forward, GPT-2 training through torch.compile.

python3 gpu_check.py [--output FILE]. Needs a device, its driver, Python with torch for CUDA, and nothing from the network.
Every step has its own limit. Exit status: 0 all steps passed, 1 some failed, 3 there is no device (nothing was run, and
the result says why). Programs, libraries and the Python package are beside this file (a bundle), or where GPU_CHECK_BIN,
GPU_CHECK_LIBRARIES and GPU_CHECK_PYTHON say.
"""
import argparse
import datetime
import glob
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SHARDS = min(8, os.cpu_count() or 1)


def environment():
    """Children find NVRTC in this Python's packages, and our libraries beside this file."""
    result = dict(os.environ)
    packages = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    folders = sorted(folder for package in packages for folder in glob.glob(f"{package}/nvidia/*/lib"))
    result["KILN_LIBRARIES_PATH"] = ":".join(filter(None, [os.environ.get("KILN_LIBRARIES_PATH"), *folders]))
    result["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(HERE / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    result.setdefault("GPU_CHECK_LIBRARIES", str(HERE / "lib"))
    result.setdefault("GPU_CHECK_BIN", str(HERE / "bin"))
    result.setdefault("GPU_CHECK_PYTHON", str(HERE / "client" / "python"))
    return result


def run(command, limit_s, env, **more):
    """(exit status, output); 124 when it ran past its limit."""
    try:
        done = subprocess.run(command, env=env, timeout=limit_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, **more)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return 124, late.stdout.decode(errors="replace") if late.stdout else ""


def device(limit_s, env, _):
    """Opens the device in a process of its own: a driver may crash or hang."""
    code = ("import ctypes, os, sys; c = ctypes.CDLL(os.environ['GPU_CHECK_LIBRARIES'] + '/libkiln_device_bench.so');"
            "c.kiln_device_error.restype = ctypes.c_char_p; bad = c.kiln_device_open(0);"
            "print(c.kiln_device_error().decode()); sys.exit(3 if bad else 0)")
    status, output = run([sys.executable, "-c", code], limit_s, env)
    facts = {"output": output.strip()}
    for name, command in (("devices", ["nvidia-smi", "-L"]),
                          ("driver", ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])):
        try:
            facts[name] = run(command, 10, env)[1].strip()
        except OSError:
            facts[name] = "no nvidia-smi"
    return status, facts


def conformance(name):
    def step(limit_s, env, folder):
        program, children = f"{env['GPU_CHECK_BIN']}/{name}", []
        for shard in range(SHARDS):
            report = folder / f"{name}.{shard}.json"
            own = dict(env, GTEST_TOTAL_SHARDS=str(SHARDS), GTEST_SHARD_INDEX=str(shard))
            children.append((report, subprocess.Popen([program, f"--gtest_output=json:{report}"], env=own,
                                                      stdout=open(f"{report}.log", "w", encoding="utf-8"),
                                                      stderr=subprocess.STDOUT)))
        deadline, statuses = time.monotonic() + limit_s, []
        for _, child in children:
            try:
                statuses.append(child.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                child.kill()
                statuses.append(124)
        counts = {"tests": 0, "failed": 0, "skipped": 0, "failures": []}
        for report, _ in children:
            if not report.exists():
                continue
            for suite in json.loads(report.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    counts["tests"] += 1
                    counts["skipped"] += test.get("result") == "SKIPPED"
                    if test.get("failures"):
                        counts["failed"] += 1
                        counts["failures"].append([f"{suite['name']}.{test['name']}", test["failures"][0]["failure"][:500]])
        ran = counts["tests"] - counts["skipped"]
        return max(statuses, default=1) or int(ran == 0 or counts["failed"] > 0), counts
    return step


def script(name):
    def step(limit_s, env, folder):
        out = folder / f"{name}.json"
        status, output = run([sys.executable, str(HERE / f"{name}.py"), str(out)], limit_s, env)
        result = json.loads(out.read_text()) if out.exists() else {"output": output[-4000:]}
        return status, result
    return step


# Name, limit in seconds, what runs. Together nine minutes.
STEPS = [("device", 30, device), ("conformance_loops", 100, conformance("cuda_device_loops")),
         ("conformance_gemm", 50, conformance("cuda_device_gemm")),
         ("conformance_attention", 50, conformance("cuda_device_attention")), ("graphs", 50, script("graphs")),
         ("gemms", 110, script("gemms")), ("gpt2", 50, script("gpt2")), ("training", 100, script("training"))]
SKIPPED = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="gpu_check.json")
    output = pathlib.Path(parser.parse_args().output)
    env, steps = environment(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, limit_s, step in STEPS:
            start = time.monotonic()
            status, found = step(limit_s, env, pathlib.Path(folder))
            steps.append({"step": name, "status": status, "seconds": round(time.monotonic() - start, 1), "limit_s": limit_s,
                          "found": found})
            word = {0: "passed", SKIPPED: "skipped"}.get(status, f"status {status}")
            print(f"{name}: {word} in {steps[-1]['seconds']} s", flush=True)
            if name == "device" and status != 0:
                break
    has_device = steps[0]["status"] == 0
    has_failed = any(s["status"] not in (0, SKIPPED) for s in steps)
    verdict = "no device" if not has_device else "failed" if has_failed else "passed"
    # The rows are the gemm table's, in the form of the other results: the ratio is cuBLAS's time over our best one's.
    gemms = next((s["found"].get("rows", []) for s in steps if s["step"] == "gemms"), [])
    rows = [{"case": row["case"], "unit": "ms", "ours": row["ms"].get(row["best"]), "peers": {"cublas": row["ms"]["cublas"]},
             "ratio": row["ratio_of_best"]} for row in gemms if row["best"]]
    facts = steps[0]["found"]
    host = {"date": datetime.date.today().isoformat(), "cpu": facts["devices"], "versions": {"driver": facts["driver"]}}
    output.write_text(json.dumps({"bench": "gpu_check", "host": host, "verdict": verdict, "rows": rows, "steps": steps},
                                 indent=1) + "\n", encoding="utf-8")
    print(f"{verdict}: {steps[0]['found']['output']}" if not has_device else verdict)
    sys.exit({"passed": 0, "failed": 1, "no device": 3}[verdict])


if __name__ == "__main__":
    main()
