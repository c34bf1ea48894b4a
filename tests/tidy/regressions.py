#!/usr/bin/env python3
"""Each test that tests/regressions.md names is in the file that the name leads to, and each row names one or says `not mended`."""
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
NAMED = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def is_there(name, path):
    """A graph of regressions/ is a test by itself."""
    if not path.is_file():
        return False
    if path.suffix == ".kiln":
        return path.stem == name
    declared = rf"^def {name}\(" if path.suffix == ".py" else rf"^TEST(_F|_P)?\(\w+, {name}\)"
    return re.search(declared, path.read_text(), re.MULTILINE) is not None


def problems(text, folder):
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.strip("|").split("|")
        if not line.startswith("|") or len(cells) != 2 or cells[0].strip("- ") == "" or cells[1].strip() == "shown by":
            continue
        named = NAMED.findall(cells[1])
        if not named and not cells[1].strip().startswith("not mended"):
            yield f"regressions.md:{number}: names no test: {cells[0].strip()}"
        for name, path in named:
            if not is_there(name, folder / path):
                yield f"regressions.md:{number}: no test {name} in {path}"


def test_itself():
    here = pathlib.Path(__file__).resolve()
    row = "| a thing | [{}]({}) |"
    assert not list(problems(row.format("test_itself", here.name), here.parent))
    assert list(problems(row.format("test_other", here.name), here.parent))
    assert list(problems(row.format("test_itself", "nowhere.py"), here.parent))
    assert list(problems("| a thing | by and by |", here.parent))
    assert not list(problems("| a thing | not mended: it waits |", here.parent))


if __name__ == "__main__":
    test_itself()
    found = list(problems((TESTS / "regressions.md").read_text(), TESTS))
    print("\n".join(found))
    sys.exit(1 if found else 0)
