"""What the model has to learn, and the model."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 16
PROMPT_TOKENS = 4
NEW_TOKENS = 6


def make_model(seed: int) -> LlamaForCausalLM:
    """A Llama of 3 layers with random weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def prompts(count: int, generator: torch.Generator) -> torch.Tensor:
    """Random tokens, [count, PROMPT_TOKENS]."""
    return torch.randint(0, VOCABULARY, (count, PROMPT_TOKENS), generator=generator)


def rewards(tokens: torch.Tensor) -> torch.Tensor:
    """How many of the generated tokens repeat the prompt's last one; from 0 to 1."""
    wanted = tokens[:, PROMPT_TOKENS - 1 : PROMPT_TOKENS]
    return (tokens[:, PROMPT_TOKENS:] == wanted).float().mean(dim=1)


def log_probabilities(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Of the generated tokens, [count, NEW_TOKENS]."""
    logits = model(tokens[:, :-1]).logits[:, PROMPT_TOKENS - 1 :]
    chosen = tokens[:, PROMPT_TOKENS:, None]
    return torch.log_softmax(logits.float(), dim=-1).gather(2, chosen).squeeze(2)
