"""Versions that do not fit a real engine: each is an error that names tensors, and the engine goes on answering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import models
import torch
from checks import check

import tensorhub as th
from tensorhub.torch import ArenaPublisher

Tensors = dict[str, torch.Tensor]
FUSED, PLAIN = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
NARROWED = "model.layers.2.mlp.down_proj.weight"


def _without(gone: str) -> Callable[[Tensors], Tensors]:
    return lambda whole: {name: each for name, each in whole.items() if name != gone}


def _with_another(whole: Tensors) -> Tensors:
    return {**whole, "model.layers.9.extra.weight": torch.zeros(4, 4)}


def _narrowed(whole: Tensors) -> Tensors:
    return {name: each[:, :100].contiguous() if name == NARROWED else each for name, each in whole.items()}


# What is made of the weights, and what the error says in an engine that has no version yet, and in one that has.
BAD = {
    "lacks-fused": (_without(FUSED), "a part of model.layers.1.self_attn.qkv_proj.weight", f"missing: {FUSED}"),
    "lacks-plain": (_without(PLAIN), f"({PLAIN})", f"missing: {PLAIN}"),
    "another": (_with_another, "model.layers.9.extra.weight", "unknown: model.layers.9.extra.weight"),
    "narrowed": (_narrowed, f"at tensor {NARROWED}", f"different: {NARROWED}"),
}


class Engines:
    """An engine, and a model of the hub for each kind of version."""

    def __init__(self, folder: str) -> None:
        from engine import Engine

        self.engine = Engine(folder, dtype="float32", skip_tokenizer_init=True)
        self._server = th.ReferenceServer()
        self._arenas: list[ArenaPublisher] = []

    def publish(self, model: str, tensors: Tensors) -> None:
        layout = [(name, each.dtype, each.shape) for name, each in tensors.items()]
        arena = ArenaPublisher(self._server, model, "trainer-0", layout)
        for name, each in tensors.items():
            arena.put(name, each)
        arena.commit(1)
        self._arenas.append(arena)

    def error_of(self, model: str, **more: Any) -> str:
        info = {"server": self._server.address, "model": model, "timeout": 5.0, **more}
        self.engine.llm.init_weight_transfer_engine({"init_info": info})
        try:
            self.engine.update(1)
        except Exception as e:  # noqa: BLE001
            return str(e)
        return ""

    def tokens(self) -> list[int]:
        return self.engine.tokens(models.PROMPT)


def run(folder: str) -> None:
    whole = {name: each.detach() for name, each in models.make(folder, 1).named_parameters()}
    want = models.tokens_of(folder, 1)
    engines = Engines(folder)
    engines.publish("whole", whole)
    for kind, (make, said, _) in BAD.items():
        engines.publish(kind, make(whole))
        check(f"the first version, {kind}: an error names the tensor", said in (error := engines.error_of(kind)))
        print(f"       {error}", flush=True)
        check(f"the first version, {kind}: the engine answers", len(engines.tokens()) == models.NEW_TOKENS)
        check(f"the first version, {kind}: it has no number", engines.engine.llm.get_weight_version() != "1")
    check("a version that fits is loaded after them", engines.error_of("whole") == "" and engines.tokens() == want)
    for kind, (_, _, said) in BAD.items():
        check(f"a later version, {kind}: an error names the tensor", said in engines.error_of(kind))
        check(f"a later version, {kind}: the weights are as they were", engines.tokens() == want)
    check("a version that fits is loaded after them, too", engines.error_of("whole") == "" and engines.tokens() == want)
