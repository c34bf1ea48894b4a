#!/usr/bin/env python3
"""No file of client/python/kiln imports itself through others, at whatever time: when it is loaded, within a function, or by
importlib where the name is written out or a pattern (an f-string) that files match.

That a module's package is imported before it is Python's doing, and no arrow.
"""
import ast
import fnmatch
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client/python/kiln"
EXTENSION = "kiln._kiln"  # compiled, and so no file that imports others


def modules_of(package):
    """Files by their modules' names; a package has its folder's."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def absolute(name, level, package):
    """The module that `name` means after `level` dots, in a file of this package."""
    base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*base, *filter(None, [name])])


def imported_by(tree, package, modules):
    """Names of the modules that a file of this package imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node.module, node.level, package)
            within = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in modules or name == EXTENSION else module for name in within]
        elif isinstance(node, ast.Call) and "import" in (called := ast.unparse(node.func)) and node.args:
            pattern = pattern_of(node.args[0]) if called.split(".")[-1] in ("import_module", "__import__") else ""
            dots = len(pattern) - len(pattern.lstrip("."))
            names = fnmatch.filter(modules, absolute(pattern.lstrip("."), dots, package))
        else:
            continue
        yield from (name for name in names if name in modules)


def pattern_of(name):
    """A string, or an f-string with a star for each of its values; empty for anything else."""
    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
    written = [part.value if isinstance(part, ast.Constant) else "*" for part in parts]
    return "".join(written) if any(isinstance(part, ast.Constant) for part in parts) else ""


def arrows_of(package):
    """Of each module, the modules it imports."""
    modules = modules_of(package)
    arrows = {}
    for module, file in modules.items():
        home = module if file.name == "__init__.py" else module.rpartition(".")[0]
        arrows[module] = set(imported_by(ast.parse(file.read_text()), home, modules))
    return arrows


def circle_in(arrows):
    """A way from a module back to it, or None. What leads into no circle is left aside."""
    done = set()
    for start in sorted(arrows):
        way, pending = [], [iter([start])]
        while pending:
            module = next(pending[-1], None)
            if module is None:
                pending.pop()
                if way:
                    done.add(way.pop())
            elif module in way:
                return [*way[way.index(module):], module]
            elif module not in done:
                way.append(module)
                pending.append(iter(sorted(arrows[module])))
    return None


def planted(**files):
    """The circle in a package `p` of these files, by names with __ for the slash."""
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder, "p")
        for name, text in {"__init__": "", "sub/__init__": "", **files}.items():
            path = package / f"{name.replace('__', '/') if not name.endswith('__init__') else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return circle_in(arrows_of(package))


def test_itself():
    assert planted(a="from . import b", b="import os\nfrom .c import x", c="") is None
    assert planted(a="from . import b", b="from .a import x") == ["p.a", "p.b", "p.a"]
    assert planted(a="import p.b", b="def f():\n    from . import c", c="from .a import x") == ["p.a", "p.b", "p.c", "p.a"]
    assert planted(a="from .sub import b", sub__b="from .. import a") == ["p.a", "p.sub.b", "p.a"]
    assert planted(a="import importlib\nimportlib.import_module('.b', __package__)", b="from . import a")
    assert planted(a="import importlib\ndef f(v):\n    importlib.import_module(f'.b_{v}', __package__)", b_2="from . import a")
    assert planted(a="import importlib\ndef f(v):\n    importlib.import_module(v)", b="from . import a") is None


if __name__ == "__main__":
    test_itself()
    arrows = arrows_of(PACKAGE)
    if not any(arrows.values()):
        sys.exit("no import was found")
    circle = circle_in(arrows)
    sys.exit(f"an import circle: {' → '.join(circle)}" if circle else 0)
