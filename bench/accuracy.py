#!/usr/bin/env python3
"""Is it right? GPT-2 124M, batch 1, f32 with Kiln and in eager mode, both against the same model in f64:

  error       of logits, loss and each parameter's gradient in one training step of 512 tokens: root of the squared
              error over that of the f64 values, and the greatest error over the greatest value; Kiln's over eager's own
  curve       the loss over 20 steps of AdamW: without dropout against f64, with GPT-2's dropout against eager, same
              seed. Of 128 tokens, as 20 steps of 512 in f64 take minutes: the rows say so; --curve-sequence changes it
  repeatable  logits and gradients of a process that compiled, and of one that mapped: the same bits

    python accuracy.py [--ways kiln,backend] [--parts errors,curves,repeatable] [--steps 20] [--json FILE]
    python accuracy.py --digest WAY         one process: digests of what it computed, as JSON

f64 is computed once for all ways; all parts share one cache, empty at first.
"""
import argparse
import copy
import hashlib
import json
import os
import statistics

import common
import gpt2

LEARNING_RATE = 1e-4


def step(run, model, ids):
    """Logits, loss and gradients by name; the model's gradients are taken away."""
    result = run(input_ids=ids, labels=ids)
    result.loss.backward()
    values = {"logits": result.logits.detach(), "loss": result.loss.detach()}
    values.update((f"gradient of {name}", p.grad) for name, p in model.named_parameters())
    model.zero_grad(set_to_none=True)
    return values


def exact_model(base):
    """The model in f64, the loss too: transformers computes that in f32 whatever the model's dtype."""
    import torch

    def loss(logits, labels, vocab_size, **_):
        shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return torch.nn.functional.cross_entropy(logits.view(-1, vocab_size), shifted.reshape(-1))

    model = copy.deepcopy(base).double()
    model.loss_function = loss
    return model


def errors(values, exact):
    """{name: (relative error in the Frobenius norm, greatest error over greatest value)}"""
    result = {}
    for name, value in values.items():
        difference, reference = value.double() - exact[name], exact[name]
        result[name] = ((difference.norm() / reference.norm()).item(),
                        (difference.abs().max() / reference.abs().max()).item())
    return result


def compare_errors(way, base, ids, exact, eager):
    import torch

    our_model = copy.deepcopy(base)
    ours = errors(step(gpt2.compiled(our_model, way), our_model, ids), exact)
    ratios = {kind: {name: ours[name][i] / max(eager[name][i], torch.finfo(torch.float32).eps) for name in ours}
              for i, kind in enumerate(("norm", "maximum"))}
    worst = {kind: max(by_name, key=by_name.get) for kind, by_name in ratios.items()}
    rows = []
    for i, kind in enumerate(("norm", "maximum")):
        for name in ("logits", "loss", worst[kind]):
            rows.append(common.show({
                "case": f"{way}: error of {name}, {kind}", "unit": "relative", "ours": ours[name][i],
                "peers": {"eager": eager[name][i]}, "ratio": eager[name][i] / max(ours[name][i], 1e-300)}))
    summary = {}
    for kind, name in worst.items():
        summary[f"worst_{kind}"] = [name, round(ratios[kind][name], 3)]
        summary[f"median_{kind}"] = round(statistics.median(ratios[kind].values()), 3)
        summary[f"above_2_{kind}"] = f"{sum(r > 2 for r in ratios[kind].values())} of {len(ratios[kind])}"
    return rows, summary


def curve(way, base, ids, steps, seed=3):
    """Losses over training steps; way f64: of the exact model."""
    import torch

    model = exact_model(base) if way == "f64" else copy.deepcopy(base)
    run = gpt2.compiled(model, way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(seed)
    losses = []
    for i in range(steps):
        loss = run(input_ids=ids[i % len(ids)], labels=ids[i % len(ids)]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def farthest(losses, reference):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference))


def compare_curves(ways, steps, sequence):
    """Losses on four batches, seen in turn, so that the curve falls."""
    import torch

    rows, summary = [], {}
    batches = [gpt2.tokens(sequence=sequence, seed=i) for i in range(4)]
    for dropout in (0.0, 0.1):
        base = gpt2.make_model(dropout=dropout).train()
        curves = {name: curve(name, base, batches, steps) for name in ("eager", *ways)}
        case = f"{steps} steps of {sequence} tokens, dropout {dropout}"
        if dropout == 0.0:
            exact = curve("f64", base, batches, steps)
            reference = "f64"
        else:
            torch.set_num_threads(1)  # another order of summation: how far rounding alone takes eager's curve
            exact, reference = curves["eager"], "eager on 2 threads"
            curves["eager"] = curve("eager", base, batches, steps)
            torch.set_num_threads(2)
        for way in ways:
            rows.append(common.show({
                "case": f"{way}: loss curve, {case}, against {reference}", "unit": "relative",
                "ours": farthest(curves[way], exact), "peers": {"eager": farthest(curves["eager"], exact)},
                "first": curves[way][0], "last": curves[way][-1], "eager_last": curves["eager"][-1]}))
            summary[f"{way}, dropout {dropout}"] = {"farthest": rows[-1]["ours"], "eager": rows[-1]["peers"]["eager"]}
    return rows, summary


def digest(way, sequence):
    """Digests of three training steps with dropout: what a second process must repeat."""
    import kiln
    import torch

    torch.set_num_threads(2)
    model = gpt2.make_model(dropout=0.1).train()
    run, ids = gpt2.compiled(model, way), gpt2.tokens(sequence=sequence)
    torch.manual_seed(3)
    digests = []
    for _ in range(3):
        bits = hashlib.sha256()
        for value in step(run, model, ids).values():
            bits.update(value.contiguous().numpy().tobytes())
        digests.append(bits.hexdigest())
    stats = kiln.stats()
    print(json.dumps({"digests": digests, "misses": stats["misses"], "compilations": stats["compilations"],
                      "generation": stats["generation"]}))


def repeatable(way, cache, sequence):
    arguments = ("accuracy.py", "--digest", way, "--curve-sequence", sequence)
    cold = cache.run(*arguments)
    cache.stop_daemon()
    warm = cache.run(*arguments, KILN_NO_DAEMON="1")
    assert cold["misses"] > 0 and warm["misses"] == warm["compilations"] == 0, (cold, warm)
    return {"bit_equal": cold["digests"] == warm["digests"], "generation": [cold["generation"], warm["generation"]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="kiln,backend")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--parts", default="errors,curves,repeatable")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--curve-sequence", type=int, default=128)
    parser.add_argument("--digest", choices=gpt2.COMPILERS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.digest:
        return digest(arguments.digest, arguments.curve_sequence)
    with gpt2.Cache() as cache:
        os.environ.update(cache.environment)
        measure(arguments, cache)


def measure(arguments, cache):
    ways, rows, summary = arguments.ways.split(","), [], {}
    if "repeatable" in arguments.parts:  # first: its first process must find nothing
        summary["cold and warm process"] = {way: repeatable(way, cache, arguments.curve_sequence) for way in ways}
    import torch

    torch.set_num_threads(2)
    if "errors" in arguments.parts:
        base, ids = gpt2.make_model(), gpt2.tokens(sequence=arguments.sequence)
        model = exact_model(base)
        exact = step(model, model, ids)
        model = copy.deepcopy(base)
        eager = errors(step(model, model, ids), exact)
        del model
        for way in ways:
            more, summary[f"{way}, error over eager's"] = compare_errors(way, base, ids, exact, eager)
            rows += more
    if "curves" in arguments.parts:
        more, summary["curves"] = compare_curves(ways, arguments.steps, arguments.curve_sequence)
        rows += more
    common.report("accuracy", rows, summary)


if __name__ == "__main__":
    main()
