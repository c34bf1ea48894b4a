#!/usr/bin/env python3
"""How much of a training step runs in Kiln? GPT-2 124M, forward and backward: torch's profiler counts every aten op that
a step still runs outside of Kiln's programs, what runs between captures and autograd's own sums of gradients included, and
counts the eager step the same way. Share = 1 - outside / eager.

An op is an outermost aten call (not those it is made of); views, bare allocations and numbers that
Python reads are no ops. Ops between captures
pass torch's dispatcher, then run in Kiln, where the profiler shows `kiln`. Work: 2mnk of each matrix product, as
attention's products (causal counted in full), and the elements of the largest operand of all else.

Dropout's random numbers are torch's by design, drawn as eager draws them: one `bernoulli_` per mask counts as outside;
"draws aside" is the share without them."""
import argparse
import collections
import math

import common
import gpt2

# Give tensors that share memory, or memory without contents: no work is done.
VIEWS = frozenset("""alias as_strided broadcast_to chunk detach expand expand_as flatten narrow permute reshape select
slice split squeeze t transpose transpose_ unbind unflatten unsafe_split unsqueeze view view_as to _reshape_alias
_unsafe_view lift_fresh split_with_sizes numpy_T contiguous resolve_conj resolve_neg movedim swapaxes""".split())
ALLOCATIONS = frozenset("empty empty_like empty_strided new_empty set_ resize_ item is_nonzero _local_scalar_dense".split())
DRAWS = ("bernoulli_",)
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
    """contiguous, reshape and to copy at times; then they hold a clone."""
    if name_of(event) in ALLOCATIONS:
        return False
    if name_of(event) in VIEWS:
        return any(child.name in ("aten::clone", "aten::copy_", "aten::_to_copy") for child in descendants(event))
    return True


def runs_in_torch(event):
    """Whether any of the op's work is done outside of Kiln."""
    if any(child.name == "kiln" for child in event.cpu_children):
        return False
    if any(child.name == "kiln" for child in descendants(event)):
        return any(runs_in_torch(c) for c in event.cpu_children if c.name.startswith("aten::") and is_work(c))
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
        if is_work(event) and runs_in_torch(event):
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
    rows, summary, batch = [], {}, gpt2.make_batch()
    for dropout in map(float, arguments.dropout.split(",")):
        counts = {}
        for way in ("eager", "kiln", "backend"):
            model = gpt2.make_model(dropout=dropout).train()
            counts[way] = count(gpt2.training_step(gpt2.compiled(model, way), model, batch))
        for way in ("kiln", "backend"):
            (calls, works), case = counts[way], f"{way}, dropout {dropout}"
            eager_calls, eager_work = (all_.total() for all_ in counts["eager"])
            draws = sum(calls[name] for name in DRAWS)
            ops, aside = 1 - calls.total() / eager_calls, 1 - (calls.total() - draws) / eager_calls
            share = 1 - works.total() / eager_work
            rows.append(common.show({"case": f"{case}: ops in Kiln", "unit": "share", "ours": ops, "draws_aside": aside,
                                     "outside": dict(calls.most_common()), "eager_calls": eager_calls}))
            rows.append(common.show({"case": f"{case}: work in Kiln", "unit": "share", "ours": share,
                                     "outside": dict(works.most_common()), "eager_work": eager_work}))
            summary[case] = {"ops": round(ops, 4), "ops, draws aside": round(aside, 4), "work": round(share, 6),
                             "heavy_outside": [name for name in calls if any(h in name for h in HEAVY)]}
    common.report("coverage", rows, summary)


if __name__ == "__main__":
    main()
