"""Denoisers."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import Attention, mlp, sinusoids


class ModulatedBlock(nn.Module):
    """DiT's: shifts, scales and gates from the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.attention, self.mlp = Attention(width, 2), mlp(width, 2 * width)

    def forward(self, x, time):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(time)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attention(self.norm(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class Denoiser(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.time = nn.Linear(width, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width) for _ in range(depth))

    def forward(self, x, step, noise):
        time = F.silu(self.time(sinusoids(50, x.shape[-1]).to(x.dtype)[step]))
        y = x
        for block in self.blocks:
            y = block(y, time)
        return F.mse_loss(y, noise), y


def modulated():
    return Denoiser(32, 3), (torch.randn(2, 9, 32), torch.tensor([3, 41]), torch.randn(2, 9, 32))


class ConvolutionalDenoiser(nn.Module):
    """Group norms, a time added to channels, attention over pixels, a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(2 * width, 2, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv, self.time, self.attention = nn.Conv2d(width, width, 3, padding=1), nn.Linear(8, width), Attention(width, 2)

    def forward(self, x, time):
        first = self.enter(x)
        y = self.conv(F.silu(self.norm1(first))) + self.time(time)[:, :, None, None]
        pixels = self.norm2(y).flatten(2).transpose(1, 2)
        y = y + self.attention(pixels).transpose(1, 2).view_as(y)
        return self.leave(torch.cat([first, y], dim=1))


def convolutional():
    return ConvolutionalDenoiser(16), (torch.randn(2, 2, 6, 6), torch.randn(2, 8))


MODELS = (modulated, convolutional)
