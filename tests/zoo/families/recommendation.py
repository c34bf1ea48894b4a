"""Sparse features and their interactions."""

import torch
from torch import nn
from torch.nn import functional as F


class Interactions(nn.Module):
    """DLRM's: a table for each sparse feature, all pairs of products, two towers."""

    def __init__(self, rows: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        self.bottom = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        count = len(rows) + 1
        self.top = nn.Sequential(nn.Linear(width + count * (count - 1) // 2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, label):
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(products.shape[1], products.shape[2], offset=-1)
        logit = self.top(torch.cat([bottom, products[:, row, column]], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logit, label), logit


def interactions():
    sparse = torch.stack([torch.randint(0, count, (6,)) for count in (11, 5, 23)], dim=1)
    return Interactions((11, 5, 23), 8), (torch.randn(6, 7), sparse, torch.randint(0, 2, (6,)).float())


class TwoTowers(nn.Module):
    """Contrast of users and items over the batch, with a learned temperature and a margin."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(9, width), nn.SELU(), nn.Linear(width, width))
        self.item = nn.Sequential(nn.Linear(5, width), nn.Mish(), nn.Linear(width, width))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, user, item):
        a, b = F.normalize(self.user(user), dim=-1), F.normalize(self.item(item), dim=-1)
        logits = a @ b.T * self.temperature.exp()
        target = torch.arange(len(a))
        contrast = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        return contrast + F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.3)


def two_towers():
    return TwoTowers(12), (torch.randn(5, 9), torch.randn(5, 5))


MODELS = (interactions, two_towers)
