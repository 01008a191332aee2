"""Small language models of random weights, and what transformers says that they say."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

PROMPT = [5, 17, 300, 42, 9]
NEW_TOKENS = 12


def write_config(folder: str, *, tied: bool) -> None:
    """A Llama of 4 layers."""
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        vocab_size=1024,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        dtype="float32",
    ).save_pretrained(folder)


def make(folder: str, seed: int) -> Any:
    """The model of this configuration with weights of this seed; zero: those in the folder."""
    torch.set_num_threads(1)
    if seed == 0:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.float32).eval()
    for each in model.parameters():
        if each.ndim > 1:
            torch.nn.init.normal_(each, std=0.08)
    return model


def tokens_of(folder: str, seed: int, prompt: list[int] = PROMPT) -> list[int]:
    """What transformers generates, greedily."""
    with torch.no_grad():
        out = make(folder, seed).generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    tokens: list[int] = out[0][len(prompt) :].tolist()
    return tokens
