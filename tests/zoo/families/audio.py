"""Waveforms and spectra."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import PreNormBlock


class DilatedBlock(nn.Module):
    """WaveNet's: gated, dilated, causal, with a skip."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad, self.conv = dilation, nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        value, gate = self.conv(F.pad(x, (self.pad, 0))).chunk(2, dim=1)
        y = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(y), self.skip(y)


class Wave(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DilatedBlock(width, 2**i) for i in range(3))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return F.relu(total)


def dilated_waves():
    return Wave(8), (torch.randn(2, 8, 24),)


class Speech(nn.Module):
    """Frames by strided convolutions, then a transformer over them; instance statistics first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, width, 5, stride=3), nn.Conv1d(width, width, 3, stride=2)
        self.norm, self.blocks = nn.LayerNorm(width), nn.ModuleList(PreNormBlock(width, 2) for _ in range(2))

    def forward(self, wave):
        wave = (wave - wave.mean(-1, keepdim=True)) / (wave.std(-1, keepdim=True) + 1e-5)
        x = F.gelu(self.conv2(F.gelu(self.conv1(wave[:, None]))))
        x = self.norm(x.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return x.cumsum(1)


def speech_frames():
    return Speech(16), (torch.randn(2, 70),)


MODELS = (dilated_waves, speech_frames)
