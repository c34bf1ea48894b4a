#!/usr/bin/env python3
"""What the house keeps to and a compiler does not see: short files, a README in each folder with code, no unfinished
business, no vendor's name above the backends, no duration by a clock that may be set, every configuration key documented
where it is shipped, links that lead somewhere."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINES = 600
CODE = (".cc", ".h", ".hpp", ".c", ".py", ".fbs")
# Code of others, kept as it came.
FOREIGN = ("client/python/third_party/",)
# Above the backends nothing knows a vendor or one of its instruction sets.
NEUTRAL = ("frontend/", "verdict/", "autotune/", "jit/", "cache/", "service/", "client/", "cli/")
VENDORS = re.compile(r"\b(nvidia|cuda\w*|nvrtc\w*|cudnn\w*|cublas\w*|cubin|ptx|sm_\d+a?|wgmma|h100|h200|intel|ocloc|level[ _]?zero|"
                     r"spir-?v|(?-i:ze[A-Z])\w+|pvc|dg2|opencl|amd|rocm|hip|avx\w*|amx\w*)\b", re.IGNORECASE)
VENDORS_ALLOWED = ("client/python/",)  # torch names its devices so
# Clocks that may be set. Durations and deadlines are by others; these say when something was, for people and for what goes first
# when the cache is full.
WALL_CLOCKS = re.compile(r"\b(system_clock|high_resolution_clock|CLOCK_REALTIME|gettimeofday|time\((NULL|nullptr)\)|time\.time\(\))")
DATES_ALLOWED = ("tests/", "bench/", "tools/", "cache/reader/reader.c", "cache/store/store.cc", "service/flight_recorder.h",
                 "client/terminal/text.cc")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.split("\n")
    paths = [p for p in listed if p and (ROOT / p).is_file()]
    return paths or [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file()
                     and p.relative_to(ROOT).parts[0] not in ("build", ".git", ".venv")]


def check_code(path, text):
    lines = text.splitlines()
    if len(lines) > LINES:
        yield f"{path}: {len(lines)} lines, the limit is {LINES}"
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield f"{path}:{number}: unfinished: {line.strip()}"
        wall = None if path.startswith(DATES_ALLOWED) else WALL_CLOCKS.search(line)
        if wall:
            yield f"{path}:{number}: {wall[0]} is a clock that may be set"
        if path.startswith(NEUTRAL) and not path.startswith(VENDORS_ALLOWED):
            vendor = VENDORS.search(line)
            if vendor:
                yield f"{path}:{number}: {vendor[0]} is a word of the backends"


def check_readmes(paths):
    """Each folder with code; in tests/, bench/ and examples/, and for Python packages, one for the whole is enough."""
    exempt = re.compile(r"^(tests|examples|client/python|client/include|bench|tools)\b")
    folders = {str(pathlib.PurePosixPath(p).parent) for p in paths if p.endswith(CODE)}
    for folder in sorted(folders):
        covered = f"{folder}/README.md" in paths or (exempt.match(folder) and f"{folder.split('/')[0]}/README.md" in paths)
        if not covered:
            yield f"{folder}: no README.md"


def check_configs(paths):
    """A key in a shipped YAML file has a comment above it or beside it."""
    for path in (p for p in paths if p.startswith("configs/") and p.endswith(".yaml")):
        lines = (ROOT / path).read_text().splitlines()
        for number, line in enumerate(lines):
            key = re.match(r"^\s*([\w_]+):\s*\S", line)
            if key and "#" not in line and not (number and lines[number - 1].lstrip().startswith("#")):
                yield f"{path}:{number + 1}: {key[1]} is not documented"


def check_links(path, text):
    for target in LINK.findall(text):
        if not (ROOT / path).parent.joinpath(target).exists():
            yield f"{path}: {target} is not there"


def check_docs_index(paths):
    index = (ROOT / "docs/README.md").read_text()
    for path in paths:
        name = pathlib.PurePosixPath(path)
        if str(name.parent) == "docs" and name.suffix == ".md" and name.name != "README.md" and name.name not in index:
            yield f"docs/README.md: {name.name} is not listed"


def problems():
    paths = files()
    yield from check_readmes(paths)
    yield from check_configs(paths)
    yield from check_docs_index(paths)
    for path in paths:
        if path.startswith(FOREIGN) or path == "tests/tidy/house.py":
            continue
        if path.endswith(CODE) or path.startswith("tools/"):
            yield from check_code(path, (ROOT / path).read_text())
        elif path.endswith(".md"):
            yield from check_links(path, (ROOT / path).read_text())


def test_itself():
    assert list(check_code("jit/a.cc", "// as cuda does"))
    assert list(check_code("cli/a.cc", 'if (target == "sm_90a")'))
    assert list(check_code("verdict/a.cc", "// SPIR-V beside"))
    assert not list(check_code("jit/a.cc", "// the size of a zebra"))
    assert not list(check_code("backends/a.cc", "// as cuda does"))
    assert list(check_code("base/a.cc", "// " + "TODO"))
    assert list(check_code("autotune/a.cc", "std::chrono::system_clock::now()"))
    assert not list(check_code("autotune/a.cc", "std::chrono::steady_clock::now()"))
    assert list(check_code("base/a.cc", "\n" * (LINES + 1)))
    assert list(check_links("README.md", "[x](not/there.md)"))
    assert list(check_readmes(["base/a.cc"]))


if __name__ == "__main__":
    test_itself()
    found = list(problems())
    print("\n".join(found))
    sys.exit(1 if found else 0)
