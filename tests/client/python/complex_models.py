"""Models of complex numbers: rotary embeddings as Llama first had them, FNet's mixing, a Fourier neural operator."""

import torch
from torch import nn


def rotary(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(3).type_as(x)


class Rotary(nn.Module):
    """Attention whose queries and keys are turned by a complex number for each place."""

    def __init__(self, heads=3, width=10):
        super().__init__()
        self.qkv, self.heads = nn.Linear(heads * width, 3 * heads * width), heads
        steps = torch.outer(torch.arange(64.0), 100.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("turns", torch.polar(torch.ones_like(steps), steps), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        turns = self.turns[: x.shape[1], None]
        q, k = (torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turns).flatten(3) for t in (q, k))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(2)


class Mixing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return x + nn.functional.gelu(self.dense(x))


class Operator(nn.Module):
    """A layer whose weights are complex, of so many of a signal's lowest frequencies."""

    def __init__(self, channels, modes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.complex64) / channels)
        self.dense, self.modes = nn.Conv1d(channels, channels, 1), modes

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bix,iox->box", spectrum[..., : self.modes], self.weight)
        made = torch.fft.irfft(torch.nn.functional.pad(low, (0, spectrum.shape[-1] - self.modes)), n=x.shape[-1])
        return torch.nn.functional.gelu(made + self.dense(x))
