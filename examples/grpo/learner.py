"""How the model learns: a step of GRPO, without the optimizer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rollout
import task
import torch

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

CLIP = 0.2
LEARNING_RATE = 2e-3


def make() -> tuple[LlamaForCausalLM, torch.optim.Optimizer]:
    """The model that learns, and its optimizer."""
    model = task.make_model(seed=0)
    return model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, episodes: list[rollout.Episodes]) -> float:
    """Gradients of one step of GRPO: each answer is compared with the others to its prompt. Returns the mean reward."""
    tokens = torch.cat([each.tokens for each in episodes])
    old = torch.cat([each.log_probabilities for each in episodes])
    reward = task.rewards(tokens)
    groups = reward.reshape(-1, rollout.GROUP)
    advantage = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    ratio = torch.exp(task.log_probabilities(model, tokens) - old)
    weight = advantage.reshape(-1, 1)
    loss = -torch.min(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight).mean()
    optimizer.zero_grad()
    loss.backward()
    return float(reward.mean())
