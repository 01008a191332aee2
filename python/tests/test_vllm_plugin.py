"""The plugin for vLLM, against the recorded behaviour of its registries (vLLM 0.32): a name is taken once."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import tensorhub as th
from tensorhub.integrations import vllm as plugin


class Registry:
    _registry: dict[str, object]

    @classmethod
    def register_engine(cls, name: str, module: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = (module, class_name)


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    names = ["vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.distributed.weight_transfer.factory"]
    modules = [ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    modules[2].factory = modules[3]
    for half in ("WeightTransferEngineFactory", "WeightTransferTrainerFactory"):
        setattr(modules[3], half, type(half, (Registry,), {"_registry": {}}))
    monkeypatch.setattr(plugin, "_registered", set())
    return modules[3]


def test_both_halves_are_registered_and_it_may_run_twice(factory: ModuleType) -> None:
    plugin.register()
    plugin.register()
    engine = factory.WeightTransferEngineFactory._registry["tensorhub"]
    assert engine == ("tensorhub.integrations.vllm.engine", "TensorHubWeightTransferEngine")
    trainer = factory.WeightTransferTrainerFactory._registry["tensorhub"]
    assert trainer == ("tensorhub.integrations.vllm.trainer", "TensorHubTrainerWeightTransferEngine")


def test_another_plugin_of_the_name_is_refused(factory: ModuleType) -> None:
    factory.WeightTransferEngineFactory.register_engine("tensorhub", "theirs", "Theirs")
    with pytest.raises(th.InvalidArgument, match=r"another plugin .* 'tensorhub' .*: uninstall it"):
        plugin.register()
    assert factory.WeightTransferEngineFactory._registry["tensorhub"] == ("theirs", "Theirs")


def test_a_vllm_without_weight_transfer_starts_without_it(factory: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    del factory.WeightTransferTrainerFactory
    plugin.register()
    assert "tensorhub" in factory.WeightTransferEngineFactory._registry
    monkeypatch.delitem(sys.modules, "vllm.distributed.weight_transfer.factory")
    monkeypatch.setattr(sys.modules["vllm.distributed.weight_transfer"], "__path__", [], raising=False)
    plugin.register()
