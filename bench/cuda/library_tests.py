"""What the real cuDNN and cuBLASLt made of their tests on a machine without a device: plans and descriptors, no numbers.

python library_tests.py BUILD OUT.json: the tests' programs of a build folder. KILN_LIBRARIES_PATH says where the libraries are, as
`tools/test --vendor` sets it. A row for each test: how long it took, or why it has no result. Exit status: 1 where one failed or
was skipped.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common  # noqa: E402

# Programs, and which of their cases are about the libraries.
PROGRAMS = {"cuda_cudnn_plan_test": "*", "cuda_cudnn_convolution_test": "*", "cuda_cublaslt_product_test": "CublasltLibraryHere.*"}
VERSIONS = {"cudnn": ("libcudnn_graph.so.9", "cudnnGetVersion"), "cublaslt": ("libcublasLt.so.13", "cublasLtGetVersion")}


def version_of(file, function):
    for folder in os.environ["KILN_LIBRARIES_PATH"].split(":"):
        path = pathlib.Path(folder) / file
        if path.exists():
            asked = getattr(ctypes.CDLL(str(path)), function)
            asked.restype = ctypes.c_size_t
            return asked()
    return "absent"


def tests_of(program, cases):
    with tempfile.NamedTemporaryFile() as report:
        subprocess.run([program, f"--gtest_filter={cases}", f"--gtest_output=json:{report.name}"], stdout=subprocess.DEVNULL, check=False)
        for suite in json.load(report)["testsuites"]:
            yield from suite["testsuite"]


def row_of(test):
    row = {"case": f"{test['classname']}: {test['name'].replace('_', ' ')}", "unit": "s", "ours": float(test["time"].rstrip("s"))}
    result = "failed" if test.get("failures") else test["result"].lower()
    return row | {"own": {"result": "passed" if result == "completed" else result}}


def main():
    build, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = [row_of(test) for name, cases in PROGRAMS.items()
            for test in tests_of(build / "tests/backends/cuda" / name, cases)]
    host = {**common.host(), "versions": {name: version_of(*asked) for name, asked in VERSIONS.items()}}
    note = "The real libraries without a device: execution plans made, serialised and read again, descriptors taken."
    output.write_text(json.dumps({"bench": "cuda_libraries", "host": host, "note": note, "rows": rows}, indent=1) + "\n")
    bad = [row["case"] for row in rows if row["own"]["result"] != "passed"]
    print(f"{len(rows)} tests, not passed: {', '.join(bad) or 'none'}")
    sys.exit(1 if bad or not rows else 0)


if __name__ == "__main__":
    main()
