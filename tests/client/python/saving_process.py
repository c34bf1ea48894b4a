"""One process of test_saving.py: `saving_process.py ENTRY FASTER WIDTH [--dropout] [--plain] [--kernels]` trains a step of a model
by way of kiln.compile ("parts") or torch.compile ("whole"), tuned unless it is plain. Its steps are timed by a clock by which the
partition FASTER is; kernels race only if that is said. Prints what came of it as one line of JSON."""

import copy
import json
import sys

import torch

import kiln
from kiln.torch import programs, saving

entry, faster, width, *more = sys.argv[1:]
width, ran = int(width), []


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(width), torch.nn.Linear(width, 96), torch.nn.Linear(96, width)
        self.dropout = torch.nn.Dropout(0.25 if "--dropout" in more else 0.0)

    def forward(self, x):
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


def seconds(step):
    """Runs it, too."""
    run(step)
    ran.append(step.name)
    if faster == "fails":
        raise RuntimeError("this step cannot run")
    return 0.9 if step.name == faster else 1.0


def create_untuned(*arguments):
    with programs.tuned(False):
        return create(*arguments)


def trained(model, x):
    torch.manual_seed(7)
    loss = model(x).square().sum()
    loss.backward()
    drawn = torch.rand(())  # says where torch's generator is
    return [loss.detach(), drawn, x.grad, *(p.grad for p in model.parameters())]


run, saving.Step.seconds = saving.Step.seconds, seconds
create = programs.create_program
if "--kernels" not in more:
    programs.create_program = create_untuned
torch.manual_seed(1)
model = torch.nn.Sequential(Block(), Block())
x = torch.randn(3, 8, width)
twin, same = copy.deepcopy(model), x.clone().requires_grad_()
x.requires_grad_()
mode = None if "--plain" in more else "max-autotune"
compiled = kiln.compile(model, mode=mode) if entry == "parts" else torch.compile(model, backend="kiln", mode=mode)
got, wanted = trained(compiled, x), trained(twin, same)
error = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, wanted, strict=True))
saved = kiln.report(compiled).saved
print(json.dumps({"error": error, "stats": kiln.stats(), "ran": ran, "changed": not torch.equal(x, same),
                  "saved": {said.partition(",")[0]: graphs for said, graphs in saved.items()}, "report": str(kiln.report(compiled)),
                  "reasons": [each.get("reason", "") for each in kiln.explain()]}))  # fmt: skip
