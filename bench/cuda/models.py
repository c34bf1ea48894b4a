"""Models whose training steps are timed: each gives the mean loss of a batch, which its batch_of() makes. Of text it is tokens,
and the loss that of each next one; of images it is these and their classes."""
import torch
import torch.nn.functional as functional
from torch import nn


def loss_of(logits, tokens):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class TextModel(nn.Module):
    @staticmethod
    def batch_of(batch, length, vocabulary, device):
        """[batch, length]"""
        return (torch.randint(vocabulary, (batch, length), device=device),)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(TextModel):
    def __init__(self, layers, width, vocabulary, length):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return loss_of(self.norm(x) @ self.words.weight.t(), tokens)


def rotated(x, angles):
    """Halves of each head's features as pairs, turned by their place's angles [length, features / 2] (RoFormer)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, -1)
    cos, sin = angles.to(wide).cos(), angles.to(wide).sin()
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, -1).to(x.dtype)


class LlamaBlock(nn.Module):
    """Four heads of queries share one of keys."""

    def __init__(self, width, heads, length):
        super().__init__()
        depth, kv_heads = width // heads, max(1, heads // 4)
        self.heads, self.kv_heads = heads, kv_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * kv_heads * depth, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3 // 64 * 64 + 64
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        frequencies = 1e4 ** (-torch.arange(0, depth, 2) / depth)
        self.register_buffer("angles", torch.outer(torch.arange(length), frequencies).float(), persistent=False)

    def forward(self, x):
        normed = self.norm_1(x)
        q = self.q(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for t in self.kv(normed).chunk(2, -1))
        q, k = rotated(q, self.angles), rotated(k, self.angles)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(TextModel):
    def __init__(self, layers, width, vocabulary, length):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, max(4, width // 64), length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(self.norm(x)), tokens)


def convolution(channels, filters, size, stride=1):
    return nn.Sequential(nn.Conv2d(channels, filters, size, stride, size // 2, bias=False), nn.BatchNorm2d(filters))


class Bottleneck(nn.Module):
    """To four times the width; the first of a stage also changes the number of pixels."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.down, self.across, self.up = (convolution(channels, width, 1), convolution(width, width, 3, stride),
                                           convolution(width, 4 * width, 1))
        self.beside = convolution(channels, 4 * width, 1, stride) if stride != 1 or channels != 4 * width else nn.Identity()

    def forward(self, x):
        y = self.across(self.down(x).relu()).relu()
        return (self.up(y) + self.beside(x)).relu()


class Resnet(nn.Module):
    """Residual stages of `layers` blocks each, as ResNet-50 has them; images are `length` pixels wide and high."""

    def __init__(self, layers, width, classes, length):
        super().__init__()
        blocks, channels = [], width
        for stage in range(4):
            for block in range(layers):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
                channels = 4 * (width << stage)
        self.first, self.blocks = convolution(3, width, 7, 2), nn.Sequential(*blocks)
        self.last = nn.Linear(channels, classes)

    @staticmethod
    def batch_of(batch, length, classes, device):
        """[batch, 3, length, length] and [batch]"""
        return torch.randn(batch, 3, length, length, device=device), torch.randint(classes, (batch,), device=device)

    def forward(self, images, classes):
        x = functional.max_pool2d(self.first(images).relu(), 3, 2, 1)
        scores = self.last(self.blocks(x).mean((2, 3)))
        return functional.cross_entropy(scores.float(), classes)


MODELS = {"gpt2": Gpt, "llama": Llama, "resnet": Resnet}
