"""Which ids cmake/BuildId.cmake changes when a source changes. Arguments: cmake, the script."""

import pathlib
import re
import subprocess
import sys
import tempfile

SOURCES = ("frontend/ops/op.cc", "verdict/verdict.h", "jit/build/plan/plan.cc", "jit/run/program.fbs",
           "backends/backend.h", "backends/shared/stages.cc",
           "backends/one/compile/emit/emitter.cc", "backends/one/record.h", "backends/one/runtime/device.cc",
           "backends/two/compile/scalar.cuh")
COMMON = SOURCES[:6]


class Tree:
    def __init__(self, cmake, script, root):
        self.root, self.out = pathlib.Path(root), pathlib.Path(root) / "build_id.cc"
        self.command = [cmake, f"-DROOT={root}", f"-DOUT={self.out}", "-P", script]
        for source in SOURCES + ("service/server.cc",):
            self.write(source, "one")

    def write(self, source, text):
        path = self.root / source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ids(self):
        """By backend; "" for all sources, "another" for a backend that has no folder."""
        subprocess.run(self.command, check=True)
        text = self.out.read_text()
        rows = dict(re.findall(r'if \(backend == "(\w+)"\) return "(\w{16})";', text))
        everything, another = re.findall(r'(?:\{|^) *return "(\w{16})";', text, re.MULTILINE)
        return {"": everything, "another": another, **rows}


def changed(tree, source):
    before = tree.ids()
    tree.write(source, "two")
    after = tree.ids()
    assert before.keys() == after.keys() == {"", "another", "one", "two"}, after
    return {name for name in before if before[name] != after[name]}


def main(cmake, script):
    with tempfile.TemporaryDirectory() as root:
        tree = Tree(cmake, script, root)
        assert len(set(tree.ids().values())) == 4, tree.ids()
        written = tree.out.stat().st_mtime_ns
        assert changed(tree, "service/server.cc") == set(), "no generator source"
        assert tree.out.stat().st_mtime_ns == written, "nothing changed, and yet it was written again"
        for source in COMMON:
            assert changed(tree, source) == {"", "another", "one", "two"}, source
        for source in SOURCES[6:9]:
            assert changed(tree, source) == {"", "one"}, source
        assert changed(tree, "backends/two/compile/scalar.cuh") == {"", "two"}


if __name__ == "__main__":
    main(*sys.argv[1:])
