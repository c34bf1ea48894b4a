#!/usr/bin/env python3
"""Trains GPT-2 (random weights) on synthetic text, through Kiln or a peer, and reports what happened.

    python train_gpt.py                          # GPT-2 124M, kiln.compile, 20 steps
    python train_gpt.py --compiler eager         # or inductor, or backend: torch.compile(model, backend="kiln")
    python train_gpt.py --layers 2 --width 128 --sequence 64 --vocabulary 1000

The text can be learned: each token follows from the one before, but for a rare random one.
"""
import argparse
import json
import os
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", choices=["kiln", "backend", "eager", "inductor"], default="kiln")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--dropout", type=float, default=0.1, help="GPT-2's default is 0.1")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--report", default=os.environ.get("TRAIN_GPT_REPORT"),
                        help="write what happened as JSON to this file")
    return parser.parse_args()


def make_model(arguments):
    from transformers import GPT2Config, GPT2LMHeadModel

    import torch

    torch.manual_seed(arguments.seed)
    last = arguments.vocabulary - 1
    config = GPT2Config(n_layer=arguments.layers, n_embd=arguments.width, n_head=arguments.heads,
                        n_positions=max(arguments.sequence, 64), vocab_size=arguments.vocabulary,
                        resid_pdrop=arguments.dropout, embd_pdrop=arguments.dropout, attn_pdrop=arguments.dropout,
                        use_cache=False, bos_token_id=last, eos_token_id=last)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model.train()


def make_text(arguments, count):
    """`count` batches of token ids."""
    import torch

    generator = torch.Generator().manual_seed(arguments.seed + 1)
    shape = (count, arguments.batch, arguments.sequence)
    noise = torch.randint(0, arguments.vocabulary, shape, generator=generator)
    random = torch.rand(shape, generator=generator) < 0.05
    text = noise.clone()
    for i in range(1, arguments.sequence):
        text[..., i] = torch.where(random[..., i], noise[..., i], (text[..., i - 1] * 5 + 7) % min(arguments.vocabulary, 97))
    return text


def compiled(model, compiler):
    import torch

    if compiler == "kiln":
        import kiln

        return kiln.compile(model)
    if compiler == "backend":
        return torch.compile(model, backend="kiln")
    if compiler == "inductor":
        return torch.compile(model)
    return model


def train(arguments):
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = make_model(arguments)
    text = make_text(arguments, arguments.steps)
    optimiser = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    torch.manual_seed(arguments.seed)
    start = time.perf_counter()
    run = compiled(model, arguments.compiler)
    compile_s = time.perf_counter() - start
    losses, seconds = [], []
    for batch in text:
        start = time.perf_counter()
        loss = run(input_ids=batch, labels=batch).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    report = {"compiler": arguments.compiler, "threads": torch.get_num_threads(), "torch": torch.__version__,
              "wrap_s": compile_s, "first_step_s": seconds[0] + compile_s, "steps_s": seconds[1:], "losses": losses}
    if arguments.compiler in ("kiln", "backend"):
        import kiln

        report["stats"] = kiln.stats()
    return report


def main():
    arguments = parse_arguments()
    report = train(arguments)
    steady = sorted(report["steps_s"])
    print(f"{arguments.compiler}: first step {report['first_step_s']:.3f} s", end="")
    if steady:
        print(f", then {steady[len(steady) // 2]:.3f} s a step (median), {steady[0]:.3f} s (best)", end="")
    print(f"; loss {report['losses'][0]:.4f} to {report['losses'][-1]:.4f}")
    if "stats" in report:
        shown = ("compilations", "misses", "hits_mapped", "hits_daemon", "nodes_compiled", "nodes_fallback", "lookup_ms")
        print(", ".join(f"{name} {report['stats'][name]:.4g}" for name in shown))
    if arguments.report:
        with open(arguments.report, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
