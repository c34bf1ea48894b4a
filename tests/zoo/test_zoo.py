"""Each small architecture, in training and forward, gives what eager torch gives: values, structure, gradients, buffers.

ZOO_ENTRY says how models are compiled: `backend` is torch.compile(backend="kiln"), `compile` is kiln.compile."""

import copy
import os

import pytest
import torch
from comparing import differences, in_f64, run
from families import all_models

import kiln

ENTRIES = {"backend": lambda model: torch.compile(model, backend="kiln"), "compile": kiln.compile}
COMPILE = ENTRIES[os.environ.get("ZOO_ENTRY", "backend")]


@pytest.mark.parametrize("mode", ["training", "forward"])
@pytest.mark.parametrize("name", all_models())
def test_model_is_as_in_eager(name, mode):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, inputs = all_models()[name]()
    is_training = mode == "training"
    module.train(is_training)
    exact = in_f64(module, inputs, is_training)
    eager_module, ours = copy.deepcopy(module), copy.deepcopy(module)
    eager = run(eager_module, eager_module, inputs, is_training)
    before = kiln.stats()["nodes_compiled"]
    got = run(ours, COMPILE(ours), inputs, is_training)
    assert differences(got, eager, exact) == []
    if is_training:  # in inference torch runs some of its own layers as one op of its own
        assert kiln.stats()["nodes_compiled"] > before, "nothing ran in Kiln"
