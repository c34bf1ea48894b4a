"""What training saves: each layer of one class the same set, pointwise chains again from it."""

import collections

import torch

from kiln.torch import backend, joint


def saved_by(model, monkeypatch, *inputs):
    """The nodes saved by the forward of one training step, as (name of the op, shape)."""
    seen = []
    original = joint.saved_values

    def spy(*arguments):
        seen.extend(original(*arguments))
        return list(seen)

    monkeypatch.setattr(joint, "saved_values", spy)
    torch.compile(model, backend=backend)(*inputs).sum().backward()
    return [(str(n.target if n.op != "placeholder" else "input").removesuffix(".default"), tuple(n.meta["val"].shape)) for n in seen]


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def test_pointwise_chains_are_not_saved(monkeypatch):
    width = 8
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.SiLU())
    saved = saved_by(model, monkeypatch, torch.randn(5, width))
    assert [name for name, _ in saved if name != "input"] == ["aten.addmm"]


def test_every_layer_of_a_class_saves_the_same_set(monkeypatch):
    layers = 5
    saved = saved_by(torch.nn.Sequential(*(Block(8) for _ in range(layers))), monkeypatch, torch.randn(6, 8))
    counts = collections.Counter(entry for entry in saved if entry[0] != "input")
    # The first layer reads the input where others read the residual stream.
    assert all(count % layers in (0, layers - 1) for count in counts.values()), counts
    assert counts[("aten.addmm", (6, 32))] == layers


def test_the_activation_between_two_products_is_recomputed(monkeypatch):
    saved = saved_by(Block(8), monkeypatch, torch.randn(6, 8))
    assert [shape for name, shape in saved if name != "input"].count((6, 32)) == 1


def test_dropout_masks_are_saved_never_drawn_again(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))
    names = [name for name, _ in saved_by(model, monkeypatch, torch.randn(6, 8))]
    assert sum("draw_mask" in name for name in names) == 1


def test_gradients_with_recomputation_are_torchs():
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(Block(8) for _ in range(3))).double()
    x = torch.randn(6, 8, dtype=torch.float64)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend=backend)(x).square().sum().backward()
    for got, want in zip((p.grad for p in model.parameters()), expected):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_gradient_is_taken_over_and_the_next_one_added_to_it():
    """AccumulateGrad takes what nobody else has and lies as the parameter does; else it copies, a pass over all gradients."""
    model, seen = torch.nn.Sequential(Block(8), Block(8)), {}
    compiled, x = torch.compile(model, backend=backend), torch.randn(6, 8)
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.__setitem__(name, gradient.data_ptr()))
    compiled(x).sum().backward()
    model.zero_grad(set_to_none=True)
    compiled(x).sum().backward()
    taken = {name: parameter.grad.data_ptr() for name, parameter in model.named_parameters()}
    assert taken == seen
    compiled(x).sum().backward()
    assert taken == {name: parameter.grad.data_ptr() for name, parameter in model.named_parameters()}


def test_the_second_gradient_of_a_shared_weight_is_added_to_the_first_one_where_that_lies():
    """Autograd does so where nobody else holds the memory: a view would keep the tensor that it is of."""
    weight, seen = torch.randn(9, 8, requires_grad=True), []
    layer = torch.compile(lambda x: torch.nn.functional.linear(x, weight).sin(), backend=backend)
    made = [layer(torch.randn(count, 8)) for count in (6, 6)]
    for result in made:
        result.grad_fn.register_hook(lambda gradients, _: seen.extend(g.data_ptr() for g in gradients if g is not None))
    weight.register_hook(lambda total: seen.append(total.data_ptr()))
    (made[0].sum() + made[1].sum()).backward()
    first, second, total = seen
    assert first != second and total == first
