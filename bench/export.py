#!/usr/bin/env python3
"""Is an exported model fast to start? GPT-2 124M, f32, forward: one process exports it for some lengths, each a form; then fresh
processes without torch load it and run it once. Imports are aside, files are in the page cache. Reported of each length:

  - loading (all forms: programs and kernels read, checked and bound; weights mapped and checked) with the first result;
  - loading alone, and a later result of the same process, for a look at where the time goes;
  - whether the result has the bits of torch.compile(backend="kiln") in the process that exported.

Peer: eager's forward in a process that has torch and the model already. --rounds N; --sequences 1,16,64; --layers N."""
import argparse
import hashlib
import json
import os
import pathlib
import sys
import time

import common
import gpt2


def digest_of(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def write(path, layers, sequences):
    """Exports; {length: (digest of the logits in this process, seconds of eager's forward)}."""
    import torch

    import kiln

    torch.set_num_threads(2)
    model = gpt2.make_model(layers=layers).eval()
    batches = [{"input_ids": gpt2.tokens(sequence=sequence)} for sequence in sequences]
    kiln.export(model, batches, path)
    compiled, facts = torch.compile(model, backend="kiln", dynamic=False), {}
    for sequence, batch in zip(sequences, batches):
        with torch.no_grad():
            logits = compiled(**batch).logits
            samples = common.interleave({"eager": lambda batch=batch: model(**batch)}, 9)["eager"]
        facts[sequence] = digest_of(logits.numpy()), samples
    return facts


def start(path, sequence):
    """In a process of its own: loads, runs, and runs again."""
    import numpy

    import kiln
    from kiln import _kiln  # noqa: F401

    ids = numpy.loadtxt(f"{path}.{sequence}", numpy.int64, ndmin=1).reshape(1, sequence)
    begin = time.perf_counter()
    model = kiln.load(path)
    loaded = time.perf_counter()
    (logits,) = model(ids, num_threads=2)
    first = time.perf_counter()
    later = common.interleave({"later": lambda: model(ids, num_threads=2)}, 9)["later"]
    assert "torch" not in sys.modules
    return {"first": first - begin, "load": loaded - begin, "later": sorted(later)[len(later) // 2], "digest": digest_of(logits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sequences", default="1,16,64")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    sequences = [int(each) for each in arguments.sequences.split(",")]
    if arguments.start:
        print(json.dumps(start(arguments.start, sequences[0])))
        return
    rows, summary = [], {}
    with gpt2.Cache() as cache:
        path = pathlib.Path(cache.path, "gpt2.kiln")
        os.environ.update(cache.environment)
        facts = write(path, arguments.layers, sequences)
        cache.stop_daemon()
        for sequence in sequences:
            pathlib.Path(f"{path}.{sequence}").write_text("\n".join(map(str, gpt2.tokens(sequence=sequence)[0].tolist())))
            command = ("export.py", "--start", path, "--sequences", sequence)
            seen = [cache.run(*command, KILN_CACHE_DIR="/nonexistent", KILN_NO_DAEMON="1") for _ in range(arguments.rounds)]
            expected, eager = facts[sequence]
            samples = {name: [each[key] for each in seen] for name, key in (("kiln", "first"), ("load", "load"), ("later", "later"))}
            made = common.row(f"load to first result, {sequence} tokens", samples | {"eager": eager}, own=("load", "later"),
                              unit="ms", scale=1e3)  # fmt: skip
            rows.append(made)
            summary[f"{sequence} tokens"] = {"ms": round(made["ours"], 1), "least": round(made["best"]["kiln"], 1),
                                             "equal bits": all(each["digest"] == expected for each in seen)}  # fmt: skip
        summary["file, KiB"] = round(path.stat().st_size / 1024)
        summary["weights, MiB"] = round(path.with_suffix(".weights").stat().st_size / 2**20)
    common.report("export", rows, summary)


if __name__ == "__main__":
    main()
