#!/usr/bin/env python3
"""Many clients, one cold graph: is it compiled once? The graphs of a GPT-2 124M training step are captured
beforehand. Then N processes, each with the captured graphs and libkiln loaded, wait at a barrier, submit all of them to
an empty cache without a daemon, and map the programs. Time: barrier to the last program mapped, N against one.

    python stampede.py [--clients 64] [--rounds N] [--json FILE]
    python stampede.py --capture FILE COMPILER      the graphs of a training step, to FILE
    python stampede.py --release FILE               clients, one for each environment of the list on stdin
"""
import argparse
import json
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import time

import common
import gpt2


def capture(file, compiler):
    """What the client is asked to compile in one training step, in order: (text, inputs, outputs, keywords)."""
    import kiln
    import torch

    torch.set_num_threads(2)
    asked = []
    session = kiln._session.session()
    client = session.client()

    class Recorder:
        def compile(self, text, inputs, outputs, **keywords):
            if (text, inputs, outputs, keywords) not in asked:  # a subgraph that failed is asked for again
                asked.append((text, inputs, outputs, keywords))
            raise RuntimeError("recorded only")  # the subgraph runs in torch

        def __getattr__(self, name):
            return getattr(client, name)

    session.client = lambda device="": Recorder()
    model = gpt2.make_model()
    gpt2.training_step(gpt2.compiled(model, compiler), model, gpt2.make_batch())()
    pathlib.Path(file).write_bytes(pickle.dumps(asked))
    print(json.dumps({"graphs": len(asked)}))


def client(asked, barrier):
    """One client: what it saw once whoever holds the barrier has let go of it."""
    from kiln import _kiln

    os.read(barrier, 1)
    start = time.monotonic()
    kiln_client = _kiln.Client()
    programs = [kiln_client.compile(text, inputs, outputs, **keywords) for text, inputs, outputs, keywords in asked]
    end = time.monotonic()
    return {"start": start, "end": end, "programs": len(programs), "stats": json.loads(kiln_client.stats())}


def clients(file):
    """As many clients as environments on stdin, forked once torch and the graphs are loaded: 64 take no more memory for those
    than one. Prints when the barrier fell, and what each saw."""
    import torch
    from kiln import _kiln
    from kiln.torch.tensors import relayout

    environments = json.load(sys.stdin)
    asked = pickle.loads(pathlib.Path(file).read_bytes())
    _kiln.attach(torch.Tensor, relayout)
    barrier, hold = os.pipe()
    answers = []
    for environment in environments:
        answer, say = os.pipe()
        if os.fork() == 0:
            try:
                os.close(hold)
                os.environ.update(environment)
                os.write(say, b"ready\n")
                os.write(say, json.dumps(client(asked, barrier)).encode())
            finally:
                os._exit(0)
        os.close(say)
        answers.append(os.fdopen(answer))
    for answer in answers:
        assert answer.readline() == "ready\n"
    fell = time.monotonic()
    os.close(hold)
    print(json.dumps({"fell": fell, "clients": [json.load(answer) for answer in answers]}))


def stampede(number, file):
    """Seconds from the barrier to the last program of clients with one cache, and the sums of their counters."""
    with gpt2.Cache() as cache:
        return released([cache.environment] * number, file)


def released(environments, file):
    """The same of clients with these environments."""
    process = subprocess.run([sys.executable, str(gpt2.ROOT / "bench" / "stampede.py"), "--release", str(file)],
                             input=json.dumps(environments), stdout=subprocess.PIPE, text=True, check=True)
    seen = json.loads(process.stdout)
    counts = {name: sum(each["stats"].get(name, 0) for each in seen["clients"])
              for name in ("compilations", "misses", "joined", "hits_daemon", "hits_mapped")}
    return max(each["end"] for each in seen["clients"]) - seen["fell"], counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="kiln,backend")
    parser.add_argument("--capture", nargs=2)
    parser.add_argument("--release")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.capture:
        return capture(*arguments.capture)
    if arguments.release:
        return clients(arguments.release)
    rows, summary = [], {}
    for way in arguments.ways.split(","):
        with gpt2.Cache() as cache:
            file = pathlib.Path(cache.path, "graphs")
            graphs = cache.run("stampede.py", "--capture", file, way)["graphs"]
            seconds, counts = {"one": [], "many": []}, {}
            for _ in range(arguments.rounds):
                for name, number in (("one", 1), ("many", arguments.clients)):
                    took, counts[name] = stampede(number, file)
                    seconds[name].append(took)
        rows.append(common.row(f"{arguments.clients} clients, {graphs} graphs ({way})", seconds, ours="many"))
        summary[way] = {"against_one": round(statistics.median(seconds["many"]) / statistics.median(seconds["one"]), 3),
                        "compilations": {name: c["compilations"] for name, c in counts.items()}, "counts": counts}
    common.report("stampede", rows, summary)


if __name__ == "__main__":
    main()
