"""SGLang's custom weight loader, called as SGLang 0.5.23 calls it: `fn(model, named_tensors)` in every rank.

The plugin is tested over what is recorded of SGLang's registry of hooks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import tensorhub as th  # noqa: E402
from tensorhub.integrations import sglang  # noqa: E402
from tensorhub.integrations.sglang import load, register, request  # noqa: E402
from tensorhub.torch import ArenaPublisher, Receiver  # noqa: E402


class Model:
    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.weights = {name: tensor.clone() for name, tensor in weights}


def test_a_model_loads_what_the_request_names(server: th.ReferenceServer) -> None:
    arena, model = ArenaPublisher(server, "policy", "trainer-0"), Model()
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


@pytest.mark.parametrize("once_per_machine", [True, False])
def test_ranks_of_a_machine_share_what_they_receive(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch, once_per_machine: bool
) -> None:
    arena = ArenaPublisher(server, "policy", "trainer-0")
    ranks: list[dict[Any, Receiver]] = [{}, {}]  # one process stands in for two
    for version in (1, 2, 3):
        arena.put("a", torch.full((3,), float(version)))
        arena.commit(version)
        for receivers in ranks if version == 1 else ranks[1:]:  # the first one stops, and delays nobody
            monkeypatch.setattr(sglang, "_receivers", receivers)
            model = Model()
            load(model, request(server.address, "policy", version, 20.0, once_per_machine=once_per_machine))
            assert model.weights["a"].tolist() == [version] * 3
    with th.ServerClient(server) as client:
        names = {each.name.partition("@")[0] for each in client.models("policy")[0].replicas}
    rollouts = names - {"trainer-0"}
    assert len(rollouts) == (1 if once_per_machine else 2)
    for receivers in ranks:
        for each in receivers.values():
            each.close()
    arena.close()


@pytest.mark.parametrize(("machine", "share"), [("", False), ("all", True)])
def test_ranks_of_other_engines_share_by_a_name_only(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch, machine: str, share: bool
) -> None:
    made = MagicMock()
    made.return_value.tensors.return_value = []
    monkeypatch.setattr(sglang, "Receiver", made)
    for parent in (1001, 1001, 1002):  # of each rank
        monkeypatch.setattr(sglang, "_receivers", {})
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        load(Model(), request(server.address, "policy", 1, machine=machine))
    first, second, other = (each.kwargs["machine"] for each in made.call_args_list)
    assert first == second
    assert (other == first) == share


def test_a_request_of_an_earlier_release_is_one_of_ranks_that_share() -> None:
    text = b'{"server": "tcp://127.0.0.1:9", "model": "m", "version": 7, "timeout": 1}'
    assert sglang._read(text) == (("tcp://127.0.0.1:9", "m", True, ""), 7, 1.0)


@pytest.mark.parametrize("given", [[], [("w", torch.zeros(3))], [("tensorhub", torch.zeros(5000, dtype=torch.uint8))]])
def test_anything_else_is_refused(given: list[tuple[str, torch.Tensor]]) -> None:
    with pytest.raises(th.InvalidArgument, match="it takes what"):
        load(Model(), given)


@pytest.mark.parametrize(
    "text",
    [
        b"no json",
        b"\xff\xfe",
        b"[]",
        b"[" * 4000,
        b'{"server": "tcp://127.0.0.1:9", "model": "m", "once_per_machine": true, "version": Infinity, "timeout": 1}',
        b'{"server": "tcp://127.0.0.1:9", "model": "m", "once_per_machine": true, "version": 1}',
        b'{"server": "tcp://127.0.0.1:9", "model": "m", "once_per_machine": true, "version": "one", "timeout": 1}',
        b'{"server": "tcp://127.0.0.1:9", "model": "m", "once_per_machine": true, "version": null, "timeout": 1}',
    ],
    ids=lambda text: text.decode(errors="replace")[:80],
)
def test_a_request_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(th.InvalidArgument, match=r"the request of the weight loader cannot be read \("):
        load(Model(), [("tensorhub", torch.tensor(list(text), dtype=torch.uint8))])


class HookType(Enum):
    BEFORE = "before"
    AROUND = "around"


class HookRegistry:
    """What is recorded of SGLang 0.5.23's: a hook before a function may change its arguments, one around calls it."""

    hooks: dict[str, Callable[..., Any]]

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        assert hook_type is (HookType.BEFORE if target.endswith("__init__") else HookType.AROUND)
        cls.hooks[target] = hook


def test_the_plugin_makes_the_loader_known(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry"]
    modules = [ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    modules[-1].__dict__.update(HookRegistry=HookRegistry, HookType=HookType)
    HookRegistry.hooks = {}
    register()
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    assert list(HookRegistry.hooks) == [f"{updater}.__init__", f"{updater}.update_weights_from_tensor"]
    hook = HookRegistry.hooks[f"{updater}.__init__"]
    loader = "tensorhub.integrations.sglang.load"
    for given in ([], None, ["theirs.load"], [loader]):
        args, others = hook("self", tp_rank=1, custom_weight_loaders=given)
        assert args == ("self",)
        assert others == {
            "tp_rank": 1,
            "custom_weight_loaders": [*(each for each in given or [] if each != loader), loader],
        }
    answering = HookRegistry.hooks[f"{updater}.update_weights_from_tensor"]
    assert answering(lambda *given, **_: (True, given), "self", [], load_format=loader) == (True, ("self", []))

    def fails(*_given: Any, **_others: Any) -> None:
        raise th.TimedOut("version 9 did not come")

    assert answering(fails, "self", [], load_format=loader) == (False, str(th.TimedOut("version 9 did not come")))
