"""Each small architecture, in training and forward, gives what eager torch gives: values, structure, gradients, buffers. The
check of first runs hides no wrong program: each program agreed with torch.

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
# The share of nodes that is Kiln's at least.
SHARES = {"decoders/grouped_query": 0.99, "decoders/partial_rotary": 0.99, "encoders/disentangled": 0.99,
          "state_space/selective_scan": 0.98}  # fmt: skip


def made(name, is_training):
    """(module, inputs) of seed 0."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, inputs = all_models()[name]()
    return module.train(is_training), inputs


@pytest.mark.parametrize("mode", ["training", "forward"])
@pytest.mark.parametrize("name", all_models())
def test_model_is_as_in_eager(name, mode):
    is_training = mode == "training"
    module, inputs = made(name, is_training)
    exact = in_f64(module, inputs, is_training)
    eager_module, ours = copy.deepcopy(module), copy.deepcopy(module)
    eager = run(eager_module, eager_module, inputs, is_training)
    before = kiln.stats()
    got = run(ours, COMPILE(ours), inputs, is_training)
    after = kiln.stats()
    assert differences(got, eager, exact) == []
    assert after["checks_failed"] == before["checks_failed"], "a program's first run did not agree with torch, which hid it"
    if is_training:  # in inference torch runs some of its own layers as one op of its own
        assert after["nodes_compiled"] > before["nodes_compiled"], "nothing ran in Kiln"
        assert after["checked"] > before["checked"], "no program was checked"


@pytest.mark.parametrize("name", SHARES)
def test_models_train_nearly_wholly_in_kiln(name):
    module, inputs = made(name, is_training=True)
    run(module, COMPILE(module), inputs, is_training=True)
    report = kiln.report(module)
    assert report.share_of_nodes >= SHARES[name], report
