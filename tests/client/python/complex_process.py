"""A step of a model of complex numbers (the argument names it), by kiln.compile; says kiln.stats()."""

import json
import sys

import complex_models
import torch

import kiln

SHAPES = {"Rotary": (2, 9, 30), "Operator": (2, 5, 22)}
ARGUMENTS = {"Operator": (5, 4)}

torch.manual_seed(0)
model = getattr(complex_models, sys.argv[1])(*ARGUMENTS.get(sys.argv[1], ()))
compiled, x = kiln.compile(model), torch.randn(SHAPES[sys.argv[1]])
steps = []
for run in (compiled, model):
    model.zero_grad()
    run(x).square().sum().backward()
    steps.append([p.grad.clone() for p in model.parameters()])
torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-4)
print(json.dumps(kiln.stats()))
