"""Latent variables, codes, flows. Noise is an input, so that runs can be compared."""

import torch
from torch import nn
from torch.nn import functional as F


class Variational(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(20, 2 * width), nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 20))

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        z = mean + noise * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.mse_loss(self.decoder(z), x, reduction="sum") / len(x) + divergence


def variational():
    return Variational(6), (torch.randn(4, 20), torch.randn(4, 6))


class Quantised(nn.Module):
    """VQ-VAE's: the nearest code, gradients straight through, averages of the codes in buffers."""

    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, width), nn.Linear(width, 12)
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))

    def forward(self, x):
        z = self.encoder(x)
        distance = z.pow(2).sum(-1, keepdim=True) - 2 * z @ self.codes.T + self.codes.pow(2).sum(-1)
        index = distance.argmin(-1)
        code = self.codes[index]
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(F.one_hot(index, len(self.codes)).to(z.dtype).sum((0, 1)), alpha=0.1)
        straight = z + (code - z).detach()
        return self.decoder(straight), F.mse_loss(z, code.detach())


def quantised():
    return Quantised(8, 10), (torch.randn(3, 5, 12),)


class Coupling(nn.Module):
    """RealNVP's: halves in turn, with the log of the determinant."""

    def __init__(self, width: int, is_swapped: bool) -> None:
        super().__init__()
        self.is_swapped, self.net = is_swapped, nn.Sequential(nn.Linear(width // 2, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        if self.is_swapped:
            first, second = second, first
        scale, shift = self.net(first).chunk(2, dim=-1)
        scale = torch.tanh(scale)
        second = second * scale.exp() + shift
        parts = (second, first) if self.is_swapped else (first, second)
        return torch.cat(parts, dim=-1), scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width, bool(i % 2)) for i in range(4))

    def forward(self, x):
        total = torch.zeros(len(x), dtype=x.dtype)
        for layer in self.layers:
            x, change = layer(x)
            total = total + change
        return (0.5 * x.square().sum(-1) - total).mean(), x


def coupling_flow():
    return Flow(8), (torch.randn(5, 8),)


MODELS = (variational, quantised, coupling_flow)
