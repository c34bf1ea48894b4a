#!/usr/bin/env python3
"""The demo's table: what each run reported, side by side."""
import json
import pathlib
import statistics
import sys


def load(folder):
    runs = {}
    for name in ("cold", "warm", "eager", "inductor"):
        file = folder / f"{name}.json"
        if file.exists():
            runs[name] = json.loads(file.read_text())
    return runs


def row(title, runs, cell):
    cells = []
    for run in runs.values():
        try:
            cells.append(cell(run))
        except KeyError:
            cells.append("-")
    print(f"{title:<34}" + "".join(f"{text:>14}" for text in cells))


def main():
    runs = load(pathlib.Path(sys.argv[1]))
    heads = {"cold": "kiln, cold", "warm": "kiln, warm", "eager": "eager", "inductor": "Inductor"}
    print(f"\n{'GPT-2, training':<34}" + "".join(f"{heads[name]:>14}" for name in runs))
    row("first step, compiling included (s)", runs, lambda r: f"{r['first_step_s']:.3f}")
    row("step afterwards, median (s)", runs, lambda r: f"{statistics.median(r['steps_s']):.3f}")
    row("last loss", runs, lambda r: f"{r['losses'][-1]:.5f}")
    row("largest difference to eager's loss", runs,
        lambda r: f"{max(abs(a - b) for a, b in zip(r['losses'], runs['eager']['losses'])):.1e}")
    for counter in ("compilations", "hits_mapped", "hits_daemon", "joined", "misses", "regions", "nodes_compiled",
                    "nodes_fallback"):
        row(counter.replace("_", " "), runs, lambda r: str(r["stats"][counter]))
    row("finding, mapping, binding (ms)", runs, lambda r: f"{r['stats']['lookup_ms']:.2f}")
    if runs["cold"]["losses"] != runs["warm"]["losses"]:
        sys.exit("the cold and the warm run differ")


if __name__ == "__main__":
    main()
