"""Small models of the kinds that kiln.compile is for, with random weights. A file of its own, so that each process of a
test names the same classes."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS = 50, 32, 4


class Attention(nn.Module):
    def __init__(self, causal, dropout):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal, self.dropout = causal, dropout

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Gpt(nn.Module):
    """A block with the norm first."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(True, dropout)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.activation, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(dropout)
        self.scale = 1.0  # a Python number that the capture holds as a constant

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm(x)))
        return x + self.scale * self.dropout(self.down(self.activation(self.up(self.norm2(x)))))


class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class Llama(nn.Module):
    """A block with RMS norms and a gated unit."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2, self.attention = Rms(), Rms(), Attention(True, 0.0)
        self.gate, self.up, self.down = (nn.Linear(a * WIDTH, b * WIDTH, bias=False) for a, b in ((1, 3), (1, 3), (3, 1)))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Bert(nn.Module):
    """A block with the norm last, of which every position sees every other."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(False, 0.0)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = self.norm(x + self.attention(x))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Branching(nn.Module):
    """A block whose way depends on its data."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.up(self.norm(x))
        if y.sum() > 0:
            return x + y
        return x - 2 * y


class Noisy(nn.Module):
    """A block that draws numbers."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x):
        mean, deviation = self.up(self.norm(x)).chunk(2, -1)
        return x * torch.bernoulli(torch.full((x.shape[0], 1, 1), 0.9)) + mean + deviation * torch.randn_like(mean)


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.checkpointed = False

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            if self.checkpointed:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x))


def perceptron():
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, VOCABULARY))


MAKERS = {"gpt": Gpt, "llama": Llama, "bert": Bert, "branching": Branching, "noisy": Noisy}


def make(kind, depth=3, **options):
    """A model of the kind, always with the same weights."""
    torch.manual_seed(1)
    if kind == "perceptron":
        return perceptron()
    model = Model([MAKERS[kind](**options) for _ in range(depth)])
    for parameter in model.parameters():  # norms and biases too, so that none is the identity
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return model


def make_ids(length=16, seed=3):
    return torch.randint(0, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed))


def backward(model, ids):
    """The loss, after gradients of it were added to those on the model."""
    logits = model(ids)
    loss = functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    return loss


def loss_and_gradients(model, ids):
    """The loss, then the gradient of every parameter; none is left on the model."""
    model.zero_grad(set_to_none=True)
    loss = backward(model, ids)
    result = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    model.zero_grad(set_to_none=True)
    return result


def difference(got, expected):
    """The largest difference of two lists of tensors, each relative to its largest element."""
    return max(((g - e).abs().max() / e.abs().max().clamp_min(1e-6)).item() for g, e in zip(got, expected, strict=True))
