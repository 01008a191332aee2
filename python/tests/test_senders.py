"""The senders of the integrations beside a server, also where torch and vLLM are not installed: stand-ins will do."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest

import tensorhub as th
from tensorhub.integrations.sending import Share, gathered_to_the_end

VLLM = "vllm.distributed.weight_transfer.base"
ADAPTERS = {
    "hub_weights": "tensorhub.integrations.checkpoint_engine",
    "trl": "tensorhub.integrations.trl",
    "vllm": "tensorhub.integrations.vllm.trainer",
}


class Arena(th.ArenaPublisher):
    """Of two tensors of numpy, where tensorhub.torch's learns them from what is put, or from a layout.

    Of two senders each has one.
    """

    made: ClassVar[list[Arena]] = []

    def __init__(self, server: Any, model: str, replica: str, _layout: Any = None, **options: Any) -> None:
        super().__init__(server, model, replica, **options)
        self.made.append(self)
        index, count = options.get("shard", (0, 1))
        for name in "wv"[index::count]:
            self.declare(name, [4], "f64")


@dataclass
class TrainerInitInfo:
    """Of vLLM."""

    rank: int = 0

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class TrainerEngine:
    """Of vLLM."""

    def __init__(self, *, client: Any, source: Any, is_sender: bool) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender


@pytest.fixture
def server() -> Iterator[th.ReferenceServer]:
    """One that does not wait long for the workers of an earlier one before it says that it knows no version."""
    with th.ReferenceServer(recovery_grace=0.1) as made:
        yield made


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module over stand-ins for what is not installed."""
    if importlib.util.find_spec("torch") is None:
        stand_in = ModuleType("torch")
        stand_in.utils = SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=np.from_dlpack))  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch", stand_in)
    parts = VLLM.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    monkeypatch.setattr(sys.modules[VLLM], "TrainerInitInfo", TrainerInitInfo, raising=False)
    monkeypatch.setattr(sys.modules[VLLM], "TrainerWeightTransferEngine", TrainerEngine, raising=False)
    fresh = ["tensorhub.torch", *ADAPTERS.values()]
    for each in fresh:
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setattr(Arena, "made", [])
    yield importlib.import_module
    for arena in Arena.made:
        arena.close()
    for each in fresh:
        sys.modules.pop(each, None)  # the next test may have the real ones


def sender_of(
    module: Any,
    name: str,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    rank: int = 0,
    senders: int = 1,
    **options: Any,
) -> tuple[Any, Callable[..., None]]:
    """One that has published nothing, and how it sends."""
    monkeypatch.setattr(module, "ArenaPublisher", Arena)
    if name == "hub_weights":
        hub = module.HubWeights(server=server, replica="trainer-0", senders=senders, **options)

        def number() -> int:
            """Of several senders one asks for all; in these tests the server knows of none, or all have sent."""
            return int(hub.next_version() if senders == 1 else hub.version + 1)

        return hub, lambda weights: hub.send(weights, number(), rank=rank, ranks=3)
    if name == "trl":
        transfer = module.WeightTransfer("http://127.0.0.1:9", server=server, **options)
        monkeypatch.setattr(transfer, "_ask", lambda *_: {})
        return transfer, transfer.send_weights
    fields = {each: options.pop(each) for each in ("overlap", "version") if each in options}
    info = module.TrainerInfo(rank=rank, server=server, model="policy", senders=senders, options=options, **fields)
    source = MagicMock()
    source.metadata.return_value = [SimpleNamespace(name=each, dtype=np.dtype("f8"), shape=(4,)) for each in "wv"]
    engine = module.TensorHubTrainerWeightTransferEngine.trainer_init(info, client=MagicMock(), source=source)

    def send(weights: Iterable[Any]) -> None:
        source.__iter__.return_value = iter(weights)
        engine.send_weights()

    return engine, send


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_sender_that_was_evicted_joins_anew(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    weights = {"w": np.ones(4), "v": np.ones(4)}
    send(weights.items())
    with th.ServerClient(server) as client:
        client.evict("policy", "trainer-0")
        with pytest.raises(th.Replaced):
            send(weights.items())
        assert [each.is_closed for each in Arena.made] == [True]
        send(weights.items())
        assert client.models("policy")[0].available == (sender.version,)


def both_of(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(4, value, float), "v": np.full(4, value, float)}


@pytest.fixture
def rollout(server: th.ReferenceServer) -> Iterator[Callable[[int], float]]:
    """Receives a version, which it goes on holding, and tells what is in it."""
    with th.Subscriber(server, "policy", "rollout-0") as made:
        tensors = both_of(0)
        made.add_all(tensors)

        def receive(version: int) -> float:
            made.update(version, timeout=20)
            assert (tensors["w"] == tensors["v"]).all()
            return float(tensors["w"][0])

        yield receive


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_trainer_that_is_started_again_goes_on_after_the_latest_version(
    server: th.ReferenceServer,
    adapter: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    rollout: Callable[[int], float],
    name: str,
) -> None:
    _, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    for value in (10, 20):
        send(both_of(value).items())
    assert rollout(2) == 20
    Arena.made[0].close()
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    for value in (30, 40):
        send(both_of(value).items())
        assert rollout(sender.version) == value
    assert sender.version == 4


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_sender_goes_back_to_a_checkpoint(
    server: th.ReferenceServer,
    adapter: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    rollout: Callable[[int], float],
    name: str,
    is_new: bool,
) -> None:
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    for value in (10, 20, 30):
        send(both_of(value).items())
    assert rollout(3) == 30
    if is_new:
        Arena.made[0].close()
        sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    sender.roll_back_to(1)
    with th.ServerClient(server) as client:
        assert client.models("policy")[0].latest == 1
    send(both_of(40).items())
    assert (sender.version, rollout(2)) == (2, 40)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_sender_that_goes_back_to_nothing_begins_with_the_first_version(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    for value in (10, 20):
        send(both_of(value).items())
    sender.roll_back_to(0)
    send(both_of(30).items())
    assert sender.version == 1


def test_a_sender_that_was_evicted_goes_back_to_a_checkpoint(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, send = sender_of(adapter(ADAPTERS["trl"]), "trl", server.address, monkeypatch)
    for value in (10, 20):
        send(both_of(value).items())
    with monkeypatch.context() as evicted:
        evicted.setattr(Arena, "unpublish", MagicMock(side_effect=th.Replaced("evicted")))
        sender.roll_back_to(1)
    send(both_of(30).items())
    assert sender.version == 2


def test_there_may_be_nothing_to_withdraw(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, send = sender_of(adapter(ADAPTERS["trl"]), "trl", server.address, monkeypatch)
    sender.roll_back_to(6)
    send(both_of(10).items())
    assert sender.version == 7


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_key_that_may_not_publish_cannot_go_back(
    adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    theirs, ours = th.make_keys(), th.make_keys()
    rules = {ours[0]: "lookers may=read,look"}
    with th.ReferenceServer(public_key=theirs[0], secret_key=theirs[1], allowed=rules, recovery_grace=0.1) as server:
        security = th.Security(theirs[0], *ours)
        sender, _ = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch, security=security)
        with pytest.raises(th.Refused):
            sender.roll_back_to(1)


def test_a_rollout_that_may_not_publish_asks_for_the_number_of_several_senders(
    adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in NeMo-RL, where all workers ask before one of them begins. An earlier trainer has not finished its first."""
    theirs, ours, others = th.make_keys(), th.make_keys(), th.make_keys()
    rules = {ours[0]: "lookers may=read,look", others[0]: "trainer"}
    with th.ReferenceServer(public_key=theirs[0], secret_key=theirs[1], allowed=rules, recovery_grace=0.1) as server:
        security, module = th.Security(theirs[0], *ours), adapter(ADAPTERS["hub_weights"])
        hub, _ = sender_of(module, "hub_weights", server.address, monkeypatch, senders=2, security=security)
        for shard in ((0, 2), (1, 2)):
            Arena(server, "policy", "trainer-0", shard=shard, security=th.Security(theirs[0], *others)).begin(1)
        assert hub.next_version() == 1


def test_a_server_that_does_not_answer_is_an_error_in_time(
    adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, _ = sender_of(adapter(ADAPTERS["trl"]), "trl", "tcp://127.0.0.1:9", monkeypatch)
    with pytest.raises(th.Disconnected):
        sender.roll_back_to(1, timeout=0.2)
    assert sender.version == 0


def test_a_version_that_an_earlier_trainer_has_not_finished_is_no_obstacle(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps were others: it had begun the ninth."""
    _, send = sender_of(adapter(ADAPTERS["hub_weights"]), "hub_weights", server.address, monkeypatch)
    send(both_of(10).items())
    with th.Subscriber(server, "policy", "rollout-0") as rollout:
        rollout.add_all(both_of(0))
        rollout.update(1)
        Arena.made[0].begin(9)
        Arena.made[0].close()
        hub, _ = sender_of(adapter(ADAPTERS["hub_weights"]), "hub_weights", server.address, monkeypatch)
        hub.send(both_of(20).items(), 8, rank=0, ranks=1)
        assert rollout.update(8).version == 8
        with pytest.raises(th.VersionConflict):
            hub.send(both_of(30).items(), 7, rank=0, ranks=1)
        assert rollout.models("policy")[0].latest == 8


def test_a_version_that_others_have_is_not_withdrawn(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainers by mistake, say."""
    first, send = sender_of(adapter(ADAPTERS["hub_weights"]), "hub_weights", server.address, monkeypatch)
    for value in (10, 20):
        send(both_of(value).items())
    second = adapter(ADAPTERS["hub_weights"]).HubWeights(server=server.address, replica="trainer-1")
    for version in (1, 2):
        with pytest.raises(th.VersionConflict):
            second.send(both_of(30).items(), version, rank=0, ranks=1)
    send(both_of(30).items())
    assert first.version == 3


def test_senders_share_the_bytes_of_a_version() -> None:
    """An embedding, and then equal layers."""
    sizes = [100, *[10] * 50]
    shares = [Share(rank, 3) for rank in range(3)]
    takers = [[share.takes(size) for share in shares] for size in sizes]
    assert all(sum(each) == 1 for each in takers)
    sums = [sum(size for size, taken in zip(sizes, takers, strict=True) if taken[rank]) for rank in range(3)]
    assert sums == [200, 200, 200]


SHARING = ["hub_weights", "vllm"]


@pytest.mark.parametrize("name", SHARING)
def test_two_senders_put_a_part_of_a_version_each(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = adapter(ADAPTERS[name])
    ranks = [sender_of(module, name, server.address, monkeypatch, rank, 2) for rank in range(3)]
    subscribers = [th.Subscriber(server, "policy", "rollout-0", shard=(i, 2)) for i in range(2)]
    received = [{each: np.zeros(4)} for each in "wv"]
    for subscriber, tensors in zip(subscribers, received, strict=True):
        subscriber.add_all(tensors)
    for version in (1, 2):
        weights = {"w": np.full(4, 10.0 * version), "v": np.full(4, 10.0 * version + 1)}
        for _, send in reversed(ranks):
            gathering = iter(weights.items())
            send(gathering)
            assert list(gathering) == []
        running = [each.update_async(version) for each in subscribers]
        for each in running:
            each.wait(20)
        assert (received[0]["w"] == weights["w"]).all()
        assert (received[1]["v"] == weights["v"]).all()
    assert [each.version for each, _ in ranks] == [2, 2, 2]
    if name == "vllm":
        assert [each.client.update_weights.call_count for each, _ in ranks] == [2, 0, 0]
        assert [each.client.init_weight_transfer_engine.call_count for each, _ in ranks] == [1, 0, 0]
    for subscriber in subscribers:
        subscriber.close()


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_version_of_which_one_sender_has_failed_is_never_offered(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str, failing: int
) -> None:
    module = adapter(ADAPTERS[name])
    ranks = [sender_of(module, name, server.address, monkeypatch, rank, 2) for rank in range(2)]

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.ones(4)
        yield "v", np.ones(4)
        raise RuntimeError("a rank has failed")

    weights = {"w": np.ones(4), "v": np.ones(4)}
    with pytest.raises(RuntimeError, match="a rank has failed"):
        ranks[failing][1](gathered())
    ranks[1 - failing][1](weights.items())
    with th.Subscriber(server, "policy", "rollout-0", shard=(1 - failing, 2)) as rollout:
        rollout.add("wv"[1 - failing], np.zeros(4))
        with pytest.raises((th.Unavailable, th.TimedOut, th.GroupFailed)):
            rollout.update(1, timeout=0.5)
        assert rollout.models("policy")[0].available == ()
        last = max(each.version for each, _ in ranks)
        for sender, send in ranks:
            sender.version = last  # the frameworks of HubWeights tell all workers
            send(weights.items())
        assert rollout.models("policy")[0].available == (last + 1,)


def next_number(name: str, ranks: list[tuple[Any, Any]]) -> None:
    """Frameworks of HubWeights have the master ask, and tell all workers; those of vLLM ask by themselves."""
    if name == "hub_weights":
        last = ranks[0][0].next_version() - 1
        for sender, _ in ranks:
            sender.version = last


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("left", [0, 1])
def test_senders_go_on_where_an_earlier_trainer_has_committed_a_part(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str, left: int
) -> None:
    """The rank that finds the part in its way sends last: what the other has committed must stay."""
    module = adapter(ADAPTERS[name])

    def started() -> list[tuple[Any, Callable[..., None]]]:
        ranks = [sender_of(module, name, server.address, monkeypatch, rank, 2) for rank in range(2)]
        next_number(name, ranks)
        return ranks

    received = [{each: np.zeros(4)} for each in "wv"]
    with (
        th.Subscriber(server, "policy", "rollout-0", shard=(0, 2)) as first,
        th.Subscriber(server, "policy", "rollout-0", shard=(1, 2)) as second,
    ):
        for subscriber, tensors in zip((first, second), received, strict=True):
            subscriber.add_all(tensors)

        def rollouts_get(version: int) -> list[float]:
            for each in [subscriber.update_async(version, timeout=20) for subscriber in (first, second)]:
                each.wait(20)
            return [float(received[0]["w"][3]), float(received[1]["v"][3])]

        ranks = started()
        for _, send in ranks:
            send(both_of(10).items())
        assert rollouts_get(1) == [10, 10]
        ranks[left][1](both_of(99).items())
        for arena in Arena.made:
            arena.close()
        ranks = started()
        for version in (2, 3):
            for rank in (1 - left, left):
                ranks[rank][1]({"w": np.full(4, 10.0 * version), "v": np.full(4, 10.0 * version + 1)}.items())
            assert rollouts_get(version) == [10 * version, 10 * version + 1]


def test_senders_of_vllm_get_the_same_number_though_rollouts_come_back_meanwhile(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = adapter(ADAPTERS["vllm"])
    ranks = [sender_of(module, "vllm", server.address, monkeypatch, 0, 2)]
    others = [Arena(server, "policy", "came-back", shard=(i, 2)) for i in range(2)]
    for name, other in zip("wv", others, strict=True):
        other.put(name, np.ones(4))
        other.commit(7)
    ranks.append(sender_of(module, "vllm", server.address, monkeypatch, 1, 2))
    for _, send in ranks:
        send(both_of(10).items())
    assert [each.version for each, _ in ranks] == [8, 8]
    assert others[0].models("policy")[0].available == (7, 8)


def send_together(ranks: list[tuple[Any, Any]], value: float, failing: int | None = None) -> list[th.Error | None]:
    """Each tensor is gathered by all ranks at once; what the sending of each has raised. One may fail at the end."""
    barrier = threading.Barrier(len(ranks))

    def gathered(rank: int) -> Iterator[tuple[str, np.ndarray]]:
        for each in both_of(value).items():
            barrier.wait(20)
            yield each
        if rank == failing:
            raise th.SystemFailed("a rank has failed")

    def sent(rank: int) -> th.Error | None:
        try:
            ranks[rank][1](gathered(rank))
        except th.Error as e:
            return e
        return None

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(sent, range(len(ranks))))


@pytest.mark.parametrize("name", SHARING)
def test_what_is_not_all_back_is_not_withdrawn(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a server that was started again: the list names no version, and one shard of a replica is there."""
    module = adapter(ADAPTERS[name])

    def come_back(shard: int) -> Arena:
        other = Arena(server, "policy", "came-back", shard=(shard, 2))
        other.put("wv"[shard], np.ones(4))
        other.commit(7)
        return other

    monkeypatch.setattr(th.ServerClient, "roll_back_to", MagicMock(side_effect=AssertionError))
    come_back(0)
    ranks = [sender_of(module, name, server.address, monkeypatch, rank, 2) for rank in range(2)]
    next_number(name, ranks)
    other = come_back(1)
    assert other.models("policy")[0].available == (7,)
    if name == "hub_weights":  # the frameworks have told its number before the others were back
        assert {type(each) for each in send_together(ranks, 10)} == {th.VersionConflict}
        next_number(name, ranks)
    assert send_together(ranks, 20) == [None, None]
    assert other.models("policy")[0].available == (7, 8)


def test_a_version_that_this_sender_has_sent_is_not_withdrawn(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the server's list names none."""
    hub, send = sender_of(adapter(ADAPTERS["hub_weights"]), "hub_weights", server.address, monkeypatch)
    with th.ServerClient(server) as client:
        for value in (10, 20, 30):
            send(both_of(value).items())
        told = [replace(each, latest=0, available=()) for each in client.models("policy")]
        with monkeypatch.context() as started_again:
            started_again.setattr(th.ServerClient, "models", lambda *_: told)
            with pytest.raises(th.VersionConflict):
                hub.send(both_of(40).items(), 2, rank=0, ranks=1)
        assert client.models("policy")[0].latest == 3


@pytest.mark.parametrize("begins", ["new", "at a number", "back at a checkpoint"])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("at", ["gathering", "commit"])
def test_senders_of_vllm_stay_together_when_one_has_failed(
    server: th.ReferenceServer,
    adapter: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    begins: str,
    failing: int,
    at: str,
) -> None:
    """Nothing is rolled back: a model can be only so often."""
    module = adapter(ADAPTERS["vllm"])
    options = {"version": 0} if begins == "at a number" else {}
    ranks = [sender_of(module, "vllm", server.address, monkeypatch, rank, 2, **options) for rank in range(2)]
    for value in (1, 2):
        assert send_together(ranks, value) == [None, None]
    if begins == "back at a checkpoint":
        for sender, _ in ranks:
            sender.roll_back_to(1)
        assert send_together(ranks, 2) == [None, None]
    monkeypatch.setattr(th.ServerClient, "roll_back_to", MagicMock(side_effect=AssertionError))
    with monkeypatch.context() as once:
        if at == "commit":
            broken = MagicMock(side_effect=th.GroupFailed("another shard has another version"))
            once.setattr(Arena.made[failing], "commit", broken)
        errors = send_together(ranks, 3, failing if at == "gathering" else None)
        assert [each is not None for each in errors] == [failing == 0, failing == 1]
    with th.ServerClient(server) as client:
        for version in (4, 5):
            assert send_together(ranks, version) == [None, None]
            assert [each.version for each, _ in ranks] == [version, version]
            assert client.models("policy")[0].available == (version,)


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_senders_of_vllm_do_not_go_below_the_number_that_they_were_given(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, is_rolled_back: bool
) -> None:
    """Though the server has never heard of it."""
    options = {} if is_rolled_back else {"version": 5}
    module = adapter(ADAPTERS["vllm"])
    ranks = [sender_of(module, "vllm", server.address, monkeypatch, rank, 2, **options) for rank in range(2)]
    if is_rolled_back:
        assert send_together(ranks, 1) == [None, None]
        for sender, _ in ranks:
            sender.roll_back_to(5)
    for version in (6, 7, 8):
        assert send_together(ranks, version, failing=1) != [None, None]
        assert [each.version for each, _ in ranks] == [version, version]
    assert send_together(ranks, 9) == [None, None]
    with th.ServerClient(server) as client:
        assert client.models("policy")[0].available == (9,)


@pytest.mark.parametrize(("before", "failures"), [(2, 0), (5, 0), (6, 2), (8, 0)])
def test_senders_of_vllm_that_have_begun_apart_come_together(
    server: th.ReferenceServer,
    adapter: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    failures: int,
) -> None:
    """A rollout comes back with version 9 after rank 0 has asked. With 6, rank 0 takes the other's 9 for its own."""
    module = adapter(ADAPTERS["vllm"])
    monkeypatch.setattr(th.ServerClient, "roll_back_to", MagicMock(side_effect=AssertionError))
    ranks = [sender_of(module, "vllm", server.address, monkeypatch, rank, 2, version=0) for rank in range(2)]
    for value in (1, 2):
        assert send_together(ranks, value) == [None, None]
    others = [Arena(server, "policy", "came-back", shard=(i, 2)) for i in range(2)]
    for name, other in zip("wv", others, strict=True):
        other.put(name, np.ones(4))
        other.commit(9)
    latest = module.SenderArena.latest

    def told(arena: Any) -> int:
        return before if arena is ranks[0][0]._arena else int(latest(arena))

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(module.SenderArena, "latest", told)
        assert send_together(ranks, 3) != [None, None]
    tried = [each.version for each, _ in ranks]
    assert tried[0] < tried[1]
    for value in range(failures):
        assert send_together(ranks, value) != [None, None]
    for value in (4, 5):
        assert send_together(ranks, value) == [None, None]
        assert ranks[0][0].version == ranks[1][0].version > max(tried)
        assert others[0].models("policy")[0].available == (9, ranks[0][0].version)


@pytest.mark.parametrize("senders", [1, 2])
def test_a_model_that_was_rolled_back_too_often_gets_higher_numbers(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, senders: int
) -> None:
    """What an earlier trainer has not finished cannot be withdrawn then."""
    module = adapter(ADAPTERS["hub_weights"])

    def started() -> list[tuple[Any, Callable[..., None]]]:
        return [sender_of(module, "hub_weights", server.address, monkeypatch, i, senders) for i in range(senders)]

    rollouts = [th.Subscriber(server, "policy", "rollout-0", shard=(i, senders)) for i in range(senders)]
    for i, rollout in enumerate(rollouts):
        rollout.add_all({each: np.zeros(4) for each in "wv"[i::senders]})
    ranks = started()
    next_number("hub_weights", ranks)
    assert send_together(ranks, 10) == [None] * senders
    for each in [rollout.update_async(1, timeout=20) for rollout in rollouts]:
        each.wait(20)
    Arena.made[0].begin(3)
    for arena in Arena.made:
        arena.close()
    too_often = MagicMock(side_effect=th.LimitExceeded("the model was rolled back too often"))
    monkeypatch.setattr(Arena, "roll_back_to", too_often)
    monkeypatch.setattr(th.ServerClient, "roll_back_to", too_often)
    ranks = started()
    next_number("hub_weights", ranks)
    assert any(send_together(ranks, 20))
    next_number("hub_weights", ranks)
    assert send_together(ranks, 30) == [None] * senders
    assert [each.version for each, _ in ranks] == [3] * senders
    for rollout in rollouts:
        rollout.close()


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_sender_that_others_are_ahead_of_asks_for_its_number_again(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a server that was started again, rollouts come back later than the trainer has asked."""
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    send(both_of(10).items())
    other = Arena(server, "policy", "came-back")
    for each, tensor in both_of(1).items():
        other.put(each, tensor)
    other.commit(7)
    with pytest.raises(th.VersionConflict):
        send(both_of(20).items())
    send(both_of(30).items())
    assert sender.version == 8


def test_a_sender_whose_group_has_another_number_asks_for_its_number_again(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, send = sender_of(adapter(ADAPTERS["hub_weights"]), "hub_weights", server.address, monkeypatch)
    hub.version = 6
    with monkeypatch.context() as failing:
        failing.setattr(Arena, "commit", MagicMock(side_effect=th.GroupFailed("another shard published version 1")))
        with pytest.raises(th.GroupFailed):
            send(both_of(10).items())
    assert hub.has_lost_count
    send(both_of(20).items())
    assert hub.version == 8
    assert not hub.has_lost_count


def test_the_server_has_time_to_roll_back_when_readers_have_used_it_up(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, send = sender_of(adapter(ADAPTERS["trl"]), "trl", server.address, monkeypatch)
    send(both_of(10).items())
    clock = iter([0.0, 60.0])
    stand_in = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(importlib.import_module("tensorhub.integrations.sending"), "time", stand_in)
    sender.roll_back_to(0, timeout=60)
    assert sender.version == 0


def test_there_are_no_more_senders_than_ranks(adapter: Callable[[str], Any]) -> None:
    hub_weights = adapter(ADAPTERS["hub_weights"]).HubWeights
    gathering = iter([("w", None), ("v", None)])
    with pytest.raises(th.InvalidArgument, match="has 1 ranks"):
        hub_weights(server="tcp://127.0.0.1:9", senders=2).send(gathering, 1, rank=0, ranks=1)
    assert list(gathering) == []
    with pytest.raises(th.InvalidArgument, match="senders is 0"):
        hub_weights(server="tcp://127.0.0.1:9", senders=0)
    module = adapter(ADAPTERS["vllm"])
    info = module.TrainerInfo(server="tcp://127.0.0.1:9", model="policy", senders=0)
    with pytest.raises(th.InvalidArgument, match="senders is 0"):
        module.TensorHubTrainerWeightTransferEngine.trainer_init(info, client=MagicMock(), source=MagicMock())


@pytest.mark.parametrize("name", ["trl", "vllm"])
def test_a_sender_that_was_evicted_leaves(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sender, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    send([("w", np.ones(4)), ("v", np.ones(4))])
    with th.ServerClient(server) as client:
        client.evict("policy", "trainer-0")
    end = sender.destroy if name == "trl" else sender.shutdown
    end()
    assert [each.is_closed for each in Arena.made] == [True]
    end()


def test_a_sender_that_cannot_leave_is_closed(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = sender_of(adapter(ADAPTERS["vllm"]), "vllm", server.address, monkeypatch)
    monkeypatch.setattr(Arena, "leave", MagicMock(side_effect=th.Disconnected("no server answers")))
    with pytest.raises(th.Disconnected):
        engine.shutdown()
    assert [each.is_closed for each in Arena.made] == [True]
    engine.shutdown()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_of_vllm_that_was_shut_down_sends_nothing_and_says_so(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    engine, send = sender_of(adapter(ADAPTERS["vllm"]), "vllm", server.address, monkeypatch, rank)
    weights = [("w", np.ones(4)), ("v", np.ones(4))]
    send(weights)
    engine.shutdown()
    with pytest.raises(th.InvalidArgument, match="after shutdown"):
        send(weights)
    assert engine.version == 1
    assert engine.client.update_weights.call_count == 1 - rank


class TwoEngines:
    """Of vLLM: a worker's update ends when it fails, and one that is begun has to be finished."""

    def __init__(self) -> None:
        self.have_begun = [False, False]
        self.failing: list[int] = []
        self.versions = [0, 0]

    def init_weight_transfer_engine(self, _info: Any) -> None:
        pass

    def start_weight_update(self) -> None:
        if any(self.have_begun):
            raise RuntimeError("already active")
        self.have_begun = [True, True]

    def update_weights(self, info: dict[str, int]) -> None:
        for engine in range(2):
            if engine in self.failing:
                self.have_begun[engine] = False
            else:
                self.versions[engine] = info["version"]
        if self.failing:
            raise RuntimeError("an engine has failed")

    def finish_weight_update(self, _version: str | None = None) -> None:
        begun, self.have_begun = self.have_begun, [False, False]
        if not all(begun):
            raise RuntimeError("without a matching start")


def test_a_trainer_of_vllm_updates_its_engines_after_one_has_failed(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, send = sender_of(adapter(ADAPTERS["vllm"]), "vllm", server.address, monkeypatch)
    trainer.client = engines = TwoEngines()
    weights = [("w", np.ones(4)), ("v", np.ones(4))]
    engines.failing = [1]
    with pytest.raises(RuntimeError, match="an engine has failed"):
        send(weights)
    engines.failing = []
    send(weights)
    assert engines.versions == [2, 2]
    engines.have_begun = [True, False]  # an earlier trainer died in the middle
    send(weights)
    assert engines.versions == [3, 3]
    assert engines.have_begun == [False, False]


class ReceivingEngine:
    """Of vLLM: receives from a hub, and tells that it was asked."""

    def __init__(self, server: th.ReferenceServer) -> None:
        self.rollout = th.Subscriber(server, "policy", "rollout-0", mode="staged")
        self.weights = {name: np.zeros(4) for name in "wv"}
        self.rollout.add_all(self.weights)
        self.asked = threading.Event()
        self.calls: list[str] = []
        self.failures: list[th.Error] = []

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, info: dict[str, int]) -> None:
        self.calls.append("update")
        self.asked.set()
        try:
            self.rollout.stage(info["version"], timeout=20)
        except th.Error as e:
            self.failures.append(e)
            raise
        self.rollout.install()

    def finish_weight_update(self, _version: str | None = None) -> None:
        self.calls.append("finish")


def until_one_reads(asking: th.Subscriber) -> None:
    """Returns when a worker of the model reads from another one, as far as the server knows."""
    until = time.monotonic() + 20
    while not any(replica.readers for model in asking.models() for replica in model.replicas):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def overlapping(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ReceivingEngine, Callable[..., None]]]:
    """An engine that is asked for a version while it is gathered, and how it is sent; one version was sent before."""
    trainer, send = sender_of(adapter(ADAPTERS["vllm"]), "vllm", server.address, monkeypatch, overlap=True)
    trainer.client = engine = ReceivingEngine(server)
    send(both_of(10).items())
    engine.asked.clear()
    engine.calls.clear()
    yield engine, send
    engine.rollout.close()


def test_an_engine_of_vllm_receives_what_is_still_gathered(
    overlapping: tuple[ReceivingEngine, Callable[..., None]],
) -> None:
    engine, send = overlapping

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.full(4, 20.0)
        assert engine.asked.wait(20)
        yield "v", np.full(4, 20.0)

    send(gathered())
    assert engine.calls == ["start", "update", "finish"]
    assert all((each == 20).all() for each in engine.weights.values())


def test_an_engine_of_vllm_does_not_wait_for_what_cannot_be_gathered(
    overlapping: tuple[ReceivingEngine, Callable[..., None]],
) -> None:
    engine, send = overlapping

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.full(4, 20.0)
        assert engine.asked.wait(20)
        until_one_reads(engine.rollout)  # an engine that asks for it later waits, since it may be begun again
        raise RuntimeError("a rank has failed")

    with pytest.raises(RuntimeError, match="a rank has failed"):
        send(gathered())
    assert [type(each) for each in engine.failures] == [th.Unavailable]
    assert engine.calls == ["start", "update", "finish"]
    assert all((each == 10).all() for each in engine.weights.values())
    send(both_of(30).items())
    assert all((each == 30).all() for each in engine.weights.values())


@pytest.mark.parametrize("name", ["trl", "vllm"])
def test_engines_are_not_asked_for_a_first_version_that_may_not_come(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They would wait for its layout until their own time-out."""
    trainer, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch, overlap=True)
    asked = MagicMock(return_value={})
    if name == "vllm":
        trainer.client.update_weights = asked
    else:
        monkeypatch.setattr(trainer, "_update", asked)

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.ones(4)
        raise RuntimeError("a rank has failed")

    with pytest.raises(RuntimeError, match="a rank has failed"):
        send(gathered())
    assert asked.call_count == 0
    send(both_of(10).items())
    assert asked.call_count == 1
    with pytest.raises(RuntimeError, match="a rank has failed"):
        send(gathered())
    assert asked.call_count == 2


def test_weights_are_gathered_to_the_end_if_an_engine_of_vllm_fails_meanwhile(
    overlapping: tuple[ReceivingEngine, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, send = overlapping
    for call in ("update_weights", "start_weight_update"):
        gathering = iter(both_of(20).items())
        with monkeypatch.context() as failing:
            failing.setattr(engine, call, MagicMock(side_effect=OSError("the engine has failed")))
            with pytest.raises(OSError, match="the engine has failed"):
                send(gathering)
        assert list(gathering) == []
    assert engine.calls[-1] == "finish"
    send(both_of(30).items())
    assert all((each == 30).all() for each in engine.weights.values())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_sender_that_fails_forgets_what_was_put(
    server: th.ReferenceServer,
    adapter: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[BaseException],
) -> None:
    """Else the next version would be whole with tensors of this one."""
    _, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)

    def gathered() -> Iterator[tuple[str, np.ndarray]]:
        yield "w", np.ones(4)
        raise error("a rank has failed")

    with pytest.raises(error, match="a rank has failed"):
        send(gathered())
    with pytest.raises(th.InvalidArgument, match="1 tensors were not put, such as 'w'"):
        send([("v", np.ones(4))])
    send([("w", np.ones(4)), ("v", np.ones(4))])
    assert len(Arena.made) == 1


@pytest.mark.parametrize("refusal", [th.Replaced, th.Disconnected])
def test_an_arena_that_cannot_forget_what_was_put_is_used_no_more(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, refusal: type[th.Error]
) -> None:
    _, send = sender_of(adapter(ADAPTERS["trl"]), "trl", server.address, monkeypatch)
    with monkeypatch.context() as failing:
        failing.setattr(Arena, "unpublish", MagicMock(side_effect=refusal("found out only now")))
        with pytest.raises(th.InvalidArgument, match="tensor 'v'"):
            send([("w", np.ones(4)), ("v", np.ones(5))])
    assert [each.is_closed for each in Arena.made] == [True]
    send([("w", np.ones(4)), ("v", np.ones(4))])


class Tensor(np.ndarray):  # type: ignore[type-arg]
    """What tensorhub.torch uses of a torch.Tensor in host memory."""

    def detach(self) -> Tensor:
        return self

    cpu = contiguous = resolve_conj = resolve_neg = detach

    def clone(self, **_memory_format: Any) -> Tensor:
        return self.copy()

    def data_ptr(self) -> int:
        return self.ctypes.data

    def numel(self) -> int:
        return self.size


def test_what_a_failed_first_version_had_put_is_no_part_of_the_layout(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arena without a layout keeps what is put before the first commit."""
    transfer = adapter(ADAPTERS["trl"]).WeightTransfer("http://127.0.0.1:9", server=server.address)
    monkeypatch.setattr(transfer, "_ask", lambda *_: {})
    monkeypatch.setattr(sys.modules["torch"], "contiguous_format", None, raising=False)

    def gathered() -> Iterator[tuple[str, Tensor]]:
        yield "renamed since", np.ones(4).view(Tensor)
        raise RuntimeError("a rank has failed")

    with pytest.raises(RuntimeError, match="a rank has failed"):
        transfer.send_weights(gathered())
    transfer.send_weights([("w", np.ones(4).view(Tensor))])
    with th.Subscriber(server, "policy", "rollout-0") as rollout:
        assert [each.name for each in rollout.describe_model()] == ["w"]
    transfer.destroy()


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_sender_that_fails_gathers_all_weights(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The other ranks would wait for it in the gathering."""
    _, send = sender_of(adapter(ADAPTERS[name]), name, server.address, monkeypatch)
    gathering = iter([("w", np.ones(5)), ("v", np.ones(4)), ("v", np.ones(4))])
    with pytest.raises(th.InvalidArgument, match="tensor 'w'"):
        send(gathering)
    assert list(gathering) == []
    send([("w", np.ones(4)), ("v", np.ones(4))])


def test_a_version_that_cannot_begin_is_gathered(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = adapter(ADAPTERS["hub_weights"])
    monkeypatch.setattr(module, "ArenaPublisher", Arena)
    hub = module.HubWeights(server=server.address)
    weights = {"w": np.ones(4), "v": np.ones(4)}
    hub.send(weights.items(), 3, rank=0, ranks=1)
    gathering = iter(weights.items())
    with pytest.raises(th.VersionConflict):
        hub.send(gathering, 2, rank=0, ranks=1)
    assert list(gathering) == []
    assert hub.version == 3


def test_an_arena_that_cannot_be_made_is_gathered(adapter: Callable[[str], Any]) -> None:
    hub = adapter(ADAPTERS["hub_weights"]).HubWeights(server="tcp://127.0.0.1:9", transport="pigeons")
    gathering = iter([("w", None), ("v", None)])
    with pytest.raises(th.InvalidArgument, match="pigeons"):
        hub.send(gathering, 1, rank=0, ranks=1)
    assert list(gathering) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_gathering_that_has_failed_is_over(error: type[BaseException]) -> None:
    class Gathering:
        asked = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            self.asked += 1
            if self.asked == 2:
                raise error("a rank has failed")
            return 0

    weights = Gathering()
    with pytest.raises(error, match="a rank has failed"), gathered_to_the_end(weights) as gathering:
        for _ in gathering:
            pass
    assert weights.asked == 2


def test_an_interrupted_sender_gathers_nothing_more() -> None:
    weights = iter(range(5))

    def interrupted() -> None:
        with gathered_to_the_end(weights) as gathering:
            next(gathering)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(weights) == [1, 2, 3, 4]


def test_trl_continues_at_a_version(
    server: th.ReferenceServer, adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = adapter(ADAPTERS["trl"])
    monkeypatch.setattr(module, "ArenaPublisher", Arena)
    transfer = module.WeightTransfer("http://127.0.0.1:9", server=server.address, version=41)
    told: list[Any] = []

    def ask(what: str, body: Any = None, *_engines: Any) -> dict[str, Any]:
        told.append((what, body))
        return {}

    monkeypatch.setattr(transfer, "_ask", ask)
    assert transfer.version == 41
    transfer.send_weights([("w", np.ones(4)), ("v", np.ones(4))])
    assert transfer.version == 42
    assert ("update_weights", {"update_info": {"version": 42}}) in told
    with th.ServerClient(server) as client:
        assert client.models("policy")[0].available == (42,)


@pytest.mark.parametrize("name", ["ArenaPublisher", "Receiver"])
def test_torchs_end_with_a_with_block(server: th.ReferenceServer, adapter: Callable[[str], Any], name: str) -> None:
    made = getattr(adapter("tensorhub.torch"), name)(server, "policy", "worker-0")
    with made as entered:
        assert entered is made
    worker = made._publisher if name == "ArenaPublisher" else made._asker
    assert worker.is_closed
