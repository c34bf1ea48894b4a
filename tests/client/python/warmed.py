"""A module with inputs, for test_warm.py."""
import torch


def make():
    torch.manual_seed(0)
    print("a word of the module's own")  # must not end up in the answer
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.Linear(33, 4)), (torch.randn(5, 16),)


def make_with_keywords():
    return torch.nn.Linear(16, 4), {"input": torch.randn(5, 16)}


def make_nonsense():
    return torch.nn.Linear(2, 2), 7
