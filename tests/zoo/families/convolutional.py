"""Convolutional networks: batch norm with its running statistics, activations in place, squeezes, pools."""

import torch
from torch import nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        is_same = stride == 1 and inner == outer
        self.shortcut = nn.Identity() if is_same else nn.Sequential(nn.Conv2d(inner, outer, 1, stride), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


def residual_in_place():
    stages = [ResidualBlock(8, 8), ResidualBlock(8, 8), ResidualBlock(8, 16, 2), ResidualBlock(16, 16)]
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), (torch.randn(2, 3, 16, 16),)


class InvertedBlock(nn.Module):
    """MobileNet's, with a squeeze and hard activations."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish())
        self.depth = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False)
        self.norm, self.project = nn.BatchNorm2d(hidden), nn.Conv2d(hidden, width, 1)
        self.squeeze, self.excite = nn.Conv2d(hidden, hidden // 4, 1), nn.Conv2d(hidden // 4, hidden, 1)

    def forward(self, x):
        y = F.relu6(self.norm(self.depth(self.expand(x))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * scale)


def inverted_bottlenecks():
    return nn.Sequential(*(InvertedBlock(8, 24) for _ in range(3))), (torch.randn(2, 8, 9, 9),)


class NextBlock(nn.Module):
    """ConvNeXt's: channels last in the middle, layer scale, stochastic nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def channels_last():
    module = nn.Sequential(*(NextBlock(12) for _ in range(3)))
    return module.to(memory_format=torch.channels_last), (torch.randn(2, 12, 10, 10).to(memory_format=torch.channels_last),)


class Pyramid(nn.Module):
    """U-Net's: down, up by interpolation, concatenated with what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.third, self.last = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x):
        first = F.leaky_relu(self.first(x), 0.1)
        second = F.silu(self.norm(self.second(first)))
        up = F.interpolate(second, scale_factor=2, mode="nearest")
        return self.last(F.elu(self.third(torch.cat([first, up], dim=1)))).log_softmax(1)


def pyramid():
    return Pyramid(), (torch.randn(2, 3, 12, 12),)


MODELS = (residual_in_place, inverted_bottlenecks, channels_last, pyramid)
