"""How fast is our f32 attention, forward and backward, beside torch's flash attention on the CPU? Alternating in one
process, on one OpenMP pool. Causal work is counted as half; backward as 2.5 times forward.

--threads N; --candidate I; --json FILE
"""
import argparse

import torch

from peers import Kernel, Library, race, report, row

# batch, heads, length, dim, causal
CASES = [(1, 12, 512, 64, True), (1, 12, 512, 64, False), (1, 4, 1024, 64, True), (1, 4, 2048, 64, True),
         (1, 4, 2048, 64, False), (1, 4, 1024, 128, True), (2, 4, 300, 80, True)]
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def worst_error(ours, theirs):
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs))


def finish(name, case, kernel, functions, error, flops, rounds):
    samples = race(functions, rounds)
    result = row(name, samples, flops / 1e9, "GF/s")
    result["schedule"], result["compile_ms"] = kernel.description, kernel.compile_ms
    if not error < 1e-4:
        raise RuntimeError(f"{name}: error {error}")
    print(f"{name:34s} {result['ours']:7.1f} torch {result['peers']['torch']:7.1f}  ratio {result['ratio']:.3f}"
          f"  ±{result['spread']:.3f}  {kernel.compile_ms:5.1f} ms  {kernel.tasks} tasks  {kernel.description}  error {error:.1e}",
          flush=True)
    return result


def measure(library, case, target, threads, candidate, rounds):
    batch, heads, length, dim, causal = case
    shape = f"{batch}x{heads}x{length}x{dim}{' causal' if causal else ''}"
    q, k, v, grad = (torch.randn(batch, heads, length, dim) for _ in range(4))
    numbers = (batch, heads, length, dim, int(causal), candidate)
    flops = 4.0 * batch * heads * length * length * dim * (0.5 if causal else 1)

    out, lse = torch.full_like(q, float("nan")), torch.full((batch, heads, length), float("nan"))
    forward = Kernel(library, "attention", target, *numbers)
    ours = forward.bind([q, k, v, out, lse], threads)
    ours()
    torch_out, torch_lse = FLASH(q, k, v, 0.0, causal)
    rows = [finish(f"forward {shape}", case, forward, {"ours": ours, "torch": lambda: FLASH(q, k, v, 0.0, causal)},
                   worst_error([out], [torch_out]), flops, rounds)]

    grads = [torch.full_like(q, float("nan")) for _ in range(3)]
    backward = Kernel(library, "attention_backward", target, *numbers)
    ours = backward.bind([q, k, v, out, lse, grad, *grads], threads)
    ours()
    theirs = lambda: FLASH_BACKWARD(grad, q, k, v, torch_out, torch_lse, 0.0, causal)
    rows.append(finish(f"backward {shape}", case, backward, {"ours": ours, "torch": theirs},
                       worst_error(grads, theirs()), 2.5 * flops, rounds))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--candidate", type=int, default=0)
    parser.add_argument("--target", default="x86-64-v4")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    library = Library()
    rows = [result for case in CASES
            for result in measure(library, case, arguments.target, arguments.threads, arguments.candidate, arguments.rounds)]
    report("attention", arguments.threads, rows, arguments.json)


if __name__ == "__main__":
    main()
