"""`kiln` and `python -m kiln`: the command line, a program that a wheel brings along, with this Python for what it runs."""

import os
import pathlib
import sys


def main():
    program = str(pathlib.Path(__file__).parent / "bin/kiln")
    os.environ.setdefault("KILN_PYTHON_PATH", sys.executable)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as problem:
        sys.exit(f"kiln: {program}: {problem.strerror}; a wheel has it, an installation by CMake has kiln in its bin/")


if __name__ == "__main__":
    main()
