"""Networks over graphs: gathers along edges, sums at nodes."""

import torch
from torch import nn
from torch.nn import functional as F

NODES, EDGES = 13, 40


def edges():
    return torch.randint(0, NODES, (2, EDGES))


class Convolution(nn.Module):
    """Kipf and Welling 2017, with degrees by scatter."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x, edge):
        source, target = edge
        degree = torch.zeros(len(x), dtype=x.dtype).scatter_add(0, target, torch.ones(edge.shape[1], dtype=x.dtype))
        norm = degree.clamp(min=1).rsqrt()
        message = self.linear(x)[source] * (norm[source] * norm[target])[:, None]
        return torch.zeros(len(x), message.shape[1], dtype=x.dtype).index_add(0, target, message)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Convolution(10, 16), Convolution(16, 5)

    def forward(self, x, edge):
        return self.second(F.relu(self.first(x, edge)), edge).log_softmax(-1)


def convolution():
    return Classifier(), (torch.randn(NODES, 10), edges())


class EdgeAttention(nn.Module):
    """Veličković et al. 2018: a softmax over each node's incoming edges."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.linear = heads, nn.Linear(width, width, bias=False)
        self.from_source, self.to_target = (nn.Parameter(torch.randn(heads, width // heads) * 0.3) for _ in range(2))

    def forward(self, x, edge):
        source, target = edge
        y = self.linear(x).view(len(x), self.heads, -1)
        score = (y * self.from_source).sum(-1)[source] + (y * self.to_target).sum(-1)[target]
        score = F.leaky_relu(score, 0.2).exp()
        total = torch.zeros(len(x), self.heads, dtype=x.dtype).index_add(0, target, score)
        weight = score / total[target].clamp(min=1e-9)
        pooled = torch.zeros_like(y).index_add(0, target, y[source] * weight[..., None])
        return F.elu(pooled.flatten(1)) + x


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EdgeAttention(16, 2) for _ in range(2))

    def forward(self, x, edge):
        for layer in self.layers:
            x = layer(x, edge)
        return x


def edge_attention():
    return Stack(), (torch.randn(NODES, 16), edges())


MODELS = (convolution, edge_attention)
