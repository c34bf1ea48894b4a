#!/usr/bin/env python3
"""Arrows point down only: every #include "…" line is held against the table of ARCHITECTURE.md.

A folder may include itself, and what the table lists for the longest prefix that names it.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# folder → prefixes it may include besides itself. Longest prefix wins.
TABLE = {
    "base": [],
    "frontend/ir": ["base"],
    "frontend/kernel": ["frontend/ir", "base"],
    "frontend/ops": ["frontend/infer/builder.h", "frontend/kernel", "frontend/ir", "base"],
    "frontend/infer": ["frontend/ops", "frontend/ir", "base"],
    "frontend/text": ["frontend/infer", "frontend/ops", "frontend/ir", "base"],
    "frontend/wire": ["frontend/infer", "frontend/ops", "frontend/ir", "base"],
    "frontend/decompose": ["frontend/infer", "frontend/ops", "frontend/ir", "base"],
    "frontend/autodiff": ["frontend/infer", "frontend/ir", "base"],
    "frontend/canonical": ["frontend/ops", "frontend/ir", "base"],
    "frontend/reduce": ["frontend/ops", "frontend/ir", "base"],
    "frontend/regions": ["frontend/canonical", "frontend/ops", "frontend/ir", "base"],
    "frontend/fuse": ["frontend/decompose", "frontend/infer/builder.h", "frontend/kernel", "frontend/ops", "frontend/ir",
                      "base"],
    "cache/format": ["base"],
    "cache/reader": ["cache/format"],
    "cache/pack": ["cache/format", "base"],
    "cache/sources": ["cache/pack", "cache/reader", "cache/format", "base"],
    "cache/fleet": ["cache/sources", "cache/pack", "cache/reader", "cache/format", "base"],
    "cache/store": ["cache/format", "base"],
    "backends": ["frontend", "base"],
    "backends/cpu/compile": ["backends", "frontend", "base"],
    "backends/cpu/runtime": ["backends/backend.h", "backends/device.h", "backends/host_loops.h", "backends/host_process.h",
                             "backends/cpu/features.h", "backends/cpu/launch_data.h", "frontend", "base"],
    "backends/cuda/compile": ["backends", "frontend", "base"],
    "backends/cuda/runtime": ["backends/backend.h", "backends/device.h", "backends/device_code.h", "backends/libraries.h",
                              "backends/cuda", "frontend", "base"],
    "backends/level_zero/compile": ["backends", "frontend", "base"],
    "backends/level_zero/runtime": ["backends/backend.h", "backends/device.h", "backends/device_code.h",
                                    "backends/libraries.h", "backends/level_zero", "frontend", "base"],
    "verdict": ["backends", "frontend", "base"],
    "autotune": ["verdict", "backends", "frontend", "base"],
    "jit/run": ["frontend", "backends/device.h", "backends/backend.h", "base"],
    "jit/resolve": ["jit/run", "frontend", "cache/sources", "cache/reader", "cache/format", "backends/backend.h", "backends/device.h",
                    "backends/devices.h", "base"],
    "jit/exported": ["jit/run", "jit/resolve", "frontend/ir", "cache/sources", "cache/pack", "cache/format", "backends/devices.h", "base"],
    "jit/build": ["jit/run", "jit/resolve", "autotune", "verdict", "backends", "frontend", "cache/format", "cache/reader", "base"],
    "jit/worker": ["jit", "autotune", "verdict", "backends", "frontend", "cache/format", "cache/reader", "base"],
    "service/protocol": ["base"],
    "service": ["service/protocol", "jit", "autotune/record.h", "cache", "frontend/wire", "frontend/ir", "backends/backend.h",
                "backends/devices.h", "base"],
    "client": ["jit/exported", "jit/resolve", "jit/run", "frontend", "service/protocol", "cache/sources", "cache/reader", "cache/format",
               "backends/backend.h", "backends/device.h", "backends/devices.h", "backends/libraries.h", "base"],
    "cli": ["client", "backends/backend.h", "backends/device.h", "backends/devices.h", "backends/host_loops.h", "backends/host_rate.h",
            "backends/libraries.h", "frontend", "cache/format", "cache/reader", "cache/pack", "cache/sources", "service/protocol", "base"],
    "examples": ["client"],
}
ANYTHING = ("tests", "bench", "build")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def rule_for(path):
    prefixes = [p for p in TABLE if path == p or path.startswith(p + "/")]
    return max(prefixes, key=len) if prefixes else None


def allowed(source, target):
    folder = rule_for(source)
    if folder is None:
        return False
    own = [folder] + TABLE[folder]
    return any(target == p or target.startswith(p + "/") for p in own)


def check(root):
    problems, seen = [], 0
    for file in sorted(p for s in ("*.h", "*.cc", "*.c") for p in root.rglob(s)):
        source = file.relative_to(root).as_posix()
        if source.startswith(ANYTHING) or source.startswith("."):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or "/" not in match[1]:
                continue
            seen += 1
            if not allowed(source, match[1]):
                problems.append(f"{source}:{number}: may not include {match[1]}")
    return problems, seen


def test_itself():
    assert allowed("jit/run/program.cc", "backends/backend.h")
    assert not allowed("jit/run/program.cc", "cache/store/store.h")
    assert not allowed("frontend/ops/op.cc", "backends/backend.h")
    assert not allowed("frontend/kernel/scalar.cc", "frontend/fuse/plan.h")
    assert not allowed("cache/reader/reader.c", "base/status.h")
    assert allowed("cli/main.cc", "client/include/kiln.h")


if __name__ == "__main__":
    test_itself()
    problems, seen = check(ROOT)
    print("\n".join(problems))
    if not seen:
        sys.exit("no include line was found")
    sys.exit(1 if problems else 0)
