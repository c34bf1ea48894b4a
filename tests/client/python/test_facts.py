"""What is known of an op is in its row (kiln/torch/rows): one row is all that a new op needs, and all that others ask."""

import ast
import pathlib

import pytest
import torch

import kiln
from capture import assert_close, captured, compiled
from kiln.torch import joint
from kiln.torch.between import Between
from kiln.torch.partition import partition
from kiln.torch.rows import FAMILIES, LATER, NO_ROW, ROWS, row_of
from kiln.torch.rows.table import Row
from test_joint import saved_by

COSH = torch.ops.aten.cosh.default
NAMES = {target._schema.name.split("::")[1] for family in FAMILIES for target in family.FAMILY.rows if hasattr(target, "_schema")}


def cosh(b, node):
    x = b.value(node.args[0])
    both = b.pointwise("add", b.pointwise("exp", x), b.pointwise("exp", b.pointwise("neg", x)))
    return b.pointwise("mul", both, b.full(0.5, x.dtype))


@pytest.fixture
def planted(monkeypatch):
    """planted(**facts): from now on there is a row of cosh, whose own is away: an op that has none."""
    monkeypatch.delitem(ROWS, COSH)
    assert row_of(COSH) is NO_ROW
    return lambda **facts: monkeypatch.setitem(ROWS, COSH, Row(cosh, **facts))


def test_an_overload_is_in_one_family():
    rows = [target for family in FAMILIES for target in family.FAMILY.rows]
    late = [target for target in ROWS if str(target) in LATER]
    assert len(rows) == len(set(rows)) == len(ROWS) - len(late) - 1  # that of a piece of a tuple, which is no op of torch


def test_what_torch_registers_late_has_its_row(monkeypatch):
    late = Row(cosh)
    monkeypatch.setitem(LATER, str(COSH), late)
    monkeypatch.setitem(ROWS, COSH, None)  # to be taken out again
    del ROWS[COSH]
    assert row_of(COSH) is late and ROWS[COSH] is late


def test_a_row_is_all_that_an_op_needs(planted):
    assert compiled(torch.cosh, torch.randn(3))[2]["fallback_ops"] == {"aten.cosh.default": 1}
    planted()
    got, expected, stats = compiled(lambda x: (torch.cosh(x) * 2,), torch.randn(3, 4))
    assert_close(got, expected)
    assert stats["fallback_ops"] == {"aten.cosh.default": 1} and stats["nodes_compiled"] == 2


@pytest.mark.parametrize("is_view", [True, False])
def test_views_belong_to_nobody(planted, is_view):
    planted(is_view=is_view)
    plan = partition(captured(lambda x: (torch.cosh(x) * 2,), torch.randn(3)).graph)
    assert [n.target for n in plan.views] == [COSH] * is_view


@pytest.mark.parametrize("is_recomputed", [True, False])
def test_what_a_backward_computes_again_is_not_saved(planted, monkeypatch, is_recomputed):
    class Model(torch.nn.Linear):
        def forward(self, x):
            return torch.sigmoid(torch.cosh(super().forward(x)))

    planted(is_recomputed=is_recomputed)
    assert [name for name, _ in saved_by(Model(4, 4), monkeypatch, torch.randn(5, 4))].count("aten.cosh") == (not is_recomputed)


def is_join(function, target):
    graph = captured(function, torch.randn(3), torch.randn(3)).graph
    (node,) = graph.find_nodes(op="call_function", target=target)
    return joint.is_join(node, set(graph.nodes))


@pytest.mark.parametrize("is_norm", [True, False])
def test_what_a_norm_reads_is_a_join(planted, is_norm):
    planted(is_norm=is_norm)
    assert is_join(lambda x, y: (torch.cosh(x + y),), torch.ops.aten.add.Tensor) == is_norm


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_value_and_its_copy_are_not_joined(planted, is_copy):
    planted(is_copy=is_copy)
    assert is_join(lambda x, y: ((z := x + torch.cosh(x)).sin(), z.cos(), y), torch.ops.aten.add.Tensor) == (not is_copy)


@pytest.mark.parametrize("is_idle", [True, False])
def test_what_computes_nothing_is_not_counted_between_captures(planted, is_idle):
    planted(is_idle=is_idle)
    Between().run(torch.cosh, (torch.randn(3),), {})
    assert kiln.stats()["nodes_compiled"] == (not is_idle) and kiln.stats()["fallback_ops"] == {}


def ops_named_in(node):
    """Names of ops that a list, a set or a dict holds, as strings or as what torch calls them, at whatever depth."""
    if isinstance(node, (ast.Set, ast.List, ast.Tuple)):
        return {name for item in node.elts for name in ops_named_in(item)}
    if isinstance(node, ast.Dict):
        return {name for item in (*node.keys, *node.values) for name in ops_named_in(item)}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = [node.value]
    elif isinstance(node, ast.Call) and ast.unparse(node).endswith(".split()") and isinstance(node.func.value, ast.Constant):
        words = node.func.value.value.split()
    else:
        words = ast.unparse(node).partition("aten.")[2:] if isinstance(node, ast.Attribute) else []
    return {word.split(".")[0] for word in words} & NAMES


def lists_of_ops(text):
    kinds = (ast.Set, ast.List, ast.Tuple, ast.Dict, ast.Call)
    return [found for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and len(found := ops_named_in(node)) > 1]


# What these files look for is made of several ops, whatever rows say of each.
FINDS_A_FORMULA = ("flex.py", "linear_loss.py", "panels.py")


def test_no_other_file_has_a_list_of_ops():
    for planted in ('{"native_layer_norm", "mean"}', '(("view", "default"), ("t", "default"))', "[aten.t.default, aten.permute.default]",
                    'set("exp log".split())'):  # fmt: skip
        assert lists_of_ops(planted)
    for file in pathlib.Path(kiln.__file__).parent.rglob("*.py"):
        if file.parent.name != "rows" and file.name not in FINDS_A_FORMULA:
            assert not lists_of_ops(file.read_text()), file
