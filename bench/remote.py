#!/usr/bin/env python3
"""What is a fleet's store worth, and what does an ill one cost? GPT-2 124M, training, a redis-server on loopback. Imports are
aside; --layers, --width, … are those of gpt2_process.py. --parts, of:

  filled   first steps in turn: of a warm start, and of an empty cache beside a filled store
  ill      first steps, caches empty, of hosts that take from a store, sign for it and lease there: without a store, beside one
           that answers after a second, that is gone, that has a bit of each entry flipped, whose entries a stranger signed,
           which are refused, or judged. A daemon says how many entries it met, refused, accepted and rejected. A result is
           wrong whose loss or gradients are farther from eager's than twice what they are without a store, and a millionth
  fleet    --hosts daemons with caches of their own beside one empty store are asked for the graphs of one step at once:
           compilations in all, against one host alone"""
import argparse
import contextlib
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import threading
import time

import common
import gpt2
import stampede


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def redis():
    """The port of a server that keeps nothing on the disk."""
    port = free_port()
    process = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"],
                               stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


class Proxy(threading.Thread):
    """Passes on what is asked of a port, and does something to each piece of the answer."""

    def __init__(self, port, change):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self._target, self._change = self.listener.getsockname()[1], port, change
        self.start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, change in ((client, server, bytes), (server, client, self._change)):
                threading.Thread(target=self._pass, args=(source, sink, change), daemon=True).start()

    @staticmethod
    def _pass(source, sink, change):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                sink.sendall(change(piece))
            sink.shutdown(socket.SHUT_WR)


def late(piece):
    time.sleep(1)
    return piece


def flipped(value):
    """A bit of what it says: between that are zeros, which only fill pages."""
    said = [index for index, byte in enumerate(value) if byte]
    lie = bytearray(value)
    lie[said[len(said) // 2]] ^= 1
    return bytes(lie)


def redis_asked(port, *words, last=None):
    """What a server answers to one command, whose last word may be bytes."""
    command = ["redis-cli", "-e", "-p", str(port), *([] if last is None else ["-x"]), *words]
    return subprocess.run(command, input=last or b"", stdout=subprocess.PIPE, check=True).stdout.removesuffix(b"\n")


def entries_of(port):
    names = redis_asked(port, "KEYS", "*").decode().split()
    return {name: redis_asked(port, "GET", name) for name in names if ":lease:" not in name}


def refill(port, entries):
    """Hosts have written, and what they have written is no lie."""
    redis_asked(port, "FLUSHALL")
    for name, value in entries.items():
        redis_asked(port, "SET", name, last=value)


def beside(port, keys):
    """The environment of a host that gives to the store and takes from it."""
    return {"KILN_CACHE_REMOTE": f"redis://127.0.0.1:{port}", "KILN_REMOTE_SIGNING_KEY": f"{keys}/kiln.key",
            "KILN_PACKS_TRUST": keys, "KILN_PACKS_TRUST_CAPTURES": keys}


def make_keys(cache, name):
    cache.kiln("key", "create", f"{cache.path}/{name}")
    return f"{cache.path}/{name}"


def in_turn(ways, rounds, steps, prepare=lambda name: None):
    """Results by name of processes that take a first step; a way gives the cache to use and the environment beside, and
    `prepare` makes ready what is of one turn."""
    results = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (cache, environment) in ways.items():
            prepare(name)
            with gpt2.Cache() if cache is None else contextlib.nullcontext(cache) as used:
                result = used.run(*steps, **environment)
                result["daemon"] = json.loads(used.kiln("status", "--json"))
            results[name].append(result)
    return results


def first_steps(case, results, ours):
    return common.row(case, {name: [each["first_s"] for each in of_name] for name, of_name in results.items()}, ours=ours)


def totals(results):
    fleets = [fleet for each in results if (fleet := each["daemon"].get("fleet"))]
    return {"compilations": sum(each["stats"]["compilations"] for each in results),
            **{name: max(each[name] for each in results) for name in ("loss_error", "gradient_error") if name in results[0]},
            **{name: sum(fleet[name] for fleet in fleets)
               for name in ("entries_found", "entries_refused", "entries_accepted", "entries_rejected")}}


def wrong_results(results, without):
    """How many of them are."""
    return sum(any(each[name] > 2 * max(one[name] for one in without) + 1e-6 for name in ("loss_error", "gradient_error") if name in each)
               for each in results)


def filled(rounds, steps, rows):
    with redis() as port, gpt2.Cache() as cache:
        store = beside(port, make_keys(cache, "keys"))
        cache.run(*steps, **store)
        cache.stop_daemon()  # which writes what waits
        results = in_turn({"warm": (cache, {"KILN_NO_DAEMON": "1"}), "store": (None, store)}, rounds, steps)
    rows.append(first_steps("first training step beside a filled store", results, "store"))
    return {"more_s": round(rows[-1]["ours"] - rows[-1]["peers"]["warm"], 4), **totals(results["store"])}


def ill(rounds, steps, rows):
    with redis() as port, redis() as lying, gpt2.Cache() as cache:
        ours, theirs = make_keys(cache, "keys"), make_keys(cache, "theirs")
        cache.run(*steps, **beside(port, ours))
        cache.stop_daemon()
        entries = entries_of(port)
        lies = {name: flipped(value) for name, value in entries.items()}
        stores = {"slow": beside(Proxy(port, late).port, ours), "gone": beside(free_port(), ours),
                  "flips": beside(lying, ours), "stranger": beside(port, theirs),
                  "judged": beside(port, theirs) | {"KILN_REMOTE_UNTRUSTED": "judge"}}

        def prepare(_):
            refill(port, entries)
            refill(lying, lies)

        ways = {"none": (None, {})} | {name: (None, environment) for name, environment in stores.items()}
        results = in_turn(ways, rounds, steps, prepare)
    summary = {"entries": len(entries), "none": totals(results["none"])}
    for name in stores:
        pair = {"none": results["none"], name: results[name]}
        rows.append(first_steps(f"first training step, cold, store: {name}", pair, name))
        summary[name] = {"against_none": round(rows[-1]["ours"] / rows[-1]["peers"]["none"], 3),
                         "wrong_results": wrong_results(results[name], results["none"]), **totals(results[name])}
    return summary


def fleet(hosts, rounds, rows):
    seconds, compilations = {"one": [], "many": []}, {"one": [], "many": []}
    with gpt2.Cache() as cache:
        keys = make_keys(cache, "keys")
        file = pathlib.Path(cache.path, "graphs")
        cache.run("stampede.py", "--capture", file, "kiln")
        for _ in range(rounds):
            for name, number in (("one", 1), ("many", hosts)):
                with redis() as port, contextlib.ExitStack() as stack:
                    caches = [stack.enter_context(gpt2.Cache()) for _ in range(number)]
                    took, counts = stampede.released([each.environment | beside(port, keys) for each in caches], file)
                seconds[name].append(took)
                compilations[name].append(counts["compilations"])
    rows.append(common.row(f"{hosts} daemons, one store, one cold step", seconds, ours="many"))
    medians = {name: statistics.median(each) for name, each in compilations.items()}
    return {"compilations": medians, "against_one": round(medians["many"] / medians["one"], 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--parts", default="filled,ill,fleet")
    parser.add_argument("--json")
    arguments, model = parser.parse_known_args()
    if shutil.which("redis-server") is None:
        raise SystemExit("there is no redis-server")
    steps = ("gpt2_process.py", "kiln", "--steps", 1, *model)
    rows, summary = [], {}
    for part in arguments.parts.split(","):
        if part == "fleet":
            summary[part] = fleet(arguments.hosts, arguments.rounds, rows)
        else:
            summary[part] = {"filled": filled, "ill": ill}[part](arguments.rounds, steps, rows)
    common.report("remote", rows, summary)


if __name__ == "__main__":
    main()
