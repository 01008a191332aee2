"""What the checkpoint engines have in common, also where torch is not installed: of it only `from_dlpack` is used."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import socket
import sys
import time
import types
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import tensorhub as th


@pytest.fixture
def hub_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if importlib.util.find_spec("torch") is None:
        stand_in = types.ModuleType("torch")
        dlpack = types.SimpleNamespace(from_dlpack=np.from_dlpack)
        stand_in.utils = types.SimpleNamespace(dlpack=dlpack)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch", stand_in)
    names = ("tensorhub.torch", "tensorhub.integrations.checkpoint_engine")
    for each in names:
        monkeypatch.delitem(sys.modules, each, raising=False)
    yield importlib.import_module(names[1]).HubWeights
    for each in names:
        sys.modules.pop(each, None)  # the next test may have another torch


class Arena(th.ArenaPublisher):
    """Of two tensors of numpy, where tensorhub.torch's learns them from what is put."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for name in "wv":
            self.declare(name, [4], "f64")


@pytest.mark.parametrize("waits_for", ["model", "version"])
def test_a_cancelled_receive_ends_and_the_next_one_works(
    server: th.ReferenceServer, hub_weights: Any, waits_for: str
) -> None:
    source = np.arange(100_000, dtype=np.float32)
    hub = hub_weights(server=server.address, replica="rollout-0", timeout=20.0)
    trainer = th.Publisher(server, "policy", "trainer-0")
    trainer.add("w", source)

    async def receive(version: int) -> dict[str, np.ndarray]:
        return {name: np.array(tensor) async for name, tensor in hub.receive(version)}

    async def cancel() -> None:
        if waits_for == "version":
            trainer.publish(1)
            await receive(1)
        receiving = asyncio.create_task(receive(2))
        await asyncio.sleep(0.5)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving

    started = time.monotonic()
    asyncio.run(cancel())  # waits for the threads of its pool
    assert time.monotonic() - started < 10
    trainer.unpublish()
    source += 1
    trainer.publish(2)
    assert np.array_equal(asyncio.run(receive(2))["w"], source)
    assert hub.version == 2
    hub.close()
    trainer.close()


@pytest.mark.parametrize("once_per_machine", [True, False])
def test_two_processes_of_one_host_and_number_do_not_replace_each_other(
    server: th.ReferenceServer, hub_weights: Any, once_per_machine: bool
) -> None:
    """As in two containers, which share a host's name and each count their processes from 1."""
    trainer = th.Publisher(server, "policy", "trainer-0")
    trainer.add("w", np.arange(1000, dtype=np.float32))
    both = [hub_weights(server=server.address, timeout=20.0, once_per_machine=once_per_machine) for _ in range(2)]

    async def receive(hub: Any, version: int) -> list[str]:
        return [name async for name, _ in hub.receive(version)]

    for version in (1, 2, 3, 4):  # into either memory of a receiver, twice
        with trainer.published(version):
            assert [asyncio.run(receive(each, version)) for each in both] == [["w"], ["w"]]
    names = {each.name.rpartition("@")[0] for each in trainer.models("policy")[0].replicas} - {""}
    assert len(names) == (1 if once_per_machine else 2)
    assert all(each.startswith(f"rollout-{socket.gethostname()}-{os.getpid()}-") for each in names)
    for each in both:
        each.close()
    trainer.close()


def test_a_rollout_that_has_stopped_half_way_does_not_delay_the_others(
    server: th.ReferenceServer, hub_weights: Any
) -> None:
    weights = np.arange(1000, dtype=np.float32)
    trainer = th.Publisher(server, "policy", "trainer-0")
    trainer.add("w", weights)
    stopped, other = (hub_weights(server=server.address, timeout=20.0) for _ in range(2))

    async def stops() -> None:
        receiving = stopped.receive(1)
        async for _ in receiving:
            break
        await receiving.aclose()

    async def receive(version: int) -> list[tuple[str, np.ndarray]]:
        return [(name, np.array(tensor)) async for name, tensor in other.receive(version)]

    for version in (1, 2, 3):
        with trainer.published(version):
            if version == 1:
                asyncio.run(stops())
            ((_, got),) = asyncio.run(receive(version))
            assert (got == weights).all()
        weights += 1
    for each in (stopped, other, trainer):
        each.close()


@pytest.mark.parametrize(
    ("options", "shares"),
    [({}, True), ({"once_per_machine": False}, False), ({"memory": "cuda"}, False), ({"memory": "host"}, True)],
)
def test_rollouts_of_a_machine_share_what_can_be_shared(
    hub_weights: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], shares: bool
) -> None:
    made = MagicMock()
    made.return_value.receive.side_effect = th.TimedOut("no version came")
    monkeypatch.setattr(sys.modules[hub_weights.__module__], "Receiver", made)

    async def receive(**fields: str) -> None:
        async for _ in hub_weights(server="tcp://10.0.0.1:5570", **fields, **options).receive(1):
            pass

    mine, own = {"replica": "rollout-1"}, {"machine": "all"}
    for fields in ({}, {}, {"model": "other"}, mine, own, mine | own):
        with pytest.raises(th.TimedOut):
            asyncio.run(receive(**fields))
    first, second, *others, named, also_named = (each.kwargs["machine"] for each in made.call_args_list)
    assert (first, named) == (second, also_named)
    assert len({first, named, *others} - {""}) == (4 if shares else 0)


def test_who_sends_is_a_trainer_by_its_name(hub_weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the README's list of keys."""
    arena = MagicMock()
    monkeypatch.setattr(sys.modules[hub_weights.__module__], "ArenaPublisher", arena)
    hub_weights(server="tcp://10.0.0.1:5570").send([], 1, rank=0, ranks=1)
    _, model, replica = arena.call_args.args
    assert model == "policy"
    assert replica.startswith(f"trainer-{socket.gethostname()}-{os.getpid()}-")


def test_a_sender_that_was_evicted_joins_anew(
    server: th.ReferenceServer, hub_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[hub_weights.__module__], "ArenaPublisher", Arena)
    hub = hub_weights(server=server.address, replica="trainer-0")
    weights = {"w": np.ones(4), "v": np.ones(4)}
    hub.send(weights.items(), 1, rank=0, ranks=1)
    with th.ServerClient(server) as client:
        client.evict("policy", "trainer-0")
        with pytest.raises(th.Replaced):
            hub.send(weights.items(), 2, rank=0, ranks=1)
        hub.send(weights.items(), 2, rank=0, ranks=1)
        assert client.models("policy")[0].available == (2,)
    hub.close()


def test_weights_that_cannot_be_gathered_leave_nothing_begun(
    server: th.ReferenceServer, hub_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[hub_weights.__module__], "ArenaPublisher", Arena)
    hub = hub_weights(server=server.address)
    weights = {"w": np.ones(4), "v": np.ones(4)}
    hub.send(weights.items(), 1, rank=0, ranks=1)

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.ones(4)
        raise RuntimeError("a rank has failed")

    with pytest.raises(RuntimeError, match="a rank has failed"):
        hub.send(gathered(), 2, rank=0, ranks=1)
    with pytest.raises(th.InvalidArgument, match="2 tensors were not put"):  # it was forgotten, and is read no more
        hub._arena.made().commit(2)
    assert hub.version == 1
    hub.send(weights.items(), 2, rank=0, ranks=1)
    assert hub.version == 2
    hub.close()


def test_a_rank_that_holds_no_weights_gathers_them(hub_weights: Any) -> None:
    gathered = iter([("w", None), ("v", None)])
    hub = hub_weights(server="tcp://10.0.0.1:5570")
    hub.send(gathered, 1, rank=1, ranks=2)
    assert list(gathered) == []
    assert hub.version == 1
