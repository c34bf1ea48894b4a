"""Training steps of a model through torch.compile(backend="kiln") or kiln.compile on a device: torch's streams and memory,
Kiln's kernels. Loss and gradients are compared with torch's in f64; steps, the first one too, are timed beside torch's own and Inductor's, and
the device's kernels of one step of each are counted; a second process without a daemon finds everything compiled and computes
the same bits.

python training.py OUT.json [--model gpt2 | llama | resnet] [--entry backend | compile] [--dtype D] [--attention torch] [--device cpu] [--layers N --width N --vocabulary N --batch N
--length N]. OUT.json is written after each process. The package kiln is where GPU_CHECK_PYTHON says; its extension is built
there for this Python when it is for another one (c++ and Python.h are needed).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import torch

from models import MODELS

SKIPPED = 77
LISTED = 25  # kernels of a step, those that take the most time


def wait(device):
    if device.type != "cpu":
        torch.accelerator.synchronize()


def step(model, run, inputs):
    """(loss, gradients)"""
    model.zero_grad(set_to_none=True)
    loss = run(*inputs)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def seconds_of(model, run, inputs):
    start = time.perf_counter()
    step(model, run, inputs)
    wait(inputs[0].device)
    return time.perf_counter() - start


def kernels_of(model, run, inputs):
    """What one step is on the device: how many launches and copies, their milliseconds together, those from the first one's
    start to the last one's end, and the names that take the most. All zero where the profiler sees no device."""
    for _ in range(2):  # the first profile of a process also starts the profiler
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step(model, run, inputs)
            wait(inputs[0].device)
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    rows = {}
    for event in events:
        row = rows.setdefault(event.name, {"name": event.name, "launches": 0, "ms": 0.0})
        row["launches"] += 1
        row["ms"] += 1e-3 * event.time_range.elapsed_us()
    start = min((event.time_range.start for event in events), default=0)
    end = max((event.time_range.end for event in events), default=0)
    return {"launches": len(events), "busy_ms": sum(row["ms"] for row in rows.values()), "span_ms": 1e-3 * (end - start),
            "kernels": sorted(rows.values(), key=lambda row: -row["ms"])[:LISTED]}


def error(got, exact):
    """Of loss and gradients: the root mean square of each's error over that of its values, the worst."""
    return max(float(((g.double() - e).square().mean() / e.square().mean().clamp_min(1e-30)).sqrt())
               for g, e in zip([got[0], *got[1]], [exact[0], *exact[1]]))


def measure(options, dtype):
    """One dtype in this process."""
    import kiln
    from kiln.torch import backend  # its name is known where the package is installed

    torch.manual_seed(0)
    device = torch.device(options.device)
    make = lambda: MODELS[options.model](options.layers, options.width, options.vocabulary, options.length).to(device, dtype)
    exact_model = make().double()
    batch = MODELS[options.model].batch_of(options.batch, options.length, options.vocabulary, device)
    inputs, exact_inputs = ([x.to(to) if x.is_floating_point() else x for x in batch] for to in (dtype, torch.double))
    model = make()
    model.load_state_dict(exact_model.state_dict())
    eager_first = seconds_of(model, model, inputs)
    exact = step(exact_model, exact_model, exact_inputs)
    errors = {"torch": error(step(model, model, inputs), exact)}
    ways = {"torch": model,
            "kiln": torch.compile(model, backend=backend) if options.entry == "backend" else kiln.compile(model)}
    firsts = {"torch": eager_first, "kiln": seconds_of(model, ways["kiln"], inputs)}
    got = step(model, ways["kiln"], inputs)
    errors["kiln"] = error(got, exact)
    stats = kiln.stats()
    del exact, exact_model
    if options.with_inductor:
        ways["inductor"] = torch.compile(model)
        firsts["inductor"] = seconds_of(model, ways["inductor"], inputs)
    samples = {name: [] for name in ways}
    for _ in range(9):
        for name, run in ways.items():
            samples[name].append(seconds_of(model, run, inputs))
    on_device = ways if device.type != "cpu" else {}
    return {"errors": errors, "first_step_s": firsts,
            "on_device": {name: kernels_of(model, run, inputs) for name, run in on_device.items()},
            "step_ms": {name: 1e3 * statistics.median(values) for name, values in samples.items()},
            "loss": got[0].item().hex(), "stats": {name: value for name, value in stats.items() if not isinstance(value, float)},
            "reasons": sorted({entry["reason"] for entry in kiln.explain() if "node" in entry})}


def in_process(options, *arguments, **variables):
    """measure() in a process of its own: its answer, or its last words."""
    command = [sys.executable, __file__, *sys.argv[1:], "--measure", options.dtype, *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"output": (done.stdout + done.stderr)[-3000:]}
    return json.loads(done.stdout.splitlines()[-1])


def why_no_extension(folder):
    """None when the package's extension for this Python is there; it is built where only its sources are."""
    target = folder / "kiln" / f"_kiln{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = sorted((folder / "src").glob("*.cc"))
    if target.exists():
        return None
    if not sources:
        return f"no extension for Python {sys.version.split()[0]}"
    command = ["c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-static-libstdc++",
               "-static-libgcc", "-I", folder.parents[1], "-I", sysconfig.get_path("include"), *sources, "-o", target,
               "-L", os.environ["GPU_CHECK_LIBRARIES"], "-l:libkiln.so.0"]
    try:
        built = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as missing:
        return f"no extension for Python {sys.version.split()[0]}: {missing}"
    return None if built.returncode == 0 else f"the extension was not built: {built.stderr[-2000:]}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--measure", help="one dtype, in this process")
    parser.add_argument("--with-inductor", action="store_true", help="beside Inductor, too")
    parser.add_argument("--model", default="gpt2", choices=MODELS)
    parser.add_argument("--entry", default="backend", choices=("backend", "compile"), help="of Kiln")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--attention", default="kiln", choices=("kiln", "torch"), help="whose, on a device")
    parser.add_argument("--convolution", default="kiln", choices=("kiln", "torch"), help="whose")
    for name, default in (("layers", 12), ("width", 768), ("vocabulary", 50257), ("batch", 8), ("length", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def is_right(cold, warm):
    """As near to f64 as torch in the dtype, give or take; nothing compiled again; the same bits."""
    if "errors" not in cold or "errors" not in warm:
        return False
    near = cold["errors"]["kiln"] <= 2 * cold["errors"]["torch"] + 1e-6
    mapped = warm["stats"]["misses"] == 0 and warm["stats"]["hits_mapped"] > 0
    return near and mapped and cold["stats"]["nodes_compiled"] > 0 and cold["loss"] == warm["loss"]


def main():
    options = arguments()
    folder = pathlib.Path(os.environ["GPU_CHECK_PYTHON"])
    sys.path.insert(0, str(folder))
    if options.measure:
        print(json.dumps(measure(options, getattr(torch, options.measure))))
        return
    if reason := why_no_extension(folder):
        print(reason)
        sys.exit(SKIPPED)
    result = {"what": f"{options.model} training step by {options.entry}, {options.layers} layers, width {options.width}, {options.batch} x "
                      f"{options.length}", "device": options.device, "dtype": options.dtype,
              "attention": options.attention, "convolution": options.convolution}  # fmt: skip
    os.environ["KILN_DAEMON_PATH"] = os.path.join(os.environ["GPU_CHECK_BIN"], "kilnd")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(KILN_ATTENTION=options.attention, KILN_CONVOLUTION=options.convolution, KILN_CACHE_DIR=cache, XDG_RUNTIME_DIR=cache,
                          KILN_DAEMON_IDLE_EXIT_MS="2000", TORCHINDUCTOR_CACHE_DIR=f"{cache}/inductor")  # fmt: skip
        beside = ["--with-inductor"] if options.device != "cpu" else []
        for name, more, variables in (("cold", beside, {}), ("warm", [], {"KILN_NO_DAEMON": "1"})):
            result[name] = in_process(options, *more, **variables)
            with open(options.output, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
    print(json.dumps(result))
    sys.exit(0 if is_right(result["cold"], result["warm"]) else 1)


if __name__ == "__main__":
    main()
