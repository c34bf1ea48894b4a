#!/usr/bin/env python3
"""Does each fault's test fail once what guards against the fault is gone? `faults.toml` has a row for each fault: what happens
then, its tests and, where that can be shown, the guard (a piece of source that is there once, and what stands in its place
without it) and the test that must notice: `filter` of `binary`, a program of gtest's or a file of pytest's.

    reliability.py --row ID… | --all     takes guards out, one at a time, and runs their tests; records what was seen
    reliability.py --page                writes docs/reliability.md
    reliability.py --check               whether every guard is still there, every test is, and the page is current

Guards are taken out of this tree's sources, built in --build (build/dev) and put back, whatever happens.
"""
import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = ROOT / "tests" / "faults" / "faults.toml"
SHOWN = ROOT / "tests" / "faults" / "shown.json"
PAGE = ROOT / "docs" / "reliability.md"
HANGS_AFTER_S = 120

HEAD = """# Faults, and what becomes of them

What can go wrong, what Kiln does then, and the test that shows it. A fault without a test has no row.

Tests can be wrong, too. So for the faults with a name, what guards against them was taken out of the code, and a test seen to
fail, or hang: {shown} of {named}. `tests/faults/reliability.py` does that, and writes this page from `tests/faults/faults.toml`.
"""


def read_rows():
    sections = tomllib.loads(ROWS.read_text())["section"]
    return sections, {row["id"]: row for section in sections for row in section["row"] if "id" in row}


def fingerprint(row):
    """Of what was shown: another guard, or another test, has to be shown anew."""
    return hashlib.sha256(json.dumps([row["guard"], row["binary"], row["filter"]]).encode()).hexdigest()[:16]


def read_shown():
    return json.loads(SHOWN.read_text()) if SHOWN.exists() else {}


def is_shown(row, shown):
    return shown.get(row["id"], {}).get("of") == fingerprint(row)


# ---- without the guard

class WithoutGuard:
    """The sources without a row's guard, for as long as it is entered."""

    def __init__(self, row):
        self.texts = {ROOT / guard["file"]: (ROOT / guard["file"]).read_text() for guard in row["guard"]}
        self.guards = row["guard"]

    def __enter__(self):
        for guard in self.guards:
            path = ROOT / guard["file"]
            path.write_text(path.read_text().replace(guard["old"], guard["new"]))

    def __exit__(self, *_):
        for path, text in self.texts.items():
            path.write_text(text)


def build(folder, binary):
    target = "product" if binary.endswith(".py") else pathlib.PurePath(binary).name
    done = subprocess.run(["ninja", "-C", str(folder), "-j1", target], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-3000:]


def command_of(folder, row):
    if row["binary"].endswith(".py"):
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{ROOT / row['binary']}::{row['filter']}"]
    return [str(folder / row["binary"]), f"--gtest_filter={row['filter']}"]


def passes(folder, row):
    """Whether the row's test does. One that hangs does not."""
    environment = {**os.environ, "KILN_AUTOTUNE_MODE": "off", "PYTHONPATH": str(folder / "python"),
                   "KILN_DAEMON_PATH": str(folder / "bin" / "kilnd")}
    command = command_of(folder, row)
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=row.get("hangs_after_s", HANGS_AFTER_S))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, "it hangs"
    if re.search(r"0 tests from 0 test suites ran|\[  SKIPPED \]|\b1 skipped|not found:", output):
        return None, "it did not run"
    failures = [line for line in output.splitlines() if re.search("Failure|FAILED|^E  ", line)]
    return process.returncode == 0, (failures or [f"it ends with {process.returncode}"])[0]


def show(row, folder):
    """Takes out the row's guard: (what is wrong, or "" where the test fails as it must; the line that the test says)."""
    problem = build(folder, row["binary"])
    if problem:
        raise SystemExit(f"{row['binary']} does not build:\n{problem}")
    passed, line = passes(folder, row)
    if not passed:
        return "the test does not pass with the guard", line
    with WithoutGuard(row):
        problem = build(folder, row["binary"])
        passed, line = passes(folder, row) if not problem else (None, problem)
    if passed is None:
        return "it cannot be built, or run, without the guard", line
    return ("the test passes without the guard" if passed else ""), line


def show_all(rows, folder):
    """How many could not be shown; rows of one test program come one after another, so that little is linked anew."""
    shown, failed = read_shown(), 0
    for row in sorted(rows, key=lambda row: row["binary"]):
        start = time.monotonic()
        problem, line = show(row, folder)
        print(f"{row['id']:4} {f'NOT SHOWN: {problem}: {line}' if problem else line} ({time.monotonic() - start:.0f} s)", flush=True)
        failed += bool(problem)
        shown.pop(row["id"], None)
        if not problem:
            shown[row["id"]] = {"of": fingerprint(row), "on": time.strftime("%Y-%m-%d")}
        SHOWN.write_text(json.dumps(dict(sorted(shown.items())), indent=1) + "\n")
    for binary in {row["binary"] for row in rows}:
        build(folder, binary)  # with all guards
    return failed


# ---- the page

def page(sections, rows):
    shown = read_shown()
    count = sum(is_shown(row, shown) for row in rows.values() if "guard" in row)
    text = HEAD.format(shown=count, named=len(rows))
    for section in sections:
        text += f"\n**{section['title']}**\n\n| | fault | what happens | test | guard that was taken out |\n|---|---|---|---|---|\n"
        for row in section["row"]:
            tests = ", ".join(f"`{test}`" for test in row["tests"])
            guards = ""
            if "guard" in row:
                places = ", ".join(dict.fromkeys(f"`{guard['file']}`" for guard in row["guard"]))
                guards = f"{places}: {'`' + row['filter'] + '` fails' if is_shown(row, shown) else 'not tried yet'}"
            text += f"| {row.get('id', '')} | {row['fault']} | {row['becomes']} | {tests} | {guards} |\n"
    without = [row for row in rows.values() if "guard" not in row]
    if without:
        text += "\n**Named, and not shown so**\n\n"
        text += "".join(f"- {row['id']}, {row['fault']}: {row['why_not']}\n" for row in without)
    return text


# ---- checks

def declares(path, filter_text):
    """Whether the file has a test that each part of the filter means."""
    if path.suffix == ".py":
        return f"\ndef {filter_text}(" in path.read_text()
    names = [".".join(found) for found in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", path.read_text(), re.MULTILINE)]
    patterns = [re.sub(r"^\w+/|/\w+$", "", each) for each in filter_text.split(":")]  # without instance and parameter
    return all(fnmatch.filter(names, pattern) for pattern in patterns)


def problems(sections, rows):
    for section in sections:
        for row in section["row"]:
            name = row.get("id", row["fault"])
            for test in row["tests"]:
                if not (ROOT / test).exists():
                    yield f"{name}: {test} is not there"
            for guard in row.get("guard", ()):
                found = (ROOT / guard["file"]).read_text().count(guard["old"])
                if found != 1:
                    yield f"{name}: its guard is in {guard['file']} {found} times, expected once"
                if guard["old"] == guard["new"]:
                    yield f"{name}: nothing is taken out of {guard['file']}"
            if "guard" in row and not any(declares(ROOT / test, row["filter"]) for test in row["tests"] if test.endswith((".cc", ".py"))):
                yield f"{name}: none of its files has a test {row['filter']}"
            if "id" in row and "guard" not in row and "why_not" not in row:
                yield f"{name}: has neither a guard nor a reason why not"
    if PAGE.read_text() != page(sections, rows):
        yield f"{PAGE.relative_to(ROOT)} is not what --page writes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", default=[], metavar="ID")
    parser.add_argument("--all", action="store_true", help="all rows that were not shown as they are now")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    arguments = parser.parse_args()
    sections, rows = read_rows()
    unknown = [name for name in arguments.row if "guard" not in rows.get(name, {})]
    if unknown:
        parser.error(f"no guard is known of {', '.join(unknown)}")
    shown = read_shown()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that guards are put back
    failed = show_all([row for name, row in rows.items() if "guard" in row and
                       (name in arguments.row or (arguments.all and not is_shown(row, shown)))], arguments.build)
    if arguments.page:
        PAGE.write_text(page(sections, rows))
    if arguments.check:
        found = list(problems(sections, rows))
        print("\n".join(found))
        failed += len(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
