#!/usr/bin/env python3
"""Is a first step beside a mounted pack as fast as a warm start? GPT-2 124M, training: one process fills a cache, of which a
signed pack is made. Then processes start in turn from that cache, and from an empty one beside the pack; no daemon runs.
Imports are aside. --rounds N; --layers, --width, … are those of gpt2_process.py."""
import argparse
import os

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    arguments, model = parser.parse_known_args()
    steps = ("gpt2_process.py", "kiln", "--steps", 3, *model)
    results = {"pack": [], "warm": []}
    with gpt2.Cache() as cache:
        cache.run(*steps)
        keys, packs = f"{cache.path}/keys", f"{cache.path}/packs"
        os.mkdir(packs)
        cache.kiln("key", "create", keys)
        cache.kiln("pack", "create", f"{packs}/gpt2.kpack", "--sign", f"{keys}/kiln.key")
        cache.stop_daemon()
        mounted = {"KILN_PACKS_PATH": packs, "KILN_PACKS_TRUST": keys, "KILN_PACKS_TRUST_CAPTURES": keys}
        for _ in range(arguments.rounds):
            results["warm"].append(cache.run(*steps, KILN_NO_DAEMON="1"))
            with gpt2.Cache() as fresh:
                results["pack"].append(fresh.run(*steps, KILN_NO_DAEMON="1", **mounted))
    rows = [common.row(f"first training step, {unit}", {name: [each[f"first_{kind}"] for each in of_name]
                                                        for name, of_name in results.items()}, ours="pack", unit=unit)
            for kind, unit in (("s", "s"), ("cpu_s", "CPU s"))]
    beside = [each["stats"] for each in results["pack"]]
    found, missed = (sum(stats[name] for stats in beside) for name in ("hits_mapped", "misses"))
    common.report("pack", rows, {"more_s": round(rows[0]["ours"] - rows[0]["peers"]["warm"], 4),
                                 "more_cpu_s": round(rows[1]["ours"] - rows[1]["peers"]["warm"], 4),
                                 "compilations": sum(stats["compilations"] for stats in beside),
                                 "hits": round(found / (found + missed), 4),
                                 "loss_error": max(each["loss_error"] for each in results["pack"])})


if __name__ == "__main__":
    main()
