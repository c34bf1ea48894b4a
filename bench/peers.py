"""What the Python benchmarks share: the library beside torch, fair alternating timing, and the JSON form."""
import ctypes
import datetime
import json
import os
import pathlib
import statistics
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRESET = os.environ.get("KILN_PRESET", "dev")
LIBRARY = ROOT / "build" / PRESET / "bench/libkiln_kernel_bench.so"


class Library:
    """The C functions of bench/kernel_library.cc."""

    def __init__(self):
        # torch's OpenMP runtime must be visible, so that ours runs on the same pool.
        ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.c = ctypes.CDLL(str(LIBRARY))
        for name in ("gemm", "attention", "attention_backward"):
            if hasattr(self.c, f"kiln_bench_{name}"):
                getattr(self.c, f"kiln_bench_{name}").restype = ctypes.c_void_p
        self.c.kiln_bench_error.restype = ctypes.c_char_p
        self.c.kiln_bench_description.restype = ctypes.c_char_p
        self.c.kiln_bench_compile_ms.restype = ctypes.c_double
        for name in ("description", "compile_ms", "tasks", "code_bytes", "destroy"):
            getattr(self.c, f"kiln_bench_{name}").argtypes = [ctypes.c_void_p]
        self.c.kiln_bench_tasks.restype = ctypes.c_int64
        self.c.kiln_bench_code_bytes.restype = ctypes.c_int64
        self.c.kiln_bench_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]

    def count(self, kind, target, *arguments):
        """How many candidates there are."""
        return getattr(self.c, f"kiln_bench_{kind}_candidates")(target.encode(), *map(ctypes.c_int64, arguments))


class Kernel:
    """One compiled kernel; `arguments` are those of the C function after the target."""

    def __init__(self, library, kind, target, *arguments):
        self.c = library.c
        converted = [ctypes.c_double(a) if isinstance(a, float) else ctypes.c_int64(a) for a in arguments]
        self.handle = getattr(self.c, f"kiln_bench_{kind}")(target.encode(), *converted)
        if not self.handle:
            raise RuntimeError(self.c.kiln_bench_error().decode())
        self.description = self.c.kiln_bench_description(self.handle).decode()
        self.compile_ms = self.c.kiln_bench_compile_ms(self.handle)
        self.tasks = self.c.kiln_bench_tasks(self.handle)

    def bind(self, tensors, threads):
        """A function that launches on these tensors."""
        pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        run, handle = self.c.kiln_bench_run, self.handle
        return lambda: (run(handle, pointers, threads), tensors)[0]

    def __del__(self):
        if getattr(self, "handle", None):
            self.c.kiln_bench_destroy(self.handle)


def calls_per_sample(function, sample_s):
    function()
    start = time.perf_counter()
    function()
    once = time.perf_counter() - start
    return max(1, min(20000, int(sample_s / max(once, 1e-7))))


def race(functions, rounds=15, sample_s=2e-3):
    """Alternates the functions, starting with another one each round. Seconds per call, by name: lists of samples."""
    calls = {name: calls_per_sample(function, sample_s) for name, function in functions.items()}
    samples = {name: [] for name in functions}
    names = list(functions)
    for r in range(rounds):
        for i in range(len(names)):
            name = names[(i + r) % len(names)]
            function, count = functions[name], calls[name]
            function()
            start = time.perf_counter()
            for _ in range(count):
                function()
            samples[name].append((time.perf_counter() - start) / count)
    return samples


def spread(samples):
    quartiles = statistics.quantiles(samples, n=4)
    return (quartiles[2] - quartiles[0]) / statistics.median(samples)


def row(case, samples, scale, unit, own=()):
    """`scale` turns seconds into the unit by division (rates) for display; ratio is the best peer's time over ours. `own` are
    other kernels of ours: listed, but no peers."""
    medians = {name: statistics.median(values) for name, values in samples.items()}
    rates = {name: scale / value for name, value in medians.items()}
    ours = rates.pop("ours")
    peers = {name: rate for name, rate in rates.items() if name not in own}
    return {"case": case, "unit": unit, "ours": ours, "peers": peers, "own": {name: rates[name] for name in own if name in rates},
            "ratio": ours / max(peers.values()), "spread": spread(samples["ours"])}


def set_openblas_threads(count):
    """Of the OpenBLAS that numpy brings."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    for path in {line.split()[-1] for line in lines if "openblas" in line}:
        ctypes.CDLL(path).scipy_openblas_set_num_threads64_(count)


def host(threads):
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    known = ["avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile"]
    return {"features": [f for f in known if f in flags], "threads": threads, "cores": os.cpu_count(),
            "versions": {"torch": torch.__version__}, "date": datetime.date.today().isoformat()}


def geometric_mean(values):
    values = list(values)
    return statistics.geometric_mean(values) if values else None


def report(bench, threads, rows, file):
    result = {"bench": bench, "host": host(threads), "rows": rows,
              "summary": {"geomean_ratio": geometric_mean(r["ratio"] for r in rows),
                          "worst_ratio": min(r["ratio"] for r in rows), "cases": len(rows)}}
    if file:
        pathlib.Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print("summary", json.dumps(result["summary"]))
    return result
