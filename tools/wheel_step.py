"""One training step through an installed Kiln, held against torch."""
import kiln
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
x = torch.randn(64, 256)
expected = model(x).square().mean()
expected.backward()
gradients = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
loss = kiln.compile(model)(x).square().mean()
loss.backward()
assert torch.allclose(loss, expected, atol=1e-5)
assert all(torch.allclose(p.grad, g, atol=1e-5) for p, g in zip(model.parameters(), gradients))
stats = kiln.stats()
assert stats["compilations"] > 0 and stats["nodes_fallback"] == 0, stats
print(f"kiln {kiln.__version__} from {kiln.__file__}: {stats['compilations']} kernels compiled, equal to torch")
