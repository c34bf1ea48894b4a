"""What the benchmarks of kernels share: the library of kernel_library.cc beside torch, dtypes, files of shapes, the choice
among candidates and the check against f64."""
import ctypes
import functools
import json
import os
import pathlib
import statistics
import time

import common
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build" / os.environ.get("KILN_PRESET", "dev") / "bench/libkiln_kernel_bench.so"
# torch's dtype; the largest error, of the largest value.
DTYPES = {"f32": (torch.float32, 1e-4), "bf16": (torch.bfloat16, 2e-2), "f16": (torch.float16, 4e-3)}
SAMPLE_S = 2e-3
SETTLE_S = 2e-2  # tools/bench has OpenBLAS's threads give up after 2^24 cycles
WAKE_S = 1.2e-2  # a few ticks of the system's clock
OF_PEERS = 4  # times the error that ours may have: some of torch's forms round to bf16 on the way


@functools.cache
def library():
    """torch's OpenMP runtime is in the process, so that ours runs on the same pool."""
    c = ctypes.CDLL(str(LIBRARY))
    for name, result, arguments in (
            ("error", ctypes.c_char_p, []), ("compile", ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]),
            ("candidates", ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p]), ("description", ctypes.c_char_p, [ctypes.c_void_p]),
            ("compile_ms", ctypes.c_double, [ctypes.c_void_p]), ("destroy", None, [ctypes.c_void_p]),
            ("run", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]),
            ("roof", ctypes.c_double, [ctypes.c_char_p, ctypes.c_int]),
            *[(name, ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]) for name in ("search", "search_with_faults")],
            ("search_near", ctypes.c_char_p, [ctypes.POINTER(ctypes.c_char_p), *[ctypes.c_int] * 4])):
        function = getattr(c, f"kiln_bench_{name}")
        function.restype, function.argtypes = result, arguments
    return c


def checked(value):
    if not value:
        raise RuntimeError(library().kiln_bench_error().decode())
    return value


class Kernel:
    """A graph in the text form, compiled; kernels that race are of their candidate `candidate`, or with -1 code for any size."""

    def __init__(self, text, target="", candidate=0):
        self.handle = checked(library().kiln_bench_compile(text.encode(), target.encode(), candidate))
        self.description = library().kiln_bench_description(self.handle).decode()
        self.compile_ms = library().kiln_bench_compile_ms(self.handle)

    def bind(self, inputs, outputs, threads):
        """A function that runs it on these tensors and gives the outputs."""
        tensors = [*inputs, *outputs]
        pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        run, handle, keep = library().kiln_bench_run, self.handle, (self, tensors)

        def call():
            run(handle, pointers, threads)
            return keep[1][len(inputs):]
        return call

    def __del__(self):
        if getattr(self, "handle", None):
            library().kiln_bench_destroy(self.handle)


def require_right(name, values, exact, allowed):
    for value, reference in zip(values, exact):
        error = ((value.double() - reference).abs().max() / reference.abs().max()).item()
        if not error < allowed:
            raise RuntimeError(f"{name}: error {error}")


def ours(text, inputs, outputs, exact, allowed, options):
    """(functions of ours to race with peers, what the row says besides): all candidates that are asked for, checked."""
    count = checked(library().kiln_bench_candidates(text.encode(), options.target.encode())) if options.tuned else 1
    kernels = [Kernel(text, options.target, options.candidate + i) for i in range(count)]
    functions = {}
    for i, kernel in enumerate(kernels):
        for output in outputs:
            output.fill_(float("nan"))
        functions[i] = kernel.bind(inputs, outputs, options.threads)
        require_right(kernel.description, functions[i](), exact, allowed)
    picked = fastest(functions, options)[0] if options.tuned else 0
    named = {"kiln": functions[picked], **({"analytic": functions[0]} if options.tuned else {})}
    return named, {"schedule": kernels[picked].description, "compile_ms": kernels[picked].compile_ms}


def sampled(functions, options, rounds, most_s):
    """Samples of all functions in turn. One thread is timed by its own clock, which stands while others have its processor."""
    several = {"settle_s": SETTLE_S, "wake_s": WAKE_S}
    timing = several if options.threads > 1 else {"clock": time.thread_time}
    return common.interleave(functions, rounds, sample_s=SAMPLE_S, most_s=most_s, **timing)


def fastest(functions, options, margin=1.0):
    """Names, the fastest first, of those within `margin` of it, by the least samples of a short race: others only slow down."""
    if len(functions) == 1:
        return list(functions)
    samples = sampled(functions, options, rounds=7, most_s=options.seconds / 4)
    least = {name: min(values) for name, values in samples.items()}
    return sorted((name for name in least if least[name] <= margin * min(least.values())), key=least.get)


def race(case, mine, peers, work, options, **more):
    """The row of a case; peers that are far from the best one take no part. The roof is measured beside the case, since a
    machine's clock changes."""
    near = fastest(peers, options, margin=1.3)
    samples = sampled({**mine, **{name: peers[name] for name in near}}, options, options.rounds, options.seconds)
    roof = library().kiln_bench_roof(options.dtype.encode(), options.threads) / 1e9
    if roof:
        more |= {"roof": roof, "of_roof": work / 1e9 / statistics.median(samples["kiln"]) / roof}
    return common.row(case, samples, own=("analytic",), unit="GF/s", work=work / 1e9, **more)


def shapes(file, kind, dtype):
    """The rows of a file of shapes, {"gemm": [{…, "dtypes"}], "attention": […]}, that are of the dtype."""
    name = str(DTYPES[dtype][0]).removeprefix("torch.")
    return [row for row in json.loads(pathlib.Path(file).read_text())[kind] if name in row["dtypes"]]


def add_options(parser):
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--shapes", metavar="FILE", help="the cases are those of a file")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20, help="after which a case begins no further round")
    parser.add_argument("--target", default="", help="else the host's best one")
    parser.add_argument("--candidate", type=int, default=0, help="-1: code for any size, where there is such")
    parser.add_argument("--tuned", action="store_true", help="all candidates race first")
    parser.add_argument("--json", metavar="FILE")


def set_up(options):
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
