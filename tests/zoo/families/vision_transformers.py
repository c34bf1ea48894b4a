"""Images in patches and windows."""

import torch
from torch import nn
from torch.nn import functional as F

from .blocks import Attention, PreNormBlock, mlp


class PatchEncoder(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(PreNormBlock(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def patches():
    return PatchEncoder(32, 3), (torch.randn(2, 3, 16, 16),)


class WindowBlock(nn.Module):
    """Swin's: attention inside windows, shifted in every other block by roll."""

    def __init__(self, width: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp(width, 2 * width)

    def forward(self, x):  # (batch, height, width, channels)
        batch, height, width, channels = x.shape
        w = self.window
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(batch, height // w, w, width // w, w, channels).transpose(2, 3).reshape(-1, w * w, channels)
        y = self.attention(y).view(batch, height // w, width // w, w, w, channels)
        y = y.transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(y, (self.shift, self.shift), dims=(1, 2))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        quarters = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(quarters, dim=-1)))


def shifted_windows():
    layers = [WindowBlock(16, 4, 0), WindowBlock(16, 4, 2), PatchMerging(16), WindowBlock(32, 4, 0)]
    return nn.Sequential(*layers, nn.LayerNorm(32)), (torch.randn(2, 8, 8, 16),)


class ScaledBlock(nn.Module):
    """CaiT's: layer scale; XCiT's: attention between channels, with a learned temperature."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((width,), 0.1)) for _ in range(2))
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp(width, 2 * width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 4, 1)
        query, key, value = qkv.unbind(0)
        weights = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-1, -2) * self.temperature
        y = (weights.softmax(-1) @ value).permute(0, 3, 1, 2).reshape(x.shape)
        x = x + self.gamma1 * self.out(y)
        return x + self.gamma2 * self.mlp(self.norm2(x))


def channel_attention():
    return nn.Sequential(*(ScaledBlock(32, 4) for _ in range(2))), (torch.randn(2, 15, 32),)


MODELS = (patches, shifted_windows, channel_attention)
