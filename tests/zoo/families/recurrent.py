"""Recurrences written out in Python."""

import torch
from torch import nn

from .blocks import VOCABULARY, tokens


class GatedCell(nn.Module):
    """Cho et al. 2014."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates, self.inner = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, state):
        reset, update = torch.sigmoid(self.gates(torch.cat([x, state], dim=-1))).chunk(2, dim=-1)
        proposal = torch.tanh(self.inner(torch.cat([x, reset * state], dim=-1)))
        return update * state + (1 - update) * proposal


class Unrolled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, width), GatedCell(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = self.embedding(ids)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.head(torch.stack(states, dim=1)), state


def gated_cell():
    return Unrolled(24), (tokens(2, 6),)


class LongMemory(nn.Module):
    """An LSTM's cell with its state kept in buffers between calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)
        self.register_buffer("hidden", torch.zeros(3, width))
        self.register_buffer("cell", torch.zeros(3, width))

    def forward(self, x):
        hidden, cell, outputs = self.hidden.clone(), self.cell.clone(), []
        for step in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, step], hidden], dim=-1)).chunk(4, dim=-1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            outputs.append(hidden)
        with torch.no_grad():
            self.hidden.copy_(hidden)
            self.cell.copy_(cell)
        return torch.stack(outputs, dim=1)


def state_in_buffers():
    return LongMemory(16), (torch.randn(3, 5, 16),)


MODELS = (gated_cell, state_in_buffers)
