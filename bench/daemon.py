#!/usr/bin/env python3
"""How fast does a daemon answer who asks for a program that is there? The round trip with one asker, and answers a second
with several, beside the same bytes through a socket to a thread that sends them back (daemon_bench.cc).

--rounds N; --seconds of each measurement; --askers at once."""
import argparse
import json
import statistics
import subprocess

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--askers", type=int, default=4)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    program = gpt2.bench_program("daemon_bench")
    with gpt2.Cache() as cache:
        rounds = [json.loads(subprocess.run([program, str(arguments.seconds), str(arguments.askers)], env=cache.environment,
                                            check=True, capture_output=True, text=True).stdout)
                  for _ in range(arguments.rounds)]

    def seconds(what, percentile):
        return [each[what][percentile] / 1e6 for each in rounds]

    rows = [common.row(f"round trip, {at}", {"kiln": seconds("round_trip_us", at), "echo": seconds("echo_us", at)},
                       unit="us", scale=1e6) for at in ("p50", "p90", "p99")]
    rate = [each["hits_per_s"] for each in rounds]
    rows.append(common.row(f"answers, {arguments.askers} askers", {"kiln": [1 / each for each in rate]}, unit="1/s", work=1))
    common.report("daemon", rows, {"p50_us": rows[0]["ours"], "hits_per_s": statistics.median(rate),
                                   "built": sum(each["built"] for each in rounds),
                                   "failed": sum(each["failed"] for each in rounds)})


if __name__ == "__main__":
    main()
