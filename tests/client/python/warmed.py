"""A module with inputs, for test_warm.py."""
import torch


def make():
    torch.manual_seed(0)
    print("a word of the module's own")  # must not end up in the answer
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.Linear(33, 4)), (torch.randn(5, 16),)


def make_with_keywords():
    return torch.nn.Linear(16, 4), {"input": torch.randn(5, 16)}


def make_of_batch(batch):
    return torch.nn.Linear(16, 4), (torch.randn(batch, 16),)


def make_nonsense():
    return torch.nn.Linear(2, 2), 7


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.projection(x).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.tanh(attended.transpose(1, 2).flatten(2))


def make_with_attention():
    torch.manual_seed(0)
    return Attention(), (torch.randn(2, 9, 32),)


def make_with_convolutions():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), torch.nn.ReLU(), torch.nn.ConvTranspose2d(6, 3, 4, stride=2)
    return torch.nn.Sequential(*layers), (torch.randn(2, 4, 9, 11),)
