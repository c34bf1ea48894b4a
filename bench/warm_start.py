#!/usr/bin/env python3
"""Is the first step fast in a second process? GPT-2 124M, training: one process fills the cache, the daemon is stopped,
then fresh processes start from the mapped cache alone. Imports are aside. Reported, by the clock and in seconds of the
process's own threads (which a busy machine does not stretch as much):

  - the first step (kiln.compile and loading included) less an eager step of the same process: below 0 where Kiln's step
    is faster by more than the start costs;
  - the same less a later step of its own: what starting costs;
  - eager's own first step less a later one: what any first step costs (first touch of gradients, thread pools). It
    comes before Kiln's in each process, so Kiln's first step does not pay for that again;
  - finding, mapping, checking and binding artifacts.

Peers: Inductor, second process. --rounds N; --compilers kiln,backend,inductor; --layers, --width, … are those of
gpt2_process.py."""
import argparse
import statistics

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compilers", default="kiln,backend,inductor")
    parser.add_argument("--json")
    arguments, model = parser.parse_known_args()
    compilers = arguments.compilers.split(",")
    results = {name: [] for name in compilers}
    with gpt2.Cache() as cache:
        for name in compilers:
            cache.run("gpt2_process.py", name, "--steps", 1, "--eager-steps", 1, *model)
        cache.stop_daemon()
        for _ in range(arguments.rounds):
            for name in compilers:
                results[name].append(cache.run("gpt2_process.py", name, "--steps", 3, *model, KILN_NO_DAEMON="1"))

    def less(a, b):
        return {name: [r[a] - r[b] for r in of_name] for name, of_name in results.items()}

    rows, summary = [], {}
    for kind, unit in (("s", "s"), ("cpu_s", "CPU s")):
        cases = {"first step less an eager step": less(f"first_{kind}", f"eager_{kind}"),
                 "first step less a later one of its own": less(f"first_{kind}", f"step_{kind}")}
        for case, samples in cases.items():
            rows.append(common.row(f"second process, {case}", samples, unit=unit))
            summary[f"{case}, {unit}"] = {"median": round(statistics.median(samples["kiln"]), 4),
                                          "least": round(min(samples["kiln"]), 4)}
        eager = less(f"eager_first_{kind}", f"eager_{kind}")["kiln"]
        rows.append(common.row("eager's own first step less a later one", {"eager": eager}, ours="eager", unit=unit))
    stats = [result["stats"] for result in results["kiln"]]
    bind_ms = [s["lookup_ms"] for s in stats]
    rows.append(common.row("artifacts found, mapped, checked, bound", {"kiln": bind_ms}, unit="ms"))
    summary |= {"bind_ms": round(statistics.median(bind_ms), 3), "compilations": sum(s["compilations"] for s in stats)}
    common.report("warm_start", rows, summary)


if __name__ == "__main__":
    main()
