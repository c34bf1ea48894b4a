#!/usr/bin/env python3
"""What keeps an unpacked wheel from running on a host that has torch, the C++ runtime and nothing else of ours: programs that
are not there, libraries that nobody brings. Argument: the folder. Says nothing when there is nothing."""
import pathlib
import re
import subprocess
import sys

PROGRAMS = ("kiln", "kilnd", "kiln-worker", "kiln-executor", "kiln-device-executor")
# What manylinux wheels may expect of a host, as torch does; the runtime of OpenMP comes with torch.
HOST = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2", "libstdc++.so.6",
        "libgcc_s.so.1", "libz.so.1", "libresolv.so.2"}
WITH_TORCH = {"libgomp.so.1"}


def dynamic(path):
    """The libraries an ELF file needs, and the folders it looks for them in."""
    listing = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
    paths = ":".join(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", listing)).split(":")
    return needed, [folder.replace("$ORIGIN", str(path.parent)) for folder in paths if folder]


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def problems(folder):
    package = folder / "kiln"
    for program in PROGRAMS:
        if not (package / "bin" / program).is_file():
            yield f"kiln/bin/{program} is missing"
    if not list(package.glob("_kiln.*.so")):
        yield "the extension kiln/_kiln is missing"
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and is_elf(p)):
        name = path.relative_to(folder)
        needed, paths = dynamic(path)
        for outside in (p for p in paths if folder.resolve() not in [*pathlib.Path(p).resolve().parents, pathlib.Path(p).resolve()]):
            yield f"{name} looks for libraries in {outside}"
        given = HOST if name.parts[:2] == ("kiln", "bin") else HOST | WITH_TORCH
        for library in needed:
            if library not in given and not any((pathlib.Path(p) / library).is_file() for p in paths):
                yield f"{name} needs {library}, which nobody brings"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)
