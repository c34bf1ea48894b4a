#!/usr/bin/env python3
"""All of bench/results/*.json as Markdown, for docs/benchmarks.md: python bench/tables.py [--output FILE]

Rows are those of common.py, so one table serves all."""
import argparse
import json
import pathlib

import common

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
HEAD = """# Benchmarks

What was measured, on which machine, and how: each file of `bench/results/` as one table, written by
`bench/tables.py`. `ratio` is the best peer's time over ours: above 1 Kiln is faster. `spread` is the interquartile
range over the median; of fewer than four samples, their whole range. Samples of one table are interleaved. `of roof` is what
ours reaches of the multiply-adds that as many threads do in registers, measured beside each case (`kiln bench`).
"""
TITLES = {
    "model": "Step time", "warm_start": "Second process", "second_process": "Second processes of several models",
    "cold_compile": "Cold compilation", "depth": "Depth", "export": "Exports",
    "call_overhead": "Cost of a call", "stampede": "Many clients, one graph", "ranks": "Ranks of a job", "fleet": "Hosts of a fleet beside one store",
    "remote": "A fleet's store", "pack": "A mounted pack", "daemon": "Answers of a daemon", "accuracy": "Accuracy",
    "coverage": "Coverage", "optimizer_step": "Optimizer's step", "memory": "Peak memory",
    "gemm f32": "Matrix products, f32", "gemm bf16": "Matrix products, bf16", "gemm f16": "Matrix products, f16",
    "attention f32": "Attention, f32", "attention bf16": "Attention, bf16", "attention f16": "Attention, f16",
    "conv f32": "Convolutions, f32", "conv bf16": "Convolutions, bf16", "tune": "Tuning",
    "near_shapes": "Winners of near shapes", "background_cost": "What tuning in the background costs",
    "dynamic": "Sizes that change", "quantized": "Products with bytes", "flex 1024": "FlexAttention, 1024 queries, f32",
    "recurrent": "Recurrent layers, f32",
    "cuda_compile": "Kernels for devices that are not here", "cuda_libraries": "Vendors' libraries without a device", "gpu_check": "On a device",
    "torch_fuzz": "Random torch programs", "graph_fuzz": "Random graphs", "conformance": "Other people's suites",
}  # fmt: skip
OVERVIEW = ("model", "memory", "optimizer_step", "warm_start", "cold_compile", "gemm", "attention", "tune")


def number(value):
    if value is None:
        return "-"
    if isinstance(value, (int, float)):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def spread_of(row):
    """Of our samples, which come first."""
    return next(iter(row.get("spread", {}).values()), None)


def title(result):
    return TITLES.get(result["bench"], result["bench"])


def table(rows):
    own = list(dict.fromkeys(name for row in rows for name in row.get("own", {})))
    peers = list(dict.fromkeys(name for row in rows for name in row.get("peers", {})))
    with_ratio = any(row.get("ratio") is not None for row in rows)
    with_roof, with_spread = any(row.get("of_roof") for row in rows), any(spread_of(row) for row in rows)
    heads = ["case", "unit", "ours", *own, *peers, *(["ratio"] if with_ratio else []),
             *(["of roof"] if with_roof else []), *(["spread"] if with_spread else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row["case"], row.get("unit", ""), number(row["ours"])]
        cells += [number(row.get("own", {}).get(name)) for name in own]
        cells += [number(row.get("peers", {}).get(name)) for name in peers]
        cells += [number(row.get("ratio"))] if with_ratio else []
        cells += [number(row.get("of_roof"))] if with_roof else []
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


def overview(results):
    """A line for each result about speed or memory: how far ahead of the best peer."""
    lines = ["| what | machine | threads | cases | geometric mean | worst | below 1 |", "|---|---|---|---|---|---|---|"]
    for result in results:
        found, host = common.ratios(result["rows"]), result["host"]
        if found["cases"] and result["bench"].split()[0] in OVERVIEW:
            lines.append(f"| {title(result)} | {host.get('cpu', 'not noted')}, {host['date']} | {host.get('threads', 'not noted')} "
                         f"| {found['cases']} | {number(found['geometric mean'])} "
                         f"| {number(found['worst'])} ({found['worst case']}) | {found['below 1']} |")
    return lines


def section(result):
    lines = [f"## {title(result)}", "", f"{machine(result['host'])}.", ""]
    lines += [result["note"], ""] if result.get("note") else []
    lines += table(result["rows"])
    summary = list(flatten(result.get("summary", {})))
    lines += ["", *(f"- {name}: {value}" for name, value in summary)] if summary else []
    return lines


def graph_fuzz():
    """The runs on record as one result."""
    runs = [json.loads(line) for line in (RESULTS / "graph_fuzz.jsonl").read_text().splitlines()]
    rows = [{"case": f"{run['date']}, {run['build']}, from seed {run['first_seed']} on", "unit": "graphs", "ours": run["graphs"],
             "own": {name: run[name] for name in ("compiled", "nodes", "failed")}} for run in runs]
    notes = [f"{run['build']}, from seed {run['first_seed']} on: {run['closed']}." for run in runs if "closed" in run]
    total = {name: sum(run[name] for run in runs) for name in ("graphs", "compiled", "failed")}
    return {"bench": "graph_fuzz", "host": {"date": runs[-1]["date"], "cpu": runs[-1]["machine"]}, "rows": rows,
            "note": " ".join(notes), "summary": total}


def all_results():
    """In the order of TITLES."""
    results = [*(json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))), graph_fuzz()]
    order = list(TITLES)
    return sorted(results, key=lambda r: order.index(r["bench"]) if r["bench"] in order else len(order))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    document = "\n".join([HEAD, *("\n".join(section(result)) + "\n" for result in all_results())])
    if arguments.output:
        pathlib.Path(arguments.output).write_text(document)
    else:
        print(document, end="")


if __name__ == "__main__":
    main()
