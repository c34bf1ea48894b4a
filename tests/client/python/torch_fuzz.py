"""Random torch programs, compiled and in eager: python torch_fuzz.py [--seed N] [--count N] [--seconds S] [--processes N].

A program is a function or a module of repeated blocks, over tensors of odd strides and offsets; it makes views, writes in
place, and is differentiated, some of them twice. It runs through torch.compile(backend="kiln"), kiln.compile, or both.
What differs from eager in value or structure (alike.py), or raises where eager does not, is printed with the source that
shows it. From seed 1,000,000 on programs are of other dtypes, too, with attention, casts, conjugated and negated views and
hooks (torch_programs.py). One in eight runs once more in a second process, over the captures that the first one kept. Most run
with client.check at never, that wrong values be seen; the others with first, where a check that finds something counts as
wrong. Exits with 1 if anything did.

--record FILE adds what was run to FILE (bench/results/torch_fuzz.json): seeds, programs, findings, commit, versions.
--recheck FILE runs its open findings again, and notes the commit at which they no longer show.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SECOND, SECOND_OF = (3, 5), 16  # modules by both entries, functions by kiln.compile with the check of first runs
# A second process does not trace anew.
SECOND_SECONDS = 3600.0


def run_workers(jobs: list[list[str]]) -> list[dict]:
    """What the workers wrote; one that died is a finding."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, str(i)) for i in range(len(jobs))]
        command = [sys.executable, HERE / "torch_fuzz_worker.py"]
        workers = [subprocess.Popen([*command, "--tally", file, *job]) for file, job in zip(files, jobs)]
        for worker, file, job in zip(workers, files, jobs):
            if worker.wait() == 0:
                results.append(json.loads(file.read_text()))
            else:
                said = f"the process of {' '.join(job)} exited with {worker.returncode}"
                results.append({"tally": {}, "findings": [{"seed": None, "said": said}], "seeds": []})
    return results


def fuzz(options) -> tuple[dict, list, dict]:
    """(what was counted, findings, versions)."""
    end, step = options.seed + options.count, options.processes
    extra = ["--show"] if options.show else []
    first = run_workers([["--seeds", f"{options.seed + i}:{end}:{step}", "--seconds", str(options.seconds), *extra]
                         for i in range(step)])  # fmt: skip
    seeds = sorted(seed for result in first for seed in result["seeds"])
    jobs = [["--seeds", f"{seeds[0] + (kind - seeds[0]) % SECOND_OF}:{seeds[-1] + 1}:{SECOND_OF}", "--again",
             "--seconds", str(SECOND_SECONDS), *extra] for kind in SECOND] if seeds else []  # fmt: skip
    second = run_workers(jobs)
    tally = sum((collections.Counter(result["tally"]) for result in first), collections.Counter())
    for result in second:
        tally["in a second process"] += result["tally"].get("programs", 0)
        tally["captures that it loaded"] += result["tally"].get("captures_loaded", 0)
    tally["seeds"] = len(seeds)
    findings = [{**found, "process": 1} for result in first for found in result["findings"]]
    findings += [{**found, "process": 2} for result in second for found in result["findings"]]
    return tally, findings, {"torch": next((r["torch"] for r in first if "torch" in r), "")}


def record(file: pathlib.Path, seed: int, tally: dict, findings: list, versions: dict) -> None:
    """Adds a piece to the file, and its counts to the file's rows."""
    sys.path.insert(0, str(HERE.parents[2] / "bench"))
    import common

    state = json.loads(file.read_text()) if file.exists() else {"bench": "torch_fuzz", "pieces": []}
    state["host"] = {**common.host(), **versions}
    state["pieces"].append({"first_seed": seed, "commit": commit(), **versions, "counts": dict(sorted(tally.items())),
                            "findings": findings})  # fmt: skip
    write(file, state)


def commit() -> str:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return git.stdout.strip()


def write(file: pathlib.Path, state: dict) -> None:
    """With the counts of all pieces as rows."""
    totals = dict(sum((collections.Counter(piece["counts"]) for piece in state["pieces"]), collections.Counter()))
    found = [found for piece in state["pieces"] for found in piece["findings"]]
    totals |= {"findings": len(found), "findings that are open": sum("closed" not in f for f in found)}
    state["rows"] = [{"case": name, "unit": "", "ours": count} for name, count in sorted(totals.items())]
    file.write_text(json.dumps(state, indent=1) + "\n")


def recheck(file: pathlib.Path) -> list:
    """Runs the open findings of the file again, and notes at which commit they no longer show. Gives those that still do."""
    state = json.loads(file.read_text())
    found = [found for piece in state["pieces"] for found in piece["findings"] if "closed" not in found]
    seeds = sorted({f["seed"] for f in found if f["seed"] is not None})
    jobs = [["--seeds", f"{seed}:{seed + 1}:1", "--seconds", "600"] for seed in seeds]
    failing = {f["seed"] for job in jobs for again in ([], ["--again"]) for r in run_workers([[*job, *again]]) for f in r["findings"]}
    for finding in found:
        if finding["seed"] in seeds and finding["seed"] not in failing:
            finding["closed"] = commit()
    write(file, state)
    return [f for f in found if "closed" not in f]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1 << 30, help="how many programs")
    parser.add_argument("--seconds", type=float, default=60.0, help="no program is begun later, but by the second process")
    parser.add_argument("--processes", type=int, default=1, help="that run programs side by side, over one cache")
    parser.add_argument("--show", action="store_true", help="why programs do not run in eager")
    parser.add_argument("--record", type=pathlib.Path, help="a file to add the run to")
    parser.add_argument("--recheck", type=pathlib.Path, help="a file whose open findings to run again")
    options = parser.parse_args()
    if options.recheck:
        left = recheck(options.recheck)
        print(f"open: {left}")
        return 1 if left else 0
    tally, findings, versions = fuzz(options)
    if options.record:
        record(options.record, options.seed, tally, findings, versions)
    print(f"{len(findings)} findings {[found['seed'] for found in findings][:50]}; "
          + ", ".join(f"{name}: {count}" for name, count in sorted(tally.items())))  # fmt: skip
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
