"""One process of test_regional.py: `regional_process.py SCENARIO ARGUMENT…` prints what happened as one line of JSON."""

import copy
import hashlib
import json
import sys

import torch
from regional_models import backward, difference, loss_and_gradients, make, make_ids

import kiln


def digest(tensors):
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def frames():
    """Frames that Dynamo compiled."""
    return torch._dynamo.utils.counters["frames"]["ok"]


def report(**fields):
    stats = kiln.stats()
    modules = [m for m in sys.modules if m in ("torch._inductor.lowering", "torch._inductor.compile_fx")]
    print(json.dumps({**fields, "stats": stats, "frames": frames(), "inductor": modules, "explain": kiln.explain()}))


def train(kind, depth="3", options="{}"):
    model = make(kind, int(depth), **json.loads(options))
    twin, ids = copy.deepcopy(model), make_ids()
    kiln.compile(model)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(loss_and_gradients(model, ids))
    torch.manual_seed(7)
    report(digest=digest(results[0]), again=digest(results[1]), error=difference(results[0], loss_and_gradients(twin, ids)))


def swap_activation(model):
    for block in model.blocks:
        block.activation = torch.nn.SiLU()


def change_number(model):
    for block in model.blocks:
        block.scale = 0.25


def change_eps(model):
    for block in model.blocks:
        block.norm.eps = 0.5


def remove_dropout(model):
    for block in model.blocks:
        block.dropout = torch.nn.Identity()


CHANGES = {
    "nothing": lambda model: None,
    "evaluation": lambda model: model.eval(),
    "training": lambda model: model.train(),
    "activation": swap_activation,
    "number": change_number,
    "eps": change_eps,
    "module": remove_dropout,
    "f64": lambda model: model.double(),
}


def change():
    """Each change after the last, on a model whose captures were there before; the error against eager, of each."""
    model, ids = make("gpt"), make_ids()
    kiln.compile(model)
    errors = {}
    for name, apply in CHANGES.items():
        for length in (16, 9) if name in ("nothing", "activation") else (16,):
            apply(model)
            twin = copy.deepcopy(model)
            torch.manual_seed(7)
            got = loss_and_gradients(model, make_ids(length))
            torch.manual_seed(7)
            errors[f"{name} {length}"] = difference(got, loss_and_gradients(twin, make_ids(length)))
        if name == "nothing":
            before = frames()
    report(errors=errors, before=before)


MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}


def infer(*names):
    """In the modes named, or in all: without gradients in two ways, then with."""
    model, ids = make("gpt").eval(), make_ids()
    expected = model(ids).detach()
    kiln.compile(model)
    errors = {}
    for name in names or MODES:
        with MODES[name]():
            got = model(ids)
            errors[name] = difference([got.detach().clone()], [expected])
            assert got.requires_grad == (name == "grad"), name
    report(errors=errors)


def branch():
    """Blocks that look at their data, on inputs that lead them to different ways."""
    model = make("branching")
    twin = copy.deepcopy(model)
    kiln.compile(model)
    batches = [make_ids(seed=seed) for seed in range(6)]
    report(error=max(difference(loss_and_gradients(model, ids), loss_and_gradients(twin, ids)) for ids in batches))


def accumulate():
    """Gradients of before kiln.compile, and of a capture of another length, are added to."""
    model = make("gpt")
    twin, lengths = copy.deepcopy(model), (16, 16, 9)
    for i, length in enumerate(lengths):
        if i == 1:
            kiln.compile(model)
        for each in (model, twin):
            backward(each, make_ids(length))
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, twin)]
    report(error=difference(*gradients))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
