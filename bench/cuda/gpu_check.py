"""What only a device can show, in at most nine minutes: graphs through libkiln on torch's stream and memory; training of GPT-2
through torch.compile, of a Llama-style model through kiln.compile and of a residual network of convolutions, beside Inductor;
conformance of every kernel; gemms beside cuBLAS; attention beside cuDNN and FlashAttention.

python3 gpu_check.py [--output FILE] [--only STEP,STEP]. Needs a device, its driver, Python with torch for CUDA, and nothing
from the network. Every step has its own limit; the output is written anew after each. Exit status: 0 all steps passed, 1 some
failed, 3 there is no device (nothing was run, and the result says why). Programs, libraries and the Python package are
beside this file (a bundle), or where GPU_CHECK_BIN, GPU_CHECK_LIBRARIES and GPU_CHECK_PYTHON say.
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
CONFORMANCE = ("cuda_device_loops", "cuda_device_gemm", "cuda_device_attention", "cuda_device_convolution")
SHARDS = min(32, os.cpu_count() or 1)  # of each


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


def conformance(limit_s, env, folder):
    """All shards of all programs at once: what takes long is the reference, on the host's processors."""
    children = []
    for name in CONFORMANCE:
        for shard in range(SHARDS):
            report = folder / f"{name}.{shard}.json"
            own = dict(env, GTEST_TOTAL_SHARDS=str(SHARDS), GTEST_SHARD_INDEX=str(shard))
            with open(f"{report}.log", "w", encoding="utf-8") as log:
                children.append((name, report, subprocess.Popen(
                    [f"{env['GPU_CHECK_BIN']}/{name}", f"--gtest_output=json:{report}"], env=own, stdout=log,
                    stderr=subprocess.STDOUT)))  # fmt: skip
    deadline, statuses = time.monotonic() + limit_s, []
    for _, _, child in children:
        try:
            statuses.append(child.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            child.kill()
            statuses.append(124)
    counts = {name: {"tests": 0, "failed": 0, "skipped": 0, "failures": []} for name in CONFORMANCE}
    for name, report, _ in children:
        if report.exists():
            add_report(counts[name], json.loads(report.read_text()))
    is_good = all(count["tests"] > count["skipped"] and not count["failed"] for count in counts.values())
    return max(statuses) or int(not is_good), counts


def add_report(counts, report):
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            counts["tests"] += 1
            counts["skipped"] += test.get("result") == "SKIPPED"
            if test.get("failures"):
                counts["failed"] += 1
                counts["failures"].append([f"{suite['name']}.{test['name']}", test["failures"][0]["failure"][:500]])


def script(name, *arguments):
    """Tables end by themselves before their limit (device.py)."""
    def step(limit_s, env, folder):
        env = dict(env, GPU_CHECK_SECONDS=str(0.8 * limit_s))
        out = folder / f"{'-'.join((name, *arguments))}.json"
        status, output = run([sys.executable, str(HERE / f"{name}.py"), str(out), *arguments], limit_s, env)
        result = json.loads(out.read_text()) if out.exists() else {"output": output[-4000:]}
        return status, result
    return step


# Name: limit in seconds, what runs. Together nine minutes; what the product's users see comes first.
STEPS = {"device": (20, device), "graphs": (30, script("graphs")),
         "gpt2_bfloat16": (100, script("training", "--dtype", "bfloat16")),
         "llama_bfloat16": (85, script("training", "--model", "llama", "--entry", "compile", "--dtype", "bfloat16")),
         "resnet_bfloat16": (65, script("training", "--model", "resnet", "--dtype", "bfloat16", "--layers", "2", "--width", "64",
                                        "--vocabulary", "1000", "--batch", "32", "--length", "224")),
         "gpt2_float32": (60, script("training", "--dtype", "float32")), "conformance": (80, conformance),
         "gemms": (40, script("gemms")), "attentions": (60, script("attentions"))}
SKIPPED = 77


def rows_of(steps):
    """The tables of gemms and attentions, in the form of the other results: the ratio is the best peer's time over ours."""
    for step in steps:
        for row in step["found"].get("rows", []) if isinstance(step["found"], dict) else ():
            if row["best"] is not None:
                peers = {name: row["ms"][name] for name in row["peers"]}
                yield {"case": row["case"], "unit": "ms", "ours": row["ms"][row["best"]], "peers": peers,
                       "ratio": row["ratio_of_best"]}


def result_of(steps):
    has_failed = any(s["status"] not in (0, SKIPPED) for s in steps)
    verdict = "no device" if steps[0]["status"] else "failed" if has_failed else "passed"
    facts = steps[0]["found"]
    host = {"date": datetime.date.today().isoformat(), "cpu": facts["devices"], "versions": {"driver": facts["driver"]}}
    return {"bench": "gpu_check", "host": host, "verdict": verdict, "rows": list(rows_of(steps)), "steps": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="gpu_check.json")
    parser.add_argument("--only", help=f"of {', '.join(STEPS)}; the first is always run")
    options = parser.parse_args()
    wanted = ["device", *options.only.split(",")] if options.only else STEPS
    if unknown := [name for name in wanted if name not in STEPS]:
        parser.error(f"no step is called {', '.join(unknown)}; there are {', '.join(STEPS)}")
    env, steps = environment(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, (limit_s, step) in STEPS.items():
            if name not in wanted:
                continue
            start = time.monotonic()
            status, found = step(limit_s, env, pathlib.Path(folder))
            steps.append({"step": name, "status": status, "seconds": round(time.monotonic() - start, 1), "limit_s": limit_s,
                          "found": found})
            word = {0: "passed", SKIPPED: "skipped"}.get(status, f"status {status}")
            print(f"{name}: {word} in {steps[-1]['seconds']} s", flush=True)
            result = result_of(steps)
            pathlib.Path(options.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            if name == "device" and status != 0:
                break
    verdict = result["verdict"]
    print(f"{verdict}: {steps[0]['found']['output']}" if verdict == "no device" else verdict)
    sys.exit({"passed": 0, "failed": 1, "no device": 3}[verdict])


if __name__ == "__main__":
    main()
