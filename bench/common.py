"""What every benchmark shares: facts of the host, interleaved timing, rows, and the JSON that tools/bench writes.

A row is {"case", "unit", "ours", "peers": {name: value}, "own": {name: value}, "ratio", "best", "spread": {name: share}}: `own`
are other ways of Kiln, listed but no peers; a ratio above 1 says that ours is faster than the best peer. Kernels also have
"roof", what the machine's multiply-adds alone would reach, and "of_roof", our share of it."""
import argparse
import collections
import contextlib
import datetime
import json
import math
import pathlib
import signal
import statistics
import sys
import time

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")
LEAST_ROUNDS = 5


def host():
    first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    about = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    # Hosts that rent machines out hide a processor's name, not its generation.
    cpu = "{model name}, family {cpu family} model {model}".format_map(collections.defaultdict(lambda: "unknown", about))
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu, "python": sys.version.split()[0],
             "features": [f for f in FEATURES if f in about.get("flags", "").split()]}
    if "torch" in sys.modules:
        import torch

        facts.update(torch=torch.__version__, threads=torch.get_num_threads())
    return facts


@contextlib.contextmanager
def runs_in_kiln(case):
    """Raises where what is first called within leaves something to torch, which would race itself."""
    import kiln

    before = kiln.stats()
    yield
    now = kiln.stats()
    if now["nodes_compiled"] == before["nodes_compiled"] or now["nodes_fallback"] > before["nodes_fallback"]:
        raise RuntimeError(f"{case} runs in torch, and is no measure of Kiln: {json.dumps(kiln.explain())[:1000]}")


def spread(samples):
    """Interquartile range over the median; of fewer than four samples, all of their range; of one, none."""
    if len(samples) < 2:
        return None
    quartiles = statistics.quantiles(samples, n=4) if len(samples) >= 4 else sorted(samples)
    return round((quartiles[-1] - quartiles[0]) / abs(statistics.median(samples)), 3)


def spreads(samples):
    """Of each name that has several samples."""
    found = {name: spread(values) for name, values in samples.items()}
    return {name: value for name, value in found.items() if value is not None}


def _timed(function, calls, clock=time.perf_counter):
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def _call_for(function, seconds):
    end = time.perf_counter() + seconds
    function()
    while time.perf_counter() < end:
        function()


def interleave(functions, rounds, warmup=1, sample_s=None, most_s=math.inf, settle_s=0.0, wake_s=0.0, clock=time.perf_counter):
    """{name: [seconds of a call]}: all functions in turn, each round from another one on, so that drift of the machine hits
    all alike. With `sample_s` a sample is as many calls as fit into it, after one that does not count, or after all that fit
    into `wake_s`: threads that slept begin on one processor until the system spreads them. After `most_s` seconds no round
    begins but the first LEAST_ROUNDS. `settle_s` passes before each sample: threads of a pool wait for more work a while, on
    processors that another pool's then lack. `clock` counts the seconds of samples."""
    calls = dict.fromkeys(functions, 1)
    for name, function in functions.items():
        for _ in range(warmup):
            function()
        if sample_s:
            calls[name] = max(1, min(20000, int(sample_s / max(_timed(function, 1), 1e-7))))
    names, samples, start = list(functions), {name: [] for name in functions}, time.perf_counter()
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and time.perf_counter() - start > most_s:
            break
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            time.sleep(settle_s)
            if sample_s:
                _call_for(functions[name], wake_s)
            samples[name].append(_timed(functions[name], calls[name], clock))
    return samples


def show(row):
    """Prints a row, and gives it."""
    others = ", ".join(f"{name} {value:.4g}" for name, value in {**row.get("own", {}), **row.get("peers", {})}.items())
    ratio = f", ratio {row['ratio']:.3g}" if row.get("ratio") else ""
    print(f"{row['case']}: {row['ours']:.4g} {row['unit']}" + (f" ({others}{ratio})" if others else ""), flush=True)
    return row


def row(case, samples, ours="kiln", own=("backend",), unit="s", scale=1.0, work=None, **more):
    """The row of samples in seconds by name, printed. Values are medians times `scale`, or, of `work` units, `work` over
    the median: then `unit` is a rate."""
    medians = {name: statistics.median(values) for name, values in samples.items()}
    values = {name: work / median if work else median * scale for name, median in medians.items()}
    peers = [name for name in samples if name != ours and name not in own]
    return show({"case": case, "unit": unit, "ours": values[ours], "peers": {name: values[name] for name in peers},
                 "own": {name: values[name] for name in samples if name != ours and name in own},
                 "ratio": min(medians[name] for name in peers) / medians[ours] if peers and medians[ours] > 0 else None,
                 "best": {name: work / min(each) if work else min(each) * scale for name, each in samples.items()},
                 "spread": spreads(samples), **more})


def until_interrupted(rows):
    """A list of the rows that come until the user, or a limit of time, ends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = []
    try:
        found.extend(rows)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    return found


def geometric_mean(values):
    return statistics.geometric_mean(values)


def ratios(rows):
    """Their geometric mean, the worst one and whose it is."""
    rows = [row for row in rows if row.get("ratio")]
    if not rows:
        return {"cases": 0}
    worst = min(rows, key=lambda row: row["ratio"])
    return {"cases": len(rows), "geometric mean": round(geometric_mean(row["ratio"] for row in rows), 3),
            "worst": round(worst["ratio"], 3), "worst case": worst["case"], "below 1": sum(row["ratio"] < 1 for row in rows)}


def share_of_roof(rows):
    """The geometric mean of their shares."""
    shares = [row["of_roof"] for row in rows if row.get("of_roof")]
    return {"cases": len(shares), **({"geometric mean": round(geometric_mean(shares), 3), "least": round(min(shares), 3)} if shares else {})}


def report(bench, rows, summary):
    """Prints the summary and, with --json FILE, writes all."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json")
    target = parser.parse_known_args()[0].json
    print(json.dumps(summary))
    if target:
        result = {"bench": bench, "host": host(), "rows": rows, "summary": summary}
        pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
