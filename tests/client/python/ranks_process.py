"""One rank of a job of torchrun: what people do to a model that several ranks train, compiled and in eager. The first rank prints
each rank's largest difference of each way, a digest of what the compiled one computed, and its counters, as JSON.

    python -m torch.distributed.run --nproc-per-node 2 ranks_process.py
"""

import copy
import hashlib
import json
import os

import torch
import torch.distributed as dist
from regional_models import VOCABULARY, backward, difference, make
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import kiln


def ids_of(step):
    """Each rank's own, in each step."""
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randint(0, VOCABULARY, (2, 16), generator=generator)


def whole(tensor):
    """A copy, put together where ranks have parts of it."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train(model, steps=3, pieces=1):
    """Losses, the last step's gradients, and the parameters after steps of so many pieces, whose gradients are added up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, gradients = [], []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        for piece in range(pieces - 1):
            with model.no_sync():
                losses.append(backward(model, ids_of(10 * step + piece)).detach())
        losses.append(backward(model, ids_of(10 * step + pieces)).detach())
        gradients = [whole(p.grad) for p in model.parameters()]
        optimizer.step()
    return [*losses, *gradients, *map(whole, model.parameters())]


def replicated(prepare):
    return DistributedDataParallel(prepare(make("gpt")))


def accumulating(prepare):
    return train(replicated(prepare), pieces=3)


def checkpointed(prepare):
    model = prepare(make("gpt"))
    model.checkpointed = True
    return DistributedDataParallel(model)


def halved(_, bucket):
    """What ranks exchange, by a hook: half of the mean."""
    reduced = dist.all_reduce(bucket.buffer().div_(2 * dist.get_world_size()), async_op=True)
    return reduced.get_future().then(lambda done: done.value()[0])


def hooked(prepare):
    model = replicated(prepare)
    model.module.blocks[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    model.register_comm_hook(None, halved)
    return model


def restored(prepare):
    """One that goes on where another one's state says."""
    before, after = replicated(prepare), replicated(prepare)
    train(before, steps=1)
    state = before.state_dict()
    assert list(state) == list(DistributedDataParallel(make("gpt")).state_dict())
    after.load_state_dict(state)
    return after


def copied(prepare):
    before = prepare(make("gpt"))
    train(DistributedDataParallel(before), steps=1)
    return DistributedDataParallel(copy.deepcopy(before))


def sharded(prepare):
    model = prepare(make("gpt"))
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def by_torch_compile(prepare):
    model = DistributedDataParallel(make("gpt"))
    return torch.compile(model, backend="kiln") if prepare is kiln.compile else model


WAYS = (replicated, accumulating, checkpointed, hooked, restored, copied, sharded, by_torch_compile)


def outcome(way, prepare):
    made = way(prepare)
    return made if isinstance(made, list) else train(made)


def digest(tensors):
    """Of all their bits."""
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def said_of(way):
    compiled = outcome(way, kiln.compile)
    return {"difference": difference(compiled, outcome(way, lambda model: model)), "digest": digest(compiled)}


def leave():
    """Without taking gloo apart, which may wait for ever for ranks that are gone, compiled or not."""
    dist.barrier()
    os._exit(0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    said = {way.__name__: said_of(way) for way in WAYS}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {"ways": said, "stats": kiln.stats()})
    if dist.get_rank() == 0:
        print(json.dumps(ranks), flush=True)
    leave()


if __name__ == "__main__":
    main()
