"""With `deterministic: true` the number of threads changes no bit (docs/numerics.md)."""

import os

import kiln
import pytest
import torch
import torch.nn.functional as F

ROWS, FEATURES, INNER = 2051, 771, 130  # odd, and large enough that every thread has a share


class Model(torch.nn.Module):
    """Products, rows' norms and softmax, and sums over rows, over columns and over everything."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.inner = torch.nn.Linear(FEATURES, INNER)
        self.outer = torch.nn.Linear(INNER, FEATURES)

    def forward(self, x):
        normal = self.norm(x)
        weights = F.softmax(self.outer(F.gelu(self.inner(normal))), dim=-1)
        return weights, (weights * normal).sum(0), torch.logsumexp(normal, 0), (normal * x).mean()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def results(model, x):
    """Outputs and gradients of one step."""
    x = x.clone().requires_grad_()
    outputs = model(x)
    loss = sum((output * output).sum() for output in outputs)
    gradients = torch.autograd.grad(loss, [x, *model.parameters()])
    return [*outputs, *gradients]


def test_bits_are_the_same_on_any_number_of_threads(threads):
    assert os.environ["KILN_DETERMINISTIC"] == "true"
    model, x = Model(), torch.randn(ROWS, FEATURES)
    compiled = kiln.compile(model)
    of_threads = {}
    for count in (1, 2, 3):
        threads(count)
        of_threads[count] = [t.detach().clone() for t in results(compiled, x)]
    assert kiln.stats()["nodes_compiled"] > 0
    assert not kiln.stats()["fallback_ops"], "what torch computes may depend on its threads"
    for count in (2, 3):
        for i, (one, other) in enumerate(zip(of_threads[1], of_threads[count])):
            assert torch.equal(one, other), f"result {i} on {count} threads"
    for one, eager in zip(of_threads[1], results(model, x)):
        torch.testing.assert_close(one, eager.detach(), rtol=1e-3, atol=1e-4)
