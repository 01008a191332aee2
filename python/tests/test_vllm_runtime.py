"""Weights as an engine uses them (tensorhub.integrations.vllm.runtime), with modules of torch alone."""

from __future__ import annotations

from typing import Any

import pytest

import tensorhub as th

torch = pytest.importorskip("torch", reason="torch is not installed here")

from tensorhub.integrations.vllm.runtime import ShownWeights, TakenWeights, runtime_tensors  # noqa: E402


class Engine(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A transposed weight, a tied one, a scale, and a parameter that was emptied."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(16, 8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.fused = torch.nn.Parameter(torch.full((12, 8), fill).t(), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        self.register_buffer("scale", torch.full((), fill))
        torch.nn.init.constant_(self.embed.weight, fill)

    def values(self) -> set[float]:
        return {float(each) for tensor in runtime_tensors(self).values() for each in tensor.unique()}


def test_each_memory_is_told_once_as_it_lies() -> None:
    engine = Engine(1.0)
    tensors = runtime_tensors(engine)
    assert set(tensors) == {"fused", "embed.weight", "scale"}
    assert tuple(tensors["fused"].shape) == (12, 8)
    assert tensors["fused"].is_contiguous()
    assert tensors["fused"].data_ptr() == engine.fused.data_ptr()


def test_a_part_with_gaps_is_refused() -> None:
    engine = Engine(1.0)
    engine.fused.data = torch.zeros(8, 24)[:, ::2]
    with pytest.raises(th.InvalidArgument, match="tensor 'fused' is a part of a larger one, with gaps"):
        runtime_tensors(engine)


def test_packed_weights_are_refused() -> None:
    engine = Engine(1.0)
    engine.head.cpu_linear = None
    engine.head.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    with pytest.raises(th.InvalidArgument, match="layer 'head' keeps its weights in a packed form"):
        runtime_tensors(engine)


@pytest.mark.parametrize("mode", ["staged", "in_place"])
def test_from_engine_to_engine(server: th.ReferenceServer, mode: th.Mode) -> None:
    first, second = Engine(1.0), Engine(2.0)
    shown = ShownWeights(lambda memory: th.Publisher(server, "m.runtime", "a", **memory))
    taken = TakenWeights(lambda memory: th.Subscriber(server, "m.runtime", "b", mode=mode, **memory))
    shown.show(first, 1)
    taken.take(second, 1, 20)
    assert second.values() == {1.0}
    shown.hide()
    for tensor in runtime_tensors(first).values():
        tensor.fill_(3.0)
    shown.show(first, 2)
    taken.take(second, 2, 20)
    assert second.values() == {3.0}
    taken.close()
    shown.close()


def test_other_memory_is_another_worker(server: th.ReferenceServer) -> None:
    """An engine may give a weight other memory when it processes what was loaded."""
    engine = Engine(1.0)
    made: list[Any] = []

    def make(memory: Any) -> th.Publisher:
        made.append(th.Publisher(server, "m.runtime", "a", **memory))
        return made[-1]

    shown = ShownWeights(make)
    shown.show(engine, 1)
    shown.hide()
    shown.show(engine, 2)
    assert len(made) == 1
    shown.hide()
    engine.fused = torch.nn.Parameter(torch.full((12, 8), 4.0).t(), requires_grad=False)
    shown.show(engine, 3)
    assert len(made) == 2
    shown.close()


def test_engines_that_differ_are_told_the_name(server: th.ReferenceServer) -> None:
    other = Engine(2.0)
    other.fused = torch.nn.Parameter(torch.zeros(12, 9).t(), requires_grad=False)
    shown = ShownWeights(lambda memory: th.Publisher(server, "m.runtime", "a", **memory))
    taken = TakenWeights(lambda memory: th.Subscriber(server, "m.runtime", "b", **memory))
    shown.show(Engine(1.0), 1)
    with pytest.raises(th.LayoutMismatch, match="fused"):
        taken.take(other, 1, 20)
    taken.close()
    shown.close()
