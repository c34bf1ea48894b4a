"""Models for `kiln export`, each with example inputs."""

import torch


def mlp():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    return model, (torch.randn(5, 48),)


def breaks():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            if x.sum().item() > 0:
                return torch.relu(x) * 2
            return x

    return Breaks(), (torch.ones(4, 4),)
