"""What every benchmark shares: facts of the host, interleaved timing, and the JSON that tools/bench writes."""
import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def host():
    cpu, flags = "unknown", set()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            cpu = value.strip()
        if name.strip() == "flags":
            flags = set(value.split())
            break
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu, "python": sys.version.split()[0],
             "features": [f for f in FEATURES if f in flags]}
    if "torch" in sys.modules:
        import torch

        facts.update(torch=torch.__version__, threads=torch.get_num_threads())
    return facts


def spread(samples):
    """Interquartile range over the median."""
    if len(samples) < 4:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4)
    return (third - first) / statistics.median(samples)


def interleave(functions, rounds, warmup=1):
    """{name: [seconds]}: all functions in turn, round after round, so that drift of the machine hits all alike."""
    for _ in range(warmup):
        for function in functions.values():
            function()
    samples = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            samples[name].append(time.perf_counter() - start)
    return samples


def row(case, samples, ours="kiln", own=("backend",), unit="s", scale=1.0):
    """A row of the table from samples by name; the ratio is the best peer's median over ours: above 1 we are faster.
    `own` are other ways of Kiln: listed, but no peers of it."""
    medians = {name: statistics.median(values) * scale for name, values in samples.items()}
    others = {name: value for name, value in medians.items() if name != ours}
    peers = {name: value for name, value in others.items() if name not in own}
    return {"case": case, "unit": unit, "ours": medians[ours], "peers": peers,
            "own": {name: value for name, value in others.items() if name in own},
            "ratio": min(peers.values()) / medians[ours] if peers and medians[ours] > 0 else None,
            "minimum": {name: min(values) * scale for name, values in samples.items()},
            "spread": {name: round(spread(values), 3) for name, values in samples.items()}}


def geometric_mean(values):
    return statistics.geometric_mean(values)


def report(bench, rows, summary):
    """Prints the rows and, with --json FILE, writes them."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json")
    target = parser.parse_known_args()[0].json
    result = {"bench": bench, "host": host(), "rows": rows, "summary": summary}
    for entry in rows:
        others = {**entry.get("own", {}), **entry.get("peers", {})}
        peers = ", ".join(f"{name} {value:.4g}" for name, value in others.items())
        ratio = f", ratio {entry['ratio']:.3g}" if entry.get("ratio") else ""
        print(f"{entry['case']}: {entry['ours']:.4g} {entry['unit']}" + (f" ({peers}{ratio})" if peers else ""))
    print(json.dumps(summary))
    if target:
        pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
