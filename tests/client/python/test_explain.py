"""kiln.explain() says of a miss what `kiln explain` says of its key."""

import json
import subprocess

import kiln
import torch
from capture import compiled
from conftest import CLI


def norm(rows, eps):
    aten = torch.ops.aten
    compiled(lambda x: aten.native_layer_norm(x, [256], None, None, eps)[0], torch.randn(rows, 256))


def test_a_miss_says_what_is_otherwise_in_the_nearest_graph():
    for rows, eps in ((64, 1e-6), (65, 1e-6), (64, 1e-5)):
        norm(rows, eps)
    first, longer, wider = (miss for miss in kiln.explain() if "key" in miss)
    assert longer["nearest"]["key"] == first["key"] and longer["nearest"]["graph"][0] == "input 0: f32[65, 256] was f32[64, 256]"
    assert wider["nearest"]["graph"] == ["node 0, layer_norm: eps 1e-05 was 1e-06"]
    for miss in (first, longer, wider):
        said = subprocess.run([CLI, "explain", miss["key"], "--json"], capture_output=True, text=True, check=True).stdout
        assert json.loads(said)["nearest"] == miss["nearest"]
