"""Graphs through libkiln on a device: its daemon compiles and checks them there, and they run on torch's stream with
torch's memory. Each is compared with torch in f64: launched, called over the same memory until it is one recorded launch, and inside a
CUDA graph of torch's. What a launch and a recorded call cost the host is timed.

python graphs.py OUT.json [--device NAME]: `host` is the processor. libkiln and its programs are where GPU_CHECK_LIBRARIES
and GPU_CHECK_BIN say.
"""
import argparse
import ctypes
import json
import os
import sys
import tempfile
import time

import torch
import torch.nn.functional as functional

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Of the greatest value: sums of at most 768 products, stored in the dtype.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_char_p) for name in
                                                     ("cache_directory", "config_file", "device")]


class Client:
    """libkiln's C interface, with torch's tensors. `device`: as kiln_client_options has it; None is the host."""

    def __init__(self, cache, device):
        self.c = ctypes.CDLL(os.path.join(os.environ["GPU_CHECK_LIBRARIES"], "libkiln.so.0"))
        self.c.kiln_error_message.restype = self.c.kiln_bytes_data.restype = ctypes.c_char_p
        for name in ("client_create", "client_stats", "graph_parse", "program_create", "program_run", "program_launch",
                     "program_call", "queue_finish"):
            getattr(self.c, f"kiln_{name}").restype = ctypes.c_void_p
        self.c.kiln_program_scratch_bytes.restype = ctypes.c_size_t
        self.on_host, self.handle = device is None, ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), cache.encode(), None, device and device.encode())
        self.check(self.c.kiln_client_create(ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, error):
        if error:
            raise RuntimeError(self.c.kiln_error_message(ctypes.c_void_p(error)).decode())

    def compile(self, text):
        graph, program = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.c.kiln_graph_parse(text.encode(), ctypes.c_size_t(len(text)), ctypes.byref(graph)))
        self.check(self.c.kiln_program_create(self.handle, graph, None, ctypes.byref(program)))
        return program

    def run(self, program, inputs, outputs):
        if self.on_host:
            return self.check(self.c.kiln_program_run(program, *pointers(inputs, outputs), ctypes.c_uint32(0)))
        self.put("launch", program, inputs, outputs, None)
        return self.check(self.c.kiln_queue_finish(self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))

    def put(self, how, program, inputs, outputs, scratch):
        """On torch's stream, not waited for. `how`: launch or call."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        memory = None if scratch is None else ctypes.c_void_p(scratch.data_ptr())
        function = getattr(self.c, f"kiln_program_{how}")
        self.check(function(self.handle, program, stream, *pointers(inputs, outputs), memory))

    def scratch_of(self, program):
        return torch.empty(self.c.kiln_program_scratch_bytes(program), dtype=torch.uint8, device="cuda")

    def stats(self):
        text = ctypes.c_void_p()
        self.check(self.c.kiln_client_stats(self.handle, ctypes.byref(text)))
        return json.loads(self.c.kiln_bytes_data(text))


def pointers(*lists):
    return [(ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors)) for tensors in lists]


def softmax(x):
    return functional.softmax(x, 1)


def perceptron(x, norm, w, b, v):
    hidden = functional.layer_norm(x, x.shape[1:], norm)
    return x + functional.gelu(hidden @ w + b, approximate="tanh") @ v


def cases():
    """(name, shapes of the inputs, statements that make %y, the same in torch)."""
    yield "softmax", [(129, 1000)], "%y = softmax(%0) {dim = 1}", softmax
    yield "perceptron", [(77, 768), (768,), (768, 1544), (1544,), (1544, 768)], (
        "%h, %m, %r = layer_norm(%0, %1, none) {eps = 1e-05, normalized_rank = 1}\n"
        "%u = matmul(%h, %2)\n%s = add(%u, %3)\n%g = gelu(%s) {approximate = \"tanh\"}\n%d = matmul(%g, %4)\n"
        "%y = add(%0, %d)"), perceptron


def graph_of(shapes, statements, dtype):
    declared = ", ".join(f"%{i}: {DTYPES[dtype]}[{', '.join(map(str, shape))}]" for i, shape in enumerate(shapes))
    return f"graph({declared}) {{\n{statements}\nreturn %y\n}}"


def check(client, device, shapes, statements, function, dtype):
    torch.manual_seed(0)
    # Sums of products stay near 1.
    inputs = [torch.randn(shape, device=device).mul_(shape[0] ** -0.5 if len(shape) == 2 and i else 1).to(dtype)
              for i, shape in enumerate(shapes)]
    program = client.compile(graph_of(shapes, statements, dtype))
    expected = function(*(t.double() for t in inputs))
    got = torch.full(expected.shape, float("nan"), device=device, dtype=dtype)
    client.run(program, inputs, [got])
    error = lambda: float((got.double() - expected).abs().max() / expected.abs().max())
    errors = {"launched": error()}
    if device == "cuda":
        errors.update(replayed(client, program, inputs, got, error))
    return errors


def replayed(client, program, inputs, output, error):
    """The same over memory that is met again, and inside a graph of torch's."""
    scratch, errors = client.scratch_of(program), {}
    call = lambda: client.put("call", program, inputs, [output], scratch)
    for _ in range(3):
        call()
    output.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    errors["called again"] = error()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    output.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    errors["in a graph of torch's"] = error()
    return errors


def host_microseconds(client, how, program, inputs, output, scratch, repetitions=200):
    """Of putting the program on the stream, which is not waited for meanwhile."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repetitions):
        client.put(how, program, inputs, [output], scratch)
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * took / repetitions


def costs(client):
    """A perceptron of two rows, whose kernels take less than a launch: launch by launch, and recorded."""
    _, shapes, statements, _ = list(cases())[1]
    shapes = [(2, 768), *shapes[1:]]
    program = client.compile(graph_of(shapes, statements, torch.bfloat16))
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    output, scratch = torch.empty_like(inputs[0]), client.scratch_of(program)
    return {how: min(host_microseconds(client, how, program, inputs, output, scratch) for _ in range(5)) for how in ("launch", "call")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    on_host = arguments.device == "host"
    os.environ["KILN_DAEMON_PATH"] = os.path.join(os.environ["GPU_CHECK_BIN"], "kilnd")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(KILN_CACHE_DIR=cache, XDG_RUNTIME_DIR=cache, KILN_DAEMON_IDLE_EXIT_MS="2000")
        client, errors = Client(cache, None if on_host else arguments.device), {}
        for name, shapes, statements, function in cases():
            for dtype in DTYPES:
                for how, error in check(client, "cpu" if on_host else "cuda", shapes, statements, function, dtype).items():
                    errors[f"{name} {DTYPES[dtype]} {how}"] = {"error": error, "is_right": error <= TOLERANCE[dtype]}
        host_us = {} if on_host else costs(client)
        stats = client.stats()
    result = {"what": "graphs through libkiln on torch's stream and memory; greatest error over the greatest value",
              "device": arguments.device, "errors": errors, "compilations": stats["compilations"],
              "host_microseconds": host_us}
    print(json.dumps(result))
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    sys.exit(0 if all(entry["is_right"] for entry in errors.values()) else 1)


if __name__ == "__main__":
    main()
