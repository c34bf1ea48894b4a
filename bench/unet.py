"""A U-Net as people write one: two 3x3 convolutions with batch norm a level, halved by max pooling, doubled by transposed
convolutions, concatenated with what was there before."""
import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import ImageClassifierOutput


def pair(channels, filters):
    def one(channels):
        return nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)
    return nn.Sequential(*one(channels), *one(filters))


class UNet(nn.Module):
    def __init__(self, width=64, levels=4, classes=2):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.downs = nn.ModuleList(pair(a, b) for a, b in zip([3, *widths], widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in reversed(widths[:-1]))
        self.merges = nn.ModuleList(pair(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x, labels):
        """x [batch, 3, height, width], multiples of 2^levels; labels [batch, height, width]."""
        kept = []
        for level, down in enumerate(self.downs):
            x = down(x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, skip in zip(self.ups, self.merges, reversed(kept[:-1])):
            x = merge(torch.cat([skip, up(x)], dim=1))
        return ImageClassifierOutput(loss=F.cross_entropy(self.head(x), labels))
