"""The checkpoint engines for verl and NeMo-RL, driven as their managers drive them.

verl's own base class and registry are used where verl is installed, otherwise stand-ins with the recorded signatures;
NeMo-RL is in no package index, and always a stand-in.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import tensorhub as th  # noqa: E402


class VerlCheckpointEngine(ABC):
    """verl 0.9.1, verl/checkpoint_engine/base.py."""

    wire_format = "named_tensors"

    @abstractmethod
    def prepare(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]: ...

    @abstractmethod
    def init_process_group(self, **kwargs: Any) -> None: ...

    @abstractmethod
    def finalize(self) -> None: ...

    @abstractmethod
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> Any: ...

    @abstractmethod
    async def receive_weights(self, global_steps: int | None = None) -> Any: ...


class NemoCheckpointEngine(ABC):
    """NeMo-RL of 2026-08-22, nemo_rl/utils/checkpoint_engines/base.py."""

    shard_expert_weights = False

    @abstractmethod
    def prepare(self) -> Any: ...

    @abstractmethod
    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None: ...

    @abstractmethod
    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None: ...

    @abstractmethod
    def finalize(self) -> None: ...

    @abstractmethod
    async def send_weights(self, weights: Any) -> None: ...

    @abstractmethod
    def receive_weight_batches(self) -> Any: ...


class VerlRegistry:
    """Of verl 0.9.1."""

    registered: ClassVar[dict[str, type]] = {}

    @staticmethod
    def register(backend: str) -> Any:
        def wrapper(cls: type) -> type:
            VerlRegistry.registered[backend] = cls
            return cls

        return wrapper


def adapter(monkeypatch: pytest.MonkeyPatch, name: str, base: str, **stands_in: Any) -> Any:
    """The adapter's class, over the project's own base class if there is one."""
    try:
        importlib.import_module(base)
    except ImportError:
        parts = base.split(".")
        for i in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        for each, value in stands_in.items():
            setattr(sys.modules[base], each, value)
    sys.modules.pop(f"tensorhub.integrations.{name}", None)
    return importlib.import_module(f"tensorhub.integrations.{name}").TensorHubCheckpointEngine


def tensors(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {f"layers.{i}.weight": torch.randn(64, 33).to(torch.bfloat16) for i in range(5)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def server() -> Iterator[th.ReferenceServer]:
    """One that does not wait long for the workers of an earlier one before it says that it knows no version."""
    with th.ReferenceServer(recovery_grace=0.1) as made:
        yield made


@pytest.fixture(params=[1, 2])
def kwargs(server: th.ReferenceServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"server": server.address, "timeout": 20.0, "senders": request.param}


def test_verl(monkeypatch: pytest.MonkeyPatch, kwargs: dict[str, Any]) -> None:
    base = "verl.checkpoint_engine.base"
    engine = adapter(
        monkeypatch, "verl", base, CheckpointEngine=VerlCheckpointEngine, CheckpointEngineRegistry=VerlRegistry
    )
    assert not inspect.isabstract(engine)
    actors = [engine(bucket_size=1 << 20, is_master=rank == 0, replica="trainer", **kwargs) for rank in range(2)]
    rollouts = [engine(bucket_size=1 << 20, replica=f"rollout-{rank}", **kwargs) for rank in range(2)]

    async def update(source: dict[str, torch.Tensor], global_steps: int | None) -> list[dict[str, torch.Tensor]]:
        metadata = [each.prepare() for each in actors + rollouts]
        actor_kwargs, rollout_kwargs = engine.build_topology(len(actors), len(rollouts), metadata)
        for group, given in ((actors, actor_kwargs), (rollouts, rollout_kwargs)):
            assert all(len(each) == len(group) for each in given.values())
            for rank, each in enumerate(group):
                each.init_process_group(**{name: values[rank] for name, values in given.items()})

        async def receive(each: Any) -> dict[str, torch.Tensor]:
            return {name: tensor async for name, tensor in each.receive_weights(global_steps=global_steps)}

        receiving = [asyncio.create_task(receive(each)) for each in rollouts]
        await asyncio.sleep(0.05)  # they may begin first
        for each in reversed(actors):
            await each.send_weights(iter(source.items()), global_steps=global_steps)
        received = list(await asyncio.gather(*receiving))
        for each in actors + rollouts:
            each.finalize()
        return received

    for step in (0, 1, 2):
        source = tensors(step)
        assert all(same(each, source) for each in asyncio.run(update(source, step)))
    rollouts.append(engine(bucket_size=1 << 20, replica="rollout-late", **kwargs))  # verl's add_replicas
    for step in (None, 4):
        source = tensors(7)
        assert all(same(each, source) for each in asyncio.run(update(source, step)))
    others = rollouts  # that hold version 5; the job begins again at an earlier step
    rollouts = [engine(bucket_size=1 << 20, replica="rollout-new", **kwargs)]
    actors = [engine(bucket_size=1 << 20, is_master=rank == 0, replica="trainer", **kwargs) for rank in range(2)]
    for step in (2, 3, 9):
        source = tensors(10 + step)
        assert all(same(each, source) for each in asyncio.run(update(source, step)))
    with th.ServerClient(kwargs["server"]) as client:
        assert client.models("policy")[0].latest == 10
    assert [each.prepare() for each in others] == [{"version": 6}] * 3


def test_a_worker_of_verl_that_others_are_ahead_of_asks_though_it_is_no_master(
    monkeypatch: pytest.MonkeyPatch, server: th.ReferenceServer
) -> None:
    engine = adapter(
        monkeypatch,
        "verl",
        "verl.checkpoint_engine.base",
        CheckpointEngine=VerlCheckpointEngine,
        CheckpointEngineRegistry=VerlRegistry,
    )
    worker = engine(bucket_size=1, server=server.address)
    with th.Publisher(server, "policy", "came-back") as other:
        other.add("w", torch.ones(4))
        other.publish(7)
        worker.init_process_group(3)
        with pytest.raises(th.VersionConflict):
            asyncio.run(worker.send_weights(iter([("w", torch.ones(4))])))
        assert worker.prepare() == {"version": 8}


def test_nemo_rl(monkeypatch: pytest.MonkeyPatch, kwargs: dict[str, Any]) -> None:
    engine = adapter(
        monkeypatch, "nemo_rl", "nemo_rl.utils.checkpoint_engines.base", CheckpointEngine=NemoCheckpointEngine
    )
    assert not inspect.isabstract(engine)
    policies = [engine(bucket_size=10_000, replica="trainer", **kwargs) for _ in range(2)]
    rollouts = [engine(bucket_size=10_000, replica=f"rollout-{rank}", **kwargs) for rank in range(2)]

    async def update(source: dict[str, torch.Tensor]) -> list[list[list[tuple[str, torch.Tensor]]]]:
        metadata = [each.prepare() for each in policies + rollouts]
        worlds = {"train_world_size": 2, "rollout_world_size": 2, "metadata": metadata}
        for rank, each in enumerate(policies):
            each.init_policy_process_group(worker_rank=rank, **worlds)
        for rank, each in enumerate(rollouts):
            each.init_rollout_process_group(rollout_rank=rank, **worlds)

        async def receive(each: Any) -> list[list[tuple[str, torch.Tensor]]]:
            return [batch async for batch in each.receive_weight_batches()]

        receiving = [asyncio.create_task(receive(each)) for each in rollouts]
        for each in policies:
            await each.send_weights(iter(source.items()))
        received = list(await asyncio.gather(*receiving))
        for each in policies + rollouts:
            each.finalize()
        return received

    for seed in (1, 2):
        source = tensors(seed)
        for batches in asyncio.run(update(source)):
            assert [len(batch) for batch in batches] == [2, 2, 1]  # 4,224 bytes each
            received = dict([each for batch in batches for each in batch])
            assert same(received, source)
            if kwargs["senders"] == 1:
                assert list(received) == list(source)
    others = rollouts  # that hold version 2; the job is started again
    policies = [engine(bucket_size=10_000, replica="trainer", **kwargs) for _ in range(2)]
    rollouts = [engine(bucket_size=10_000, replica="rollout-new", **kwargs)]
    source = tensors(3)
    for batches in asyncio.run(update(source)):
        assert same(dict([each for batch in batches for each in batch]), source)
    assert [each.prepare() for each in policies + rollouts + others] == [{"version": 4}] * 3 + [{"version": 3}] * 2


def test_a_server_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = adapter(
        monkeypatch, "nemo_rl", "nemo_rl.utils.checkpoint_engines.base", CheckpointEngine=NemoCheckpointEngine
    )
    with pytest.raises(th.InvalidArgument, match="no server"):
        engine(bucket_size=1)
