"""Policies and values."""

import torch
from torch import nn
from torch.nn import functional as F


class ActorCritic(nn.Module):
    """PPO's clipped loss with entropy and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.actor, self.critic = nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(self, state, action, old_log, advantage, reward):
        x = self.body(state)
        logs = self.actor(x).log_softmax(-1)
        chosen = logs.gather(1, action[:, None]).squeeze(1)
        ratio = (chosen - old_log).exp()
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return policy + 0.5 * F.smooth_l1_loss(self.critic(x).squeeze(1), reward) - 0.01 * entropy


def clipped_policy():
    count = 9
    inputs = (torch.randn(count, 6), torch.randint(0, 4, (count,)), torch.randn(count).abs().neg(), *torch.randn(2, count))
    return ActorCritic(), inputs


class Duelling(nn.Module):
    """A duelling network and its target, which follows in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.advantage = nn.Linear(5, 16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, state, action, reward):
        with torch.no_grad():
            self.mean.lerp_(state.mean(0), 0.1)
        x = F.relu(self.body(state - self.mean))
        advantage = self.advantage(x)
        q = self.value(x) + advantage - advantage.mean(-1, keepdim=True)
        target = reward + 0.9 * q.detach().max(-1).values
        return F.huber_loss(q.gather(1, action[:, None]).squeeze(1), target), q


def duelling():
    return Duelling(), (torch.randn(7, 5), torch.randint(0, 3, (7,)), torch.randn(7))


MODELS = (clipped_policy, duelling)
