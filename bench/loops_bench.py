"""The rows of loops_bench.cc, from torch in eager mode."""
import time

import torch
import torch.nn.functional as F


def best_us(function):
    best, start = 1e30, time.perf_counter()
    rounds = 0
    while rounds < 3 or (rounds < 200 and time.perf_counter() - start < 0.3):
        begin = time.perf_counter()
        function()
        best = min(best, (time.perf_counter() - begin) * 1e6)
        rounds += 1
    return best


def rows():
    x, y = torch.randn(512, 3072), torch.randn(512, 3072)
    out = torch.empty_like(x)
    h, w, b = torch.randn(512, 768), torch.randn(768), torch.randn(768)
    g = torch.randn(512, 768)
    norm, mean, rstd = torch.native_layer_norm(h, (768,), w, b, 1e-5)
    logits = torch.randn(512, 50257)
    probabilities = torch.empty_like(logits)
    table, index = torch.zeros(50257, 768), torch.arange(512) * 37 % 50257
    h_out = torch.empty_like(h)
    yield "add 512x3072", lambda: torch.add(x, y, out=out)
    yield "gelu 512x3072", lambda: F.gelu(x, approximate="tanh")
    yield "layer_norm 512x768", lambda: torch.native_layer_norm(h, (768,), w, b, 1e-5)
    yield "layer_norm_bw 512x768", lambda: torch.ops.aten.native_layer_norm_backward(
        g, h, (768,), mean, rstd, w, b, [True, False, False])
    yield "softmax 512x50257", lambda: torch.softmax(logits, -1, out=probabilities)
    yield "log_softmax 512x50257", lambda: torch.log_softmax(logits, -1, out=probabilities)
    yield "column_sum 512x3072", lambda: x.sum(0)
    yield "column_sum 512x768", lambda: h.sum(0)
    yield "zero 50257x768", lambda: table.zero_()
    yield "scatter 512x768", lambda: table.index_add_(0, index, g)
    yield "transpose 512x768", lambda: h_out.view(768, 512).copy_(h.t())


for name, function in rows():
    times = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times.append(best_us(function))
    print(f"{name:22} {times[0]:8.0f} us            {times[1]:8.0f} us on 2 threads")
