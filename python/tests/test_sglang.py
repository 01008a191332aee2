"""SGLang's custom weight loader, called as SGLang 0.5.23 calls it: `fn(model, named_tensors)` in every rank."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import tensorhub as th  # noqa: E402
from tensorhub.integrations.sglang import load, request  # noqa: E402
from tensorhub.torch import ArenaPublisher  # noqa: E402


class Model:
    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.weights = {name: tensor.clone() for name, tensor in weights}


def test_a_model_loads_what_the_request_names(server: th.ReferenceServer) -> None:
    arena, model = ArenaPublisher(server, "policy", "trainer"), Model()
    for version in (1, 2):
        source = {"a": torch.full((3, 5), float(version)), "b": torch.ones(2, dtype=torch.bfloat16) * version}
        for name, tensor in source.items():
            arena.put(name, tensor)
        arena.commit(version)
        load(model, request(server.address, "policy", version))
        assert list(model.weights) == ["a", "b"]
        assert all(torch.equal(model.weights[name], tensor) for name, tensor in source.items())
    with pytest.raises(th.TimedOut):
        load(model, request(server.address, "policy", 9, timeout=0.2))
    assert model.weights["a"][0, 0] == 2
    arena.close()


@pytest.mark.parametrize("given", [[], [("w", torch.zeros(3))], [("tensorhub", torch.zeros(5000, dtype=torch.uint8))]])
def test_anything_else_is_refused(given: list[tuple[str, torch.Tensor]]) -> None:
    with pytest.raises(th.InvalidArgument, match="it takes what"):
        load(Model(), given)
