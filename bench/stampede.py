#!/usr/bin/env python3
"""Sixteen clients, one cold graph: is it compiled once? The graphs of a GPT-2 124M training step are captured
beforehand. Then N processes, each with the captured graphs and libkiln loaded, wait at a barrier, submit all of them to
an empty cache without a daemon, and map the programs. Time: barrier to the last program mapped, N against one.

    python stampede.py [--clients 16] [--rounds N] [--json FILE]
    python stampede.py --capture FILE COMPILER      the graphs of a training step, to FILE
    python stampede.py --client FILE                one client: says it is ready, waits for a line, compiles
"""
import argparse
import json
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


def client(file):
    import torch
    from kiln import _kiln
    from kiln.torch.tensors import relayout

    asked = pickle.loads(pathlib.Path(file).read_bytes())
    _kiln.attach(torch.Tensor, relayout)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    kiln_client = _kiln.Client()
    programs = [kiln_client.compile(text, inputs, outputs, **keywords) for text, inputs, outputs, keywords in asked]
    end = time.monotonic()
    print(json.dumps({"start": start, "end": end, "programs": len(programs), "stats": json.loads(kiln_client.stats())}))


def stampede(clients, file):
    """Seconds from the barrier to the last program of clients with one cache, and the sums of their counters."""
    with gpt2.Cache() as cache:
        return released([cache.environment] * clients, file)


def released(environments, file):
    """The same of clients with these environments."""
    command = [sys.executable, str(gpt2.ROOT / "bench" / "stampede.py"), "--client", str(file)]
    processes = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for environment in environments]
    for process in processes:
        assert process.stdout.readline().strip() == "ready"
    barrier = time.monotonic()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    results = [json.loads(process.stdout.readline()) for process in processes]
    for process in processes:
        process.wait()
    counts = {name: sum(r["stats"].get(name, 0) for r in results)
              for name in ("compilations", "misses", "joined", "hits_daemon", "hits_mapped")}
    return max(r["end"] for r in results) - barrier, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="kiln,backend")
    parser.add_argument("--capture", nargs=2)
    parser.add_argument("--client")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.capture:
        return capture(*arguments.capture)
    if arguments.client:
        return client(arguments.client)
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
