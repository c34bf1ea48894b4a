#!/usr/bin/env python3
"""All of bench/results/*.json as Markdown, for docs/benchmarks.md: python bench/tables.py [--output FILE]

The benchmarks of GPT-2 (rows with `minimum` or `own`) and those of kernels (rows with a rate) share one form: `case`,
`unit`, `ours`, `peers`, `ratio` and `spread` (interquartile range over median), so one table serves all."""
import argparse
import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
HEAD = """# Benchmarks

What was measured, on which machine, and how: each file of `bench/results/` as one table, written by
`bench/tables.py`. `ratio` is the best peer's time over ours: above 1 Kiln is faster. `spread` is the interquartile
range over the median. Samples of one table are interleaved.
"""
TITLES = {
    "model": "Step time", "warm_start": "Second process", "cold_compile": "Cold compilation", "depth": "Depth",
    "call_overhead": "Cost of a call", "stampede": "Many clients, one graph", "accuracy": "Accuracy",
    "coverage": "Coverage", "optimizer_step": "Optimizer's step", "gemm f32": "Matrix products, f32", "gemm bf16": "Matrix products, bf16", "gemm f16": "Matrix products, f16", "attention": "Attention", "quantized": "Products with bytes",
    "cuda_compile": "Kernels for devices that are not here", "gpu_check": "On a device",
    "torch_fuzz": "Random torch programs",
}  # fmt: skip


def number(value):
    if value is None:
        return "-"
    if isinstance(value, (int, float)):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def spread_of(row):
    """The spread of our samples; kernels' benchmarks give it alone, others by name."""
    spread = row.get("spread")
    if isinstance(spread, dict):
        return next(iter(spread.values()), None)
    return spread


def table(rows):
    own = list(dict.fromkeys(name for row in rows for name in row.get("own", {})))
    peers = list(dict.fromkeys(name for row in rows for name in row.get("peers", {})))
    with_ratio = any(row.get("ratio") is not None for row in rows)
    with_spread = any(spread_of(row) for row in rows)
    heads = ["case", "unit", "ours", *own, *peers, *(["ratio"] if with_ratio else []), *(["spread"] if with_spread else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row["case"], row.get("unit", ""), number(row["ours"])]
        cells += [number(row.get("own", {}).get(name)) for name in own]
        cells += [number(row.get("peers", {}).get(name)) for name in peers]
        cells += [number(row.get("ratio"))] if with_ratio else []
        cells += [number(spread_of(row))] if with_spread else []
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def machine(host):
    """One line: date, processor, features, threads, versions."""
    versions = host.get("versions") or {name: host[name] for name in ("torch", "python") if name in host}
    parts = [host.get("date"), host.get("cpu"), " ".join(host.get("features", [])),
             f"{host['threads']} threads" if "threads" in host else None,
             ", ".join(f"{name} {version}" for name, version in versions.items())]
    return ", ".join(part for part in parts if part)


def flatten(summary, prefix=""):
    """Nested figures as (name, value)."""
    for name, value in summary.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from flatten(value, f"{path}: ")
        else:
            yield path, ", ".join(map(number, value)) if isinstance(value, list) else number(value)


def section(result):
    lines = [f"## {TITLES.get(result['bench'], result['bench'])}", "", f"{machine(result['host'])}.", ""]
    lines += [result["note"], ""] if result.get("note") else []
    lines += table(result["rows"])
    summary = list(flatten(result.get("summary", {})))
    lines += ["", *(f"- {name}: {value}" for name, value in summary)] if summary else []
    return lines


def render(folder=RESULTS):
    """All results as one Markdown document, GPT-2's first, in the order of TITLES."""
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    order = list(TITLES)
    results.sort(key=lambda r: order.index(r["bench"]) if r["bench"] in order else len(order))
    return "\n".join([HEAD, *("\n".join(section(r)) + "\n" for r in results)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    document = render()
    if arguments.output:
        pathlib.Path(arguments.output).write_text(document)
    else:
        print(document, end="")


if __name__ == "__main__":
    main()
