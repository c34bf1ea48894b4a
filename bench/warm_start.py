#!/usr/bin/env python3
"""Is the first step fast in a second process? GPT-2 124M, training: one process fills the cache, the daemon is stopped,
then fresh processes start from the mapped cache alone. Reported: first step (compiling and loading included) less an
eager step of the same process (below 0 where Kiln's step is faster by more than the start costs), and less a later step
of its own; and the time spent in finding, mapping, checking and binding artifacts.
Peers: Inductor, second process. --rounds N; --compilers kiln,backend,inductor."""
import argparse
import statistics

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compilers", default="kiln,backend,inductor")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    compilers = arguments.compilers.split(",")
    extra, own_extra = {name: [] for name in compilers}, {name: [] for name in compilers}
    bind_ms, compilations = [], 0
    with gpt2.Cache() as cache:
        for name in compilers:
            cache.run("gpt2_process.py", name, "--steps", 1, "--eager-steps", 1)
        cache.stop_daemon()
        for _ in range(arguments.rounds):
            for name in compilers:
                result = cache.run("gpt2_process.py", name, "--steps", 1, KILN_NO_DAEMON="1")
                extra[name].append(result["first_s"] - result["eager_s"])
                own_extra[name].append(result["first_s"] - result["step_s"])
                if name == "kiln":
                    bind_ms.append(result["stats"]["lookup_ms"])
                    compilations += result["stats"]["compilations"]
    rows = [common.row("second process, first training step less an eager step", extra),
            common.row("the same, less a later step of its own", own_extra),
            common.row("artifacts found, mapped, checked, bound", {"kiln": bind_ms}, unit="ms")]
    common.report("warm_start", rows, {"first_step_less_eager_s": round(statistics.median(extra["kiln"]), 4),
                                       "first_step_less_own_s": round(statistics.median(own_extra["kiln"]), 4),
                                       "bind_ms": round(statistics.median(bind_ms), 3), "compilations": compilations})


if __name__ == "__main__":
    main()
