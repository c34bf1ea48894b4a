"""Kernels of Kiln beside torch's on a device: what the tables share. Loads libkiln_device_bench.so."""
import concurrent.futures
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

import torch

MOST_CANDIDATES = 16
DEFAULT_SECONDS = 90.0
DTYPES = {torch.float16: 5, torch.bfloat16: 6, torch.float32: 7}


def deadline():
    """When a table ends by itself, by time.monotonic()."""
    return time.monotonic() + float(os.environ.get("GPU_CHECK_SECONDS", DEFAULT_SECONDS))


class DeviceError(RuntimeError):
    """Attributes: code_name, of Kiln's status codes."""

    def __init__(self, library) -> None:
        super().__init__(library.kiln_device_error().decode())
        self.code_name = library.kiln_device_error_code().decode()


class Kernel:
    def __init__(self, library, handle):
        if not handle:
            raise DeviceError(library)
        self.library, self.handle = library, handle
        self.description = library.kiln_device_description(handle).decode()

    def __call__(self, *tensors):
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.library.kiln_device_launch(self.handle, pointers, stream):
            raise DeviceError(self.library)

    def __del__(self):
        self.library.kiln_device_destroy(self.handle)


class Library:
    def __init__(self):
        folder = os.environ.get("GPU_CHECK_LIBRARIES", pathlib.Path(__file__).resolve().parent)
        self.c = ctypes.CDLL(str(pathlib.Path(folder) / "libkiln_device_bench.so"))
        self.c.kiln_device_error.restype = self.c.kiln_device_description.restype = ctypes.c_char_p
        self.c.kiln_device_error_code.restype = ctypes.c_char_p
        self.c.kiln_device_description.argtypes = self.c.kiln_device_destroy.argtypes = [ctypes.c_void_p]
        self.c.kiln_device_linear.restype = ctypes.c_void_p
        self.c.kiln_device_linear.argtypes = [ctypes.c_int] + [ctypes.c_int64] * 3 + [ctypes.c_int] * 6
        self.c.kiln_device_attention.restype = ctypes.c_void_p
        self.c.kiln_device_attention.argtypes = ([ctypes.c_int] + [ctypes.c_int64] * 6 + [ctypes.c_int, ctypes.c_int64] +
                                                 [ctypes.c_int] * 2)
        self.c.kiln_device_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.c.kiln_device_of_cudnn.restype = ctypes.c_char_p
        if self.c.kiln_device_open(0):
            raise DeviceError(self.c)

    def linear(self, dtype, m, n, k, x_transposed=False, w_transposed=False, bias=False, gelu=False, residual=False,
               candidate=0):
        return Kernel(self.c, self.c.kiln_device_linear(DTYPES[dtype], m, n, k, x_transposed, w_transposed, bias, gelu,
                                                        residual, candidate))

    def attention(self, dtype, shape, causal=False, window=0, backward=False, candidate=0):
        """`shape`: batch, heads, heads of keys, queries, keys, depth."""
        return Kernel(self.c, self.c.kiln_device_attention(DTYPES[dtype], *shape, causal, window, backward, candidate))


def candidates(make):
    """What make(candidate=0, 1, ...) gives, compiled on all processors, with what was refused left out."""
    def one(index):
        try:
            return make(candidate=index)
        except DeviceError as failure:
            if failure.code_name != "out_of_range":
                print(f"candidate {index}: {failure}", file=sys.stderr)
            return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for kernel in pool.map(one, range(MOST_CANDIDATES)) if kernel is not None]


def race(functions, repetitions, rounds=9):
    """Median milliseconds of a call of each, all taking turns."""
    for function in functions.values():
        milliseconds(function, 2)
    samples = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(milliseconds(function, repetitions))
    return {name: statistics.median(values) for name, values in samples.items()}


def row_of(case, times, peers, wrong, operations):
    """A line of a table, printed in short. `times`: milliseconds of a call by name, of ours the analytic pick first; `peers`:
    which names are others'; `operations`: multiplications and additions of a call."""
    own = {name: value for name, value in times.items() if name not in peers}
    best, first, peer = min(own, key=own.get, default=None), next(iter(own), None), min(peers, key=times.get, default=None)
    ratio = lambda name: times[peer] / own[name] if peer and name else None
    row = {"case": case, "ms": times, "peers": list(peers), "wrong": wrong, "best": best, "peer": peer,
           "ratio_of_best": ratio(best), "ratio_of_first": ratio(first),
           "tflops": {name: 1e-9 * operations / value for name, value in times.items()}}  # fmt: skip
    print(json.dumps({key: row[key] for key in ("case", "best", "peer", "ratio_of_best", "ratio_of_first", "wrong")}), flush=True)
    return row


def milliseconds(function, repetitions):
    """The mean of `repetitions` calls by the device's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repetitions):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repetitions
