#!/usr/bin/env python3
"""What do other people's suites find? Reads the logs that tools/conformance left in build/ (conformance.SUITE*.log, in as many
pieces as a run had) and counts: units or models that passed, those that did not and what was said, nodes that ran in Kiln.

    tools/conformance; tools/bench conformance --json bench/results/conformance.json
"""
import argparse
import json
import pathlib
import re

import common

BUILD = pathlib.Path(__file__).resolve().parents[1] / "build"
SUITES = {"opinfo": "OpInfo, open list", "zoo_fwd_torch.compile": "zoo, forward, torch.compile",
          "zoo_fwd_kiln.compile": "zoo, forward, kiln.compile", "zoo_train_torch.compile": "zoo, training, torch.compile",
          "zoo_train_kiln.compile": "zoo, training, kiln.compile", "flex": "FlexAttention's variants"}
COUNT = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)
FAILED = re.compile(r"^FAIL (\S+)\s+(.*)$", re.MULTILINE)
FAILED_OP = re.compile(r"^FAIL \w+\s+(\S+)\s+(.*)$", re.MULTILINE)  # after its category
# What a runner says of kiln.stats(): of a model its two counts, of an op's units their sums.
NODES = re.compile(r"share=\[(\d+),(\d+),|compiled (\d+) fallback (\d+)$", re.MULTILINE)
WHOLE = 0.98


def found(text, failed_lines):
    passed, failed = (sum(int(match[i]) for match in COUNT.finditer(text)) for i in (1, 2))
    nodes = [tuple(int(n) for n in match.groups() if n is not None) for match in NODES.finditer(text)]
    nodes = [(mine, torchs) for mine, torchs in nodes if mine + torchs > 0]
    result = {"passed": passed, "failed": failed, "what failed": {m[1]: m[2][:200] for m in failed_lines.finditer(text)}}
    if nodes:
        mine, torchs = map(sum, zip(*nodes))
        result |= {"nodes": mine + torchs, "share of nodes in Kiln": round(mine / (mine + torchs), 4)}
        whole = sum(mine >= WHOLE * (mine + torchs) for mine, torchs in nodes)
        result[f"share with at least {WHOLE:.0%} of nodes in Kiln"] = round(whole / len(nodes), 3)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=pathlib.Path, default=BUILD)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows, summary = [], {}
    for suite, title in SUITES.items():
        logs = sorted(arguments.logs.glob(f"conformance.{suite}*.log"))
        if not logs:
            continue
        result = found("\n".join(log.read_text(errors="replace") for log in logs), FAILED_OP if suite == "opinfo" else FAILED)
        total = result["passed"] + result["failed"]
        rows.append(common.show({"case": title, "unit": f"of {total} passed", "ours": result["passed"]}))
        summary[title] = result
    common.report("conformance", rows, summary)


if __name__ == "__main__":
    main()
