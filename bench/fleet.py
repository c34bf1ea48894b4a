#!/usr/bin/env python3
"""What does a fleet ask of its store? Hosts with empty caches arrive within some seconds, in jobs of several, of many models
(bench/fleet_arrivals.cc), beside a redis-server on loopback that counts: requests and bytes a second at the worst second,
connections, memory, what was compiled and how often. Settings of the simulation are given as name=value."""
import argparse
import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import common
import remote

COUNTED = {"requests": "total_commands_processed", "bytes_in": "total_net_input_bytes", "bytes_out": "total_net_output_bytes"}


class Info:
    """What a server says of itself."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._stream = self._socket.makefile("rb")

    def read(self):
        self._socket.sendall(b"INFO\r\n")
        size = int(self._stream.readline()[1:])
        text = self._stream.read(size + 2).decode()
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def watch(process, port, every_s=1.0):
    """Samples until the process ends: what was counted in each second, and the most connections and memory."""
    info, seconds, most = Info(port), [], {"connections": 0, "memory": 0}
    before, then = info.read(), time.monotonic()
    while process.poll() is None:
        time.sleep(every_s)
        now, after = time.monotonic(), info.read()
        seconds.append({name: (int(after[key]) - int(before[key])) / (now - then) for name, key in COUNTED.items()})
        most = {"connections": max(most["connections"], int(after["connected_clients"])),
                "memory": max(most["memory"], int(after["used_memory"]))}
        before, then = after, now
    total = {name: int(before[key]) for name, key in COUNTED.items()}
    return {"total": total, "worst_second": {name: round(max(each[name] for each in seconds)) for name in COUNTED}, **most}


def simulate(hosts, seconds, settings):
    program = pathlib.Path(shutil.which("kiln")).parent.parent / "bench/fleet_arrivals"
    with remote.redis() as port, tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        subprocess.run(["kiln", "key", "create", f"{folder}/keys"], check=True, stdout=subprocess.DEVNULL)
        process = stack.enter_context(subprocess.Popen(
            [program, f"redis://127.0.0.1:{port}", f"{folder}/keys", str(hosts), str(seconds), *settings],
            stdout=subprocess.PIPE, text=True))
        server = watch(process, port)
        result = json.loads(process.stdout.readlines()[-1])
    rows = rows_of(result, server)
    del result["hosts"]  # as was asked for
    return rows, {**result, "most_connections": server["connections"]}


def rows_of(result, server):
    """What the store was asked for by all hosts, by each, and in the worst second; what was there, and what was made."""
    asked = [{"case": case, "unit": unit, "ours": server["total"][name] / scale,
              "own": {"a host": server["total"][name] / result["hosts"] / scale, "worst second": server["worst_second"][name] / scale}}
             for case, name, unit, scale in (("commands", "requests", "", 1), ("to the store", "bytes_in", "KB", 1e3),
                                             ("from the store", "bytes_out", "KB", 1e3))]
    found, built = ((result[name] or {"count": 0})["count"] for name in ("found_ms", "built_ms"))
    met = [("programs asked for", found + built), ("programs found", found), ("kernels wanted", result["kernels"]),
           ("kernels compiled", result["compilations"]), ("models met", result["models_met"]),
           ("hosts of the first model", result["hosts_of_the_first_model"])]
    return [common.show(row) for row in (*asked, *({"case": case, "unit": "", "ours": count} for case, count in met),
                                         {"case": "the store's memory, at most", "unit": "MB", "ours": server["memory"] / 1e6})]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json")
    parser.add_argument("settings", nargs="*", metavar="name=value")
    arguments = parser.parse_args()
    if shutil.which("redis-server") is None:
        raise SystemExit("there is no redis-server")
    rows, summary = simulate(arguments.hosts, arguments.seconds, arguments.settings)
    common.report("fleet", rows, {"--hosts": arguments.hosts, "--seconds": arguments.seconds, "settings": " ".join(arguments.settings), **summary})


if __name__ == "__main__":
    main()
