"""New processes for tests, forked from servers that have imported torch: importing it and its compiler is most of what such a process
costs. Two servers take turns, so a process and the next one differ in the seed of hashes and in where things lie, as processes
of their own do. Nothing of Kiln is imported before the fork.

As a program: a server. Each line of its stdin is a request in JSON, each line of its stdout the status of the process."""

import itertools
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PRELOADED = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._functorch.partitioners", "torch._inductor.compiler_bisector")


class Server:
    def __init__(self):
        self._process = None

    def run(self, **request):
        """The exit status of a process, when it has ended."""
        if self._process is None:
            self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


_servers = itertools.cycle([Server(), Server()])


def report_of(script, *arguments, **environment):
    """What a new process says that runs `script`, a file beside this one: the JSON of its last line, and its stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        status = next(_servers).run(arguments=[str(HERE / script), *arguments], environment={**os.environ, **environment},
                                    out=str(out), err=str(err))  # fmt: skip
        assert status == 0, err.read_text()
        return json.loads(out.read_text().splitlines()[-1]) | {"stderr": err.read_text()}


def serve():
    """The first request whose process this is: a server answers all others, and leaves when there are no more."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def become(request):
    for stream, target in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[target], os.O_WRONLY | os.O_CREAT), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    become(serve())
