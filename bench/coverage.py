#!/usr/bin/env python3
"""How much of a training step runs in Kiln? GPT-2 124M, forward and backward: torch's profiler counts every aten op that
a step still runs outside of Kiln's programs, glue between captured regions and autograd's accumulation included, and
counts the eager step the same way. Share = 1 - outside / eager.

An op is an outermost aten call (not those it is made of); views and bare allocations are no ops. Work: 2mnk of each
matrix product, as attention's products (causal counted in full), and the elements of the largest operand of all else."""
import argparse
import collections
import math

import common
import gpt2

# Give tensors that share memory, or memory without contents: no work is done.
VIEWS = frozenset("""alias as_strided broadcast_to chunk detach expand expand_as flatten narrow permute reshape select
slice split squeeze t transpose transpose_ unbind unflatten unsafe_split unsqueeze view view_as _reshape_alias
_unsafe_view lift_fresh split_with_sizes numpy_T contiguous resolve_conj resolve_neg movedim swapaxes""".split())
ALLOCATIONS = frozenset("empty empty_like empty_strided new_empty set_ resize_ item _local_scalar_dense".split())
HEAVY = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "attention", "softmax")


def outermost(events):
    """aten calls that no other aten call made."""
    def inside(event):
        parent = event.cpu_parent
        while parent is not None:
            if parent.name.startswith("aten::"):
                return True
            parent = parent.cpu_parent
        return False

    return [e for e in events if e.name.startswith("aten::") and not inside(e)]


def name_of(event):
    return event.name.removeprefix("aten::")


def is_work(event):
    """contiguous and reshape copy at times; then they hold a clone."""
    if name_of(event) in ALLOCATIONS:
        return False
    if name_of(event) in VIEWS:
        return any(child.name in ("aten::clone", "aten::copy_") for child in descendants(event))
    return True


def descendants(event):
    for child in event.cpu_children:
        yield child
        yield from descendants(child)


def work(event):
    """Floating-point operations, see above."""
    calls = [event, *descendants(event)]
    for call in calls:
        shapes = [s for s in call.input_shapes if s]
        name = name_of(call)
        if name in ("mm", "bmm") and len(shapes) >= 2:
            return 2 * math.prod(shapes[0]) * shapes[1][-1]
        if name == "addmm" and len(shapes) >= 3:
            return 2 * math.prod(shapes[1]) * shapes[2][-1]
        if "flash_attention" in name or "efficient_attention" in name:
            backward = "backward" in name
            query = shapes[1] if backward else shapes[0]
            return (10 if backward else 4) * math.prod(query) * query[-2]
    return max((math.prod(s) for s in event.input_shapes if s and all(isinstance(d, int) for d in s)), default=1)


def count(step):
    """(calls by name, work by name) of one step."""
    from torch.profiler import ProfilerActivity, profile

    step()
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    calls, works = collections.Counter(), collections.Counter()
    for event in outermost(profiler.events()):
        if is_work(event):
            calls[name_of(event)] += 1
            works[name_of(event)] += work(event)
    return calls, works


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dropout", default="0.0,0.1")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(2)
    rows, summary, ids = [], {}, gpt2.tokens()
    for dropout in map(float, arguments.dropout.split(",")):
        counts = {}
        for way in ("eager", "kiln", "backend"):
            model = gpt2.make_model(dropout=dropout).train()
            counts[way] = count(gpt2.training_step(gpt2.compiled(model, way), model, ids))
        for way in ("kiln", "backend"):
            calls, works = counts[way]
            shares = [1 - outside.total() / all_.total() for outside, all_ in zip(counts[way], counts["eager"])]
            case = f"{way}, dropout {dropout}"
            rows.append({"case": f"{case}: ops in Kiln", "unit": "share", "ours": shares[0],
                         "outside": dict(calls.most_common()), "eager_calls": counts["eager"][0].total()})
            rows.append({"case": f"{case}: work in Kiln", "unit": "share", "ours": shares[1],
                         "outside": dict(works.most_common()), "eager_work": counts["eager"][1].total()})
            summary[case] = {"ops": round(shares[0], 4), "work": round(shares[1], 6),
                             "heavy_outside": [name for name in calls if any(h in name for h in HEAVY)]}
    common.report("coverage", rows, summary)


if __name__ == "__main__":
    main()
