"""Versions travel: in every mode, by every call, and what reports say of it."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorhub as th

Pair = Callable[..., tuple[th.Publisher, th.Subscriber]]


def tensors(seed: int, words: int = 300_000) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "embedding": random.standard_normal((words // 100, 100), dtype=np.float32),
        "bias": random.integers(0, 255, 17, dtype=np.uint8),
        "scale": np.array(seed, dtype=np.float64),
        "nothing": np.zeros((0, 3), dtype=np.int16),
    }


def zeros(like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(each) for name, each in like.items()}


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("transport", ["auto", "tcp", "same_host"])
def test_update_reads_into_the_callers_arrays(server: th.ReferenceServer, transport: str) -> None:
    source = tensors(1)
    target = zeros(source)
    with (
        th.Publisher(server, "policy", "trainer-0", transport=transport) as trainer,
        th.Subscriber(server, "policy", "rollout-0", transport=transport) as rollout,
    ):
        trainer.add_all(source)
        rollout.add_all(target)
        published = trainer.publish(7)
        assert published.version == 7
        assert published.bytes >= sum(each.nbytes for each in source.values())
        report = rollout.update()
        assert (report.version, report.kept, report.bytes) == (7, False, published.bytes)
        assert [each.name for each in report.sources] == ["trainer-0/0"]
        assert report.sources[0].path == ("tcp" if transport == "tcp" else "same_host")
        assert equal(source, target)
        assert rollout.update().kept
        assert rollout.held_version == trainer.held_version == 7
        assert trainer.unpublish().forced is False
        # What was unpublished is read on from the rollout.
        source["embedding"][:] = 5
        trainer.publish(8)
        assert rollout.newer() in (8, None)
        assert rollout.update(at_least=8).version == 8
        assert equal(source, target)


def test_publish_of_what_has_changed(pair: Pair) -> None:
    source = tensors(5, 2_000_000)  # "embedding" has 8 chunks, and the others share one
    target = zeros(source)
    trainer, rollout = pair(source, target)
    with trainer.published(1, changed=("bias",)):  # nothing is known yet
        assert trainer.statistics()["digested_chunks"] == 9
        rollout.update()
    source["bias"][3] ^= 1
    with trainer.published(2, changed=("bias",)):
        assert trainer.statistics()["digested_chunks"] == 1
        report = rollout.update(2)
        assert report.bytes < report.unchanged_bytes == source["embedding"].nbytes
    assert equal(source, target)
    source["embedding"][3] += 1
    with pytest.raises(th.ContractBroken, match="'embedding' was left out"):
        trainer.publish(3, changed=["bias"])
    with pytest.raises(th.InvalidArgument, match="tensor 'nobody' is said to have changed"):
        trainer.publish(4, changed=["nobody"])
    with pytest.raises(TypeError, match=r"changed=\['bias'\]"):
        trainer.publish(4, changed="bias")
    trainer.publish(4, changed=[])
    assert trainer.statistics()["digested_chunks"] == 9
    rollout.update(4)
    assert equal(source, target)


def test_the_end_of_published_warns_of_what_was_lost_or_forced(caplog: pytest.LogCaptureFixture) -> None:
    server = th.ReferenceServer()
    with th.Publisher(server, "policy", "trainer-0", offload_limit_bytes=0) as trainer:
        trainer.add("w", np.zeros(1000))
        with trainer.published(1):
            pass
        assert not [each for each in caplog.records if each.levelname == "WARNING"]
        trainer.retain(1)
        with trainer.published(2):
            pass
        lost = "Publisher(policy/trainer-0, shard 0 of 1): version 2 may be lost"
        assert [each.name for each in caplog.records if each.getMessage().startswith(lost)] == ["tensorhub"]
        trainer.retain(0)
        started = time.monotonic()
        with trainer.published(3, drain_timeout=0.3):
            server.close()
        assert time.monotonic() - started < 10
        assert any("version 3 was unpublished by force" in each.getMessage() for each in caplog.records)


def test_an_error_in_a_with_block_is_not_replaced_by_that_of_its_end(
    server: th.ReferenceServer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = th.Publisher(server, "policy", "trainer-0")
    trainer.add_all(tensors(1))

    def fail() -> None:
        with trainer.published(1):
            trainer.close()
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        fail()
    assert "version 1 could not be unpublished" in caplog.text


def test_a_rollout_is_a_source(pair: Pair, server: th.ReferenceServer) -> None:
    source = tensors(2)
    trainer, rollout = pair(source, zeros(source))
    with trainer.published(1):
        rollout.update()
    third = zeros(source)
    with th.Subscriber(server, "policy", "rollout-1") as late:
        late.add_all(third)
        assert late.update().sources[0].name == "rollout-0/0"
    assert equal(source, third)


def test_snapshots_let_the_tensors_change_at_once(pair: Pair) -> None:
    source = tensors(3)
    kept = {name: each.copy() for name, each in source.items()}
    target = zeros(source)
    trainer, rollout = pair(source, target)
    report = trainer.publish_snapshot(1)
    assert (report.version, report.lost) == (1, False)
    source["embedding"][:] = -1
    assert rollout.update().version == 1
    assert equal(kept, target)


def test_staged_leaves_what_is_live_until_install(pair: Pair) -> None:
    source = tensors(4)
    target = zeros(source)
    trainer, rollout = pair(source, target, mode="staged")
    trainer.publish(1)
    assert rollout.stage().version == 1
    assert (rollout.staged_version, rollout.held_version) == (1, 0)
    assert not target["embedding"].any()
    assert rollout.install().version == 1
    assert equal(source, target)
    trainer.unpublish()
    source["embedding"][:] = 9
    trainer.publish(2)
    assert rollout.update(2).version == 2  # both in one
    assert equal(source, target)
    assert len(rollout.statistics()) == 2


def test_an_update_in_two_steps_keeps_one_time_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tensors(4)
    trainer, rollout = pair(source, zeros(source), mode="staged")
    trainer.publish(1)
    given: list[float] = []
    inner = rollout._inner

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def receive(self, *arguments: object) -> object:
            time.sleep(0.2)
            return inner.receive(*arguments)

        def install(self, timeout: float, *others: object) -> object:
            given.append(timeout)
            return inner.install(timeout, *others)

    monkeypatch.setattr(rollout, "_inner", Watched())
    assert rollout.update(timeout=20).version == 1
    assert 0 < given[0] <= 19.8


def test_double_buffered_flips_between_two_memories(server: th.ReferenceServer) -> None:
    source = tensors(5)
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0", mode="double_buffered") as rollout,
    ):
        trainer.add_all(source)
        for name, each in source.items():
            dtype = {"float32": "f32", "uint8": "u8", "float64": "f64", "int16": "i16"}[each.dtype.name]
            rollout.allocate(name, each.shape, dtype)
        with pytest.raises(th.NotFound):
            rollout.tensor("embedding")
        trainer.publish(1)
        rollout.update()
        kept = [rollout.update(), rollout.update(1), rollout.update(at_least=1)]
        assert [(each.version, each.kept) for each in kept] == [(1, True)] * 3
        assert sum(each["chunks"] for each in rollout.statistics()) == rollout.statistics()[0]["chunks"]
        first = np.asarray(rollout.tensor("embedding"))
        assert np.array_equal(first, source["embedding"])
        assert not first.flags.writeable
        assert np.asarray(rollout.tensor("scale")) == 5.0
        trainer.unpublish()
        source["embedding"][:] = 3
        trainer.publish(2)
        rollout.stage()
        assert first[0, 0] != 3
        rollout.install()
        assert np.asarray(rollout.tensor("embedding"))[0, 0] == 3
        # A view keeps the memory, even of a subscriber that is gone.
        view = rollout.tensor("embedding")
    assert np.asarray(view)[0, 0] == 3


@pytest.mark.parametrize("mode", ["in_place", "staged"])
def test_tensors_come_one_by_one(pair: Pair, mode: str) -> None:
    source = {name: np.arange(400_000, dtype=np.float32) + i for i, name in enumerate("abc")}
    target = {name: np.zeros(400_000, dtype=np.float32) for name in source}
    trainer, rollout = pair(source, target, mode=mode)
    call = rollout.update_async if mode == "in_place" else rollout.stage_async
    running = call(at_least=1, timeout=20)
    with pytest.raises(th.InvalidArgument, match="no tensor 'wq'"):
        next(running.tensors(["wq"]))
    with pytest.raises(th.TimedOut, match="'b' has not arrived yet: wait longer"):
        next(running.tensors(["b"], timeout=0.05))
    trainer.publish(1)
    arrived = list(running.tensors("cab", timeout=20))
    assert [name for name, _ in arrived] == ["c", "a", "b"]
    for name, tensor in arrived:
        assert np.array_equal(np.asarray(tensor), source[name])
        assert (tensor is target[name]) == (mode == "in_place")
    assert running.wait().version == 1
    assert list(running.tensors()) != []  # still there
    running.close()
    with pytest.raises(th.InvalidArgument, match="closed"):
        list(running.tensors())


def test_a_version_that_fails_raises_instead_of_its_next_tensor(pair: Pair) -> None:
    _, rollout = pair({"a": np.zeros(10)}, {"a": np.zeros(10)})
    running = rollout.update_async(at_least=1, timeout=0.3)
    with pytest.raises(th.TimedOut):
        list(running.tensors())
    running.close()


def test_an_arena_is_written_in_place(server: th.ReferenceServer) -> None:
    with (
        th.ArenaPublisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0") as rollout,
    ):
        received = {name: np.zeros(300_000, np.float32) for name in "ab"}
        rollout.add_all(received)
        for name in "ab":
            trainer.declare(name, [300_000], "f32")
        places = {name: np.asarray(trainer.tensor(name)) for name in "ab"}
        for version in (1, 2):
            trainer.begin(version)
            for name, place in places.items():
                place[:] = version + ord(name)
                trainer.put(name)
            trainer.commit(version)
            rollout.update(version)
            assert all((array == version + ord(name)).all() for name, array in received.items())
        trainer.begin(3)
        with pytest.raises(th.InvalidArgument, match="'a'"):
            trainer.put("a", None)
        trainer.put("a")
        with pytest.raises(th.InvalidArgument, match="1 tensors were not put, such as 'b'"):
            trainer.commit(3)
        for call in (trainer.tensor, trainer.put):
            with pytest.raises(th.InvalidArgument, match="no tensor 'c' was added"):
                call("c")


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_array_in_an_arena_keeps_its_memory_and_shows_nothing(server: th.ReferenceServer, is_closed: bool) -> None:
    trainer = th.ArenaPublisher(server, "policy", "trainer-0")
    trainer.declare("w", [4], "f32")
    place = np.asarray(trainer.tensor("w"))
    place[:] = 7
    trainer.put("w")
    trainer.commit(1)
    with th.ServerClient(server) as client:
        assert client.models("policy")[0].available == (1,)
        if is_closed:
            trainer.close()
        else:
            del trainer
        assert client.models() == []
    place += 1
    assert (place == 8).all()


def test_an_arena_that_was_asked_for_an_unknown_tensor_takes_more(server: th.ReferenceServer) -> None:
    with th.ArenaPublisher(server, "policy", "trainer-0") as trainer:
        with pytest.raises(th.InvalidArgument, match="no tensor 'typo' was added: call declare"):
            trainer.tensor("typo")
        trainer.declare("w", [4], "f32")
        np.asarray(trainer.tensor("w"))[...] = 1


def test_an_arena_is_received_while_it_is_filled(server: th.ReferenceServer) -> None:
    source = {name: np.arange(400_000, dtype=np.float32) + i for i, name in enumerate("abc")}
    with (
        th.ArenaPublisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0", mode="double_buffered") as rollout,
    ):
        for name in source:
            trainer.declare(name, (400_000,), "f32")
            rollout.allocate(name, (400_000,), "f32")
        running = rollout.stage_async(at_least=1, timeout=20)
        arriving = running.tensors("bac", timeout=20)
        trainer.begin(1)
        trainer.put("b", source["b"])
        name, tensor = next(arriving)  # before the others exist
        assert name == "b"
        assert np.array_equal(np.asarray(tensor), source["b"])
        assert not running.done()
        with pytest.raises(th.InvalidArgument, match="2 tensors were not put, such as 'a'"):
            trainer.commit(1)
        with pytest.raises(th.InvalidArgument, match=r"'c' is f64.*declared as f32"):
            trainer.put("c", np.zeros(400_000))
        trainer.put("c", source["c"])
        trainer.put("a", source["a"])
        assert rollout.newer() is None
        assert trainer.commit(1).version == 1
        assert [name for name, _ in arriving] == ["a", "c"]
        assert running.wait().version == 1
        rollout.install()
        assert all(np.array_equal(np.asarray(rollout.tensor(name)), source[name]) for name in source)


def test_shards_get_the_same_version(server: th.ReferenceServer) -> None:
    sources = [tensors(10 + rank) for rank in range(2)]
    targets = [zeros(each) for each in sources]
    versions: list[int] = []

    def publish(rank: int) -> None:
        with th.Publisher(server, "policy", "trainer-0", shard=(rank, 2)) as trainer:
            trainer.add_all(sources[rank])
            trainer.publish(3)
            done.wait()

    def update(rank: int) -> None:
        with th.Subscriber(server, "policy", "rollout-0", shard=(rank, 2)) as rollout:
            rollout.add_all(targets[rank])
            versions.append(rollout.update().version)

    done = threading.Event()
    trainers = [threading.Thread(target=publish, args=(rank,)) for rank in range(2)]
    rollouts = [threading.Thread(target=update, args=(rank,)) for rank in range(2)]
    for each in trainers + rollouts:
        each.start()
    for each in rollouts:
        each.join()
    done.set()
    for each in trainers:
        each.join()
    assert versions == [3, 3]
    assert all(equal(sources[rank], targets[rank]) for rank in range(2))


def test_shards_that_hear_of_a_version_at_different_times_take_the_same(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = [th.Publisher(server, "policy", "trainer-0", shard=(rank, 2)) for rank in range(2)]
    rollouts = [
        th.Subscriber(server, "policy", "rollout-0", shard=(rank, 2), mode="double_buffered") for rank in range(2)
    ]

    def together(call: Callable[[int], object]) -> None:
        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    for rank in range(2):
        trainers[rank].add("w", np.zeros(1000, dtype=np.float32))
        rollouts[rank].allocate("w", [1000], "f32")
    for version in (1, 2):
        together(lambda rank, v=version: trainers[rank].publish(v))
        monkeypatch.setattr(rollouts[0], "newer", lambda: None)  # it has not heard yet
        together(lambda rank: rollouts[rank].update(timeout=10))
        assert [each.held_version for each in rollouts] == [version, version]
        together(lambda rank: trainers[rank].unpublish())
    for each in trainers + rollouts:
        each.close()


def test_questions(pair: Pair) -> None:
    source = tensors(6)
    trainer, rollout = pair(source, zeros(source))
    trainer.publish(1)
    trainer.retain(1)
    trainer.pin(1)
    report = rollout.update()
    trainer.release(1)
    (model,) = trainer.models("policy")
    assert (model.name, model.latest, model.available) == ("policy", 1, (1,))
    assert sorted(each.name for each in model.replicas) == ["rollout-0", "trainer-0"]
    assert rollout.describe_model()[0] == th.TensorSpec("embedding", "f32", source["embedding"].shape)
    assert "trainer-0" in rollout.why()
    assert trainer.stuck() == []
    assert rollout.statistics()[0]["updates"] == {"ok": 1}
    assert rollout.statistics()[0]["received_bytes"] == {"same_host": report.bytes}
    assert "version 1" in repr(rollout)
    assert rollout.leave().forced is False


def test_a_trainer_goes_back_to_a_checkpoint(pair: Pair) -> None:
    source, target = tensors(6), zeros(tensors(6))
    trainer, rollout = pair(source, target)
    trainer.publish(5)
    rollout.update()
    trainer.unpublish()
    trainer.roll_back_to(3)
    source["embedding"][0] = 77
    trainer.publish(5)
    report = rollout.update(5)
    assert (report.version, report.kept) == (5, False)
    assert (target["embedding"][0] == 77).all()
    assert rollout.held_version == 5


def test_a_checkpoint_replaces_what_a_double_buffered_subscriber_shows(server: th.ReferenceServer) -> None:
    source = np.ones(1000, dtype=np.float32)
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0", mode="double_buffered") as rollout,
    ):
        trainer.add("w", source)
        rollout.allocate("w", [1000], "f32")
        trainer.publish(5)
        rollout.update(5)
        assert rollout.update(5).kept
        trainer.unpublish()
        trainer.roll_back_to(3)
        source[:] = 77
        trainer.publish(5)
        time.sleep(1)  # the worker hears of it with a heartbeat
        report = rollout.update(5)
        assert (report.version, report.kept) == (5, False)
        assert (np.asarray(rollout.tensor("w")) == 77).all()


def test_stuck_says_who_waits_for_what(pair: Pair) -> None:
    source = tensors(7)
    trainer, rollout = pair(source, zeros(source))
    trainer.publish(1)
    running = rollout.update_async(9, timeout=30)
    deadline = time.monotonic() + 20
    while not (entries := trainer.stuck(older_than=0.1)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (entries[0].kind, entries[0].replica, entries[0].version) == ("no_version", "rollout-0", 9)
    running.cancel()
    with pytest.raises(th.Cancelled):
        running.wait()


def test_a_seeder_takes_every_version(server: th.ReferenceServer) -> None:
    source = tensors(8)
    with th.Publisher(server, "policy", "trainer-0") as trainer, th.Seeder(server, "policy", "seed") as seed:
        trainer.add_all(source)
        trainer.publish(4)
        assert seed.wait(4) == 4
        assert seed.held_version == 4
        with pytest.raises(th.TimedOut):
            seed.wait(5, timeout=0.2)
        assert "version 4" in repr(seed)


def test_a_seeder_answers_the_questions_of_any_worker(server: th.ReferenceServer) -> None:
    source = tensors(8)
    with th.Publisher(server, "policy", "trainer-0") as trainer, th.Seeder(server, "policy", "seed") as seed:
        trainer.add_all(source)
        trainer.publish(4)
        seed.wait(4)
        assert [each.name for each in seed.models("policy")] == ["policy"]
        assert [each.name for each in seed.describe_model()] == list(source)
        assert "trainer-0" in seed.why()
        assert seed.stuck() == []
        seed.retain(1)
        seed.retain(0)
        seed.pin(4)
        seed.release(4)
        assert seed.offloaded_bytes == 0
        waiting = threading.Timer(0.3, seed.close)
        waiting.start()
        with pytest.raises(th.Cancelled):
            seed.wait(5, timeout=30)
        waiting.join()


def test_a_configuration_file_may_give_groups_of_options(server: th.ReferenceServer) -> None:
    with th.Subscriber(server, "policy", "rollout-0", location={"datacenter": "eu", "rack": "7"}):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="country"):
        th.Subscriber(server, "policy", "rollout-1", location={"country": "fr"})  # type: ignore[arg-type]


def test_a_shard_that_is_none_is_the_default(server: th.ReferenceServer) -> None:
    """As code that passes on what it was given, or not given."""
    none: dict[str, Any] = {"shard": None}
    with (
        th.Publisher(server, "policy", "t", **none) as trainer,
        th.Subscriber(server, "policy", "r", **none) as rollout,
    ):
        trainer.add("w", np.ones(4))
        rollout.add("w", np.zeros(4))
        trainer.publish(1)
        rollout.update()
        assert "shard 0 of 1" in repr(trainer)
    with (
        th.ArenaPublisher(server, "policy", "a", **none),
        th.Seeder(server, "policy", "s", **none),
        th.SharedCopy(server, "policy", "c", name=f"test-{os.getpid()}", **none),
    ):
        pass


def test_types_of_elements_may_be_those_of_frameworks(server: th.ReferenceServer) -> None:
    class TorchDtype:
        def __str__(self) -> str:
            return "torch.bfloat16"

    given = {"ours": "bf16", "torch's": TorchDtype(), "numpy's": np.dtype(np.float32), "array's": np.zeros(3).dtype}
    with (
        th.ArenaPublisher(server, "policy", "t") as arena,
        th.Subscriber(server, "policy", "r", mode="double_buffered") as rollout,
    ):
        for name, dtype in given.items():
            arena.declare(name, [1], dtype)
            rollout.allocate(name, [1], dtype)
        arena.join()
        rollout.join()
        assert [each.dtype for each in rollout.describe_model()] == ["bf16", "bf16", "f32", "f64"]
        with pytest.raises(th.InvalidArgument, match="'5' is no element type"):
            arena.declare("x", [1], 5)


def test_keys_admit_and_refuse(tmp_path: Path) -> None:
    public, secret = th.make_keys()
    worker_public, worker_secret = th.make_keys()
    th.write_keys(tmp_path, "server", public, secret)
    assert th.read_keys(tmp_path / "server.secret") == th.read_keys(f"{tmp_path}/server.secret") == (public, secret)
    assert th.read_public_key(tmp_path / "server.public") == th.read_public_key(f"{tmp_path}/server.public") == public
    (tmp_path / "allowed").write_text(f"{worker_public} rollouts may=read\n")
    assert list(th.read_allow_list(tmp_path / "allowed")) == [worker_public]
    with th.ReferenceServer(public_key=public, secret_key=secret, allowed={worker_public: "rollouts"}) as guarded:
        keys = th.Security(public, worker_public, worker_secret)
        with th.Subscriber(guarded, "policy", "rollout-0", security=keys) as known:
            assert known.models() == []
        stranger = th.Security(public, *th.make_keys())
        with th.Subscriber(guarded, "policy", "rollout-1", security=stranger) as unknown, pytest.raises(th.Error):
            unknown.models(timeout=0.5)
        with pytest.raises(th.Error, match="may=write"):
            guarded.allow(worker_public, "rollouts may=write")
        guarded.allow(worker_public, "rollouts replicas=rollout-* may=read,serve")
        with th.Publisher(guarded, "policy", "rollout-2", security=keys) as liar:
            liar.add("w", np.ones(4, dtype=np.float32))
            with pytest.raises(th.Error, match="the key 'rollouts' may not send a publish"):
                liar.publish(1)
        assert guarded.revoke(worker_public)
        assert guarded.statistics()["refused_connections"] >= 1


@pytest.mark.parametrize(
    "keys",
    [th.Security("", "", ""), th.Security("", *th.make_keys()), th.Security(th.make_keys()[0], "", "")],
    ids=["all", "server's", "own"],
)
def test_keys_that_are_given_and_empty_are_refused(server: th.ReferenceServer, keys: th.Security) -> None:
    with pytest.raises(th.InvalidArgument, match="_key is no"):
        th.Subscriber(server, "policy", "rollout-0", security=keys)
    with pytest.raises(th.InvalidArgument, match="_key is no"):
        th.Publisher(server, "policy", "trainer-0", security=keys)
    with pytest.raises(th.InvalidArgument, match="_key is no"):
        th.ServerClient(server, security=keys)


def test_sentences_name_options_as_python_does(server: th.ReferenceServer) -> None:
    public, secret = th.make_keys()
    other, _ = th.make_keys()
    address = server.address
    calls: list[tuple[str, Callable[[], object]]] = [
        ("server is empty", lambda: th.Publisher("", "policy", "trainer-0")),
        ("model is empty", lambda: th.Publisher(address, "", "trainer-0")),
        ("replica is empty", lambda: th.Publisher(address, "policy", "")),
        ("the name '.*' has control characters", lambda: th.Publisher(address, "policy", "trainer\n0")),
        ("server is empty", lambda: th.ServerClient("")),
        ("server_key is no public", lambda: th.ServerClient(address, security=th.Security("", public, secret))),
        ("client's secret_key is no", lambda: th.ServerClient(address, security=th.Security(other, public, ""))),
        ("client's keys are not", lambda: th.ServerClient(address, security=th.Security(other, other, secret))),
        (
            "server_key has 2 keys",
            lambda: th.ServerClient(address, security=th.Security(f"{other},{other}", public, secret)),
        ),
        (
            "server_key has 2 groups",
            lambda: th.ServerClient(address, security=th.Security(f"{other}|{other}", public, secret)),
        ),
        ("server's secret_key is no", lambda: th.ReferenceServer(public_key=public)),
        ("list of allowed", lambda: th.ReferenceServer(public_key=public, secret_key=secret, allowed={"a": ""})),
    ]
    for sentence, call in calls:
        with pytest.raises(th.Error, match=sentence) as refused:
            call()
        assert "::" not in str(refused.value)


def test_arguments_of_a_wrong_kind_are_named(pair: Pair, server: th.ReferenceServer) -> None:
    trainer, rollout = pair({"w": np.ones(4, dtype=np.float32)}, {"w": np.zeros(4, dtype=np.float32)})
    for call in (trainer.publish, trainer.publish_snapshot, rollout.update, rollout.wait, trainer.pin):
        with pytest.raises(TypeError, match="version is '7', of type str: give a whole number"):
            call("7")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"version is 7\.0, of type float: give a whole number"):
            call(7.0)  # type: ignore[arg-type]
        with pytest.raises(th.InvalidArgument, match="version is -7: versions are from 1"):
            call(-7)
    with pytest.raises(TypeError, match=r"at_least is 7\.5, of type float"):
        rollout.update(at_least=7.5)  # type: ignore[arg-type]
    with pytest.raises(th.InvalidArgument, match="there is no version 0: versions count from 1"):
        rollout.update(0, timeout=20)
    with pytest.raises(TypeError, match="give version or at_least, not both"):
        rollout.update(7, at_least=3)
    with pytest.raises(TypeError, match="a time-out has to be a number of seconds"):
        trainer.publish(7, timeout="soon")  # type: ignore[arg-type]
    assert trainer.publish(np.int64(7)).version == 7
    with pytest.raises(TypeError, match=r"a tensor's name is of type ndarray: call add\(name, tensor\)"):
        rollout.add(np.zeros(4, dtype=np.float32), "w")  # type: ignore[arg-type]
    with pytest.raises(th.InvalidArgument, match=r"there is no option 'loction': did you mean 'location'\?"):
        th.Subscriber(server, "policy", "rollout-1", loction=3)  # type: ignore[call-arg]
    with pytest.raises(th.InvalidArgument, match=r"there is no option 'xyzzy': tensorhub\.Options has them all"):
        th.Subscriber(server, "policy", "rollout-1", xyzzy=3)  # type: ignore[call-arg]


def test_a_trainer_waits_until_replicas_hold_a_version(pair: Pair, server: th.ReferenceServer) -> None:
    source = tensors(1)
    trainer, rollout = pair(source, zeros(source), mode="staged")
    with (
        th.ArenaPublisher(server, "policy", "trainer-1") as idle,
        th.ServerClient(server) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        trainer.publish(7)
        waits = [
            threads.submit(trainer.wait_held, 7, np.int64(1), 60),
            threads.submit(idle.wait_held, np.int64(6), ["rollout-0"], 60),
            threads.submit(client.wait_held, "policy", 7, ("rollout-0", "trainer-0"), 60),
        ]
        rollout.stage(7)  # received: it need not be live
        assert [each.result() for each in waits] == [("rollout-0",), ("rollout-0",), ("rollout-0", "trainer-0")]
        sentence = "1 of 2 replicas hold version 7, or a newer one: rollout-0; no other has joined"
        with pytest.raises(th.TimedOut, match=sentence):
            trainer.wait_held(7, 2, timeout=1)
        with pytest.raises(th.TimedOut, match=r"without it: absent \(has not joined\)"):
            client.wait_held("policy", 7, {"absent"}, timeout=1)
        waiting = threads.submit(trainer.wait_held, 7, 2, 60)
        while not waiting.done():
            trainer._inner.interrupt()
            time.sleep(0.02)
        with pytest.raises(th.Cancelled):
            waiting.result()


def test_whom_a_trainer_waits_for_has_to_be_a_number_or_names(pair: Pair, server: th.ReferenceServer) -> None:
    trainer, _ = pair(tensors(1), tensors(2))
    with pytest.raises(TypeError, match=r"got one string: write replicas=\['rollout-0'\]"):
        trainer.wait_held(7, "rollout-0")
    with pytest.raises(TypeError, match="takes the names of replicas, and got 1"):
        trainer.wait_held(7, [1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"replicas is 1\.5: give a whole number, or names of replicas"):
        trainer.wait_held(7, 1.5)  # type: ignore[arg-type]
    for number in (-1, 2**32):
        with pytest.raises(th.InvalidArgument, match=f"replicas is {number}: a number of replicas is from 0"):
            trainer.wait_held(7, number)
    with pytest.raises(th.InvalidArgument, match="version 0 is held by nobody"):
        trainer.wait_held(0, 1)
    with th.ServerClient(server) as client, pytest.raises(TypeError, match="got one string"):
        client.wait_held("policy", 7, "rollout-0")


@pytest.mark.parametrize("mode", ["staged", "double_buffered"])
def test_what_is_live_does_not_excuse_wrong_arguments(server: th.ReferenceServer, mode: th.Mode) -> None:
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r", mode=mode) as rollout:
        trainer.add("w", np.ones(4))
        if mode == "staged":
            rollout.add("w", np.zeros(4))
        else:
            rollout.allocate("w", [4], "f64")
        trainer.publish(5)
        assert rollout.update().version == 5
        with pytest.raises(TypeError, match="give version or at_least, not both"):
            rollout.update(5, at_least=3)
        with pytest.raises(TypeError, match=r"version is 5\.0, of type float"):
            rollout.update(5.0)  # type: ignore[arg-type]
        with pytest.raises(th.InvalidArgument, match="at_least is -1"):
            rollout.update(at_least=-1)


def test_the_compiled_module_names_its_arguments() -> None:
    """Where one is of a wrong type, its error lists the parameters."""
    from tensorhub import _core

    kinds = [each for each in vars(_core).values() if isinstance(each, type)]
    told = [
        f"{kind.__name__}: {text}"
        for kind in [_core, *kinds]
        for each in vars(kind).values()
        if (text := getattr(each, "__doc__", None)) and re.search(r"\barg\d*\b", text)
    ]
    assert told == []


@pytest.mark.parametrize("seconds", [-1.0, -1e-9, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(server: th.ReferenceServer, seconds: float) -> None:
    for name in ("join_timeout", "drain_timeout", "connect_timeout", "server_timeout"):
        with pytest.raises(th.InvalidArgument, match=f"option {name} is"):
            th.Publisher(server, "policy", "trainer-0", **{name: seconds})  # type: ignore[arg-type]
    with pytest.raises(th.InvalidArgument, match="option server_timeout is"):
        th.ServerClient(server, server_timeout=seconds)
    with pytest.raises(th.InvalidArgument, match="option worker_timeout is"):
        th.ReferenceServer(worker_timeout=seconds)


@pytest.mark.parametrize("seconds", [None, "3", float("nan")])
@pytest.mark.parametrize("call", ["tensors", "staged"])
def test_times_that_are_reckoned_with_are_refused_if_they_are_none(pair: Pair, call: str, seconds: Any) -> None:
    _, rollout = pair(tensors(1), tensors(2), mode="in_place" if call == "tensors" else "staged")
    refused = pytest.raises((TypeError, th.InvalidArgument), match="time-out has to be a number of seconds")
    if call == "staged":
        with refused:
            rollout.update(timeout=seconds)
        return
    with rollout.update_async() as update, refused:
        list(update.tensors(timeout=seconds))


@pytest.mark.parametrize("call", ["update", "commit"])
def test_a_call_that_joins_first_ends_within_its_time(call: str) -> None:
    nobody = "tcp://127.0.0.1:9"
    with (
        th.SharedCopy(nobody, "m", "c", name=f"test-{os.getpid()}", join_timeout=60) as copy,
        th.ArenaPublisher(nobody, "m", "t", join_timeout=60) as arena,
    ):
        copy.declare("w", [4], "f32")
        arena.declare("w", [4], "f32")
        started = time.monotonic()
        with pytest.raises(th.Error):
            copy.update(timeout=0.2) if call == "update" else arena.commit(1, timeout=0.2)
        assert time.monotonic() - started < 30


def test_keys_bring_digests_that_nobody_forges() -> None:
    public, secret = th.make_keys()
    worker_public, worker_secret = th.make_keys()
    with th.ReferenceServer(public_key=public, secret_key=secret, allowed={worker_public: "rollouts"}) as guarded:

        def rollout(replica: str, *, trust_sources: bool = False) -> th.Subscriber:
            keys = th.Security(public, worker_public, worker_secret, trust_sources=trust_sources)
            made = th.Subscriber(guarded, "policy", replica, security=keys)
            made.add("w", np.zeros(4, dtype=np.float32))
            return made

        with rollout("rollout-0") as first, rollout("rollout-1") as second:
            for each in (first, second):  # they join, by keys alone; there is no version yet
                with pytest.raises(th.TimedOut):
                    each.update(1, timeout=2)
            third = rollout("rollout-2", trust_sources=True)
            with third, pytest.raises(th.PolicyMismatch, match="blake3_128"):
                third.update(1, timeout=20)


def test_threads_run_while_a_call_waits(pair: Pair) -> None:
    source = tensors(9)
    _, rollout = pair(source, zeros(source))
    ticks = 0
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            rollout.wait(at_least=1, timeout=0.5)
        except th.TimedOut as e:
            failures.append(e)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        ticks += 1
        time.sleep(0.01)
    assert len(failures) == 1
    assert ticks > 1


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_updates_grow_nothing(pair: Pair) -> None:
    source = {"w": np.zeros(1000, dtype=np.float32)}
    target = zeros(source)
    trainer, rollout = pair(source, target)

    def rounds(first: int, count: int) -> None:
        for version in range(first, first + count):
            source["w"][:] = version
            with trainer.published(version):
                rollout.update(at_least=version)
            assert target["w"][0] == version

    rounds(1, 300)
    before = (resident_bytes(), descriptors())
    rounds(301, 1000)
    assert resident_bytes() - before[0] < 1000 * 8192
    assert descriptors() <= before[1] + 2  # of threads that are just ending


@pytest.mark.parametrize("mode", ["in_place", "staged"])
def test_an_update_repeats_itself(tmp_path: Path, mode: th.Mode) -> None:
    """Until there is a server."""
    address = f"ipc://{tmp_path}/server"
    source, target = np.full(500_000, 1, dtype=np.float32), np.zeros(500_000, dtype=np.float32)
    with th.Subscriber(address, "m", "r", mode=mode, join_timeout=1) as rollout, ThreadPoolExecutor() as pool:
        rollout.add("w", target)
        with pytest.raises(th.Disconnected) as failed:
            rollout.update(timeout=30)
        assert failed.value.retryable
        updating = pool.submit(rollout.update, timeout=60, retry=True)
        time.sleep(1.5)  # it has failed once
        with th.ReferenceServer(address) as server, th.Publisher(server, "m", "t") as trainer:
            trainer.add("w", source)
            with trainer.published(1):
                assert updating.result().version == 1
        assert np.array_equal(source, target)


def test_an_error_that_cannot_pass_ends_the_repetition(server: th.ReferenceServer) -> None:
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r") as rollout:
        trainer.add("w", np.zeros(4))
        rollout.add("w", np.zeros(5))
        trainer.publish(1)
        with pytest.raises(th.LayoutMismatch):
            rollout.update(retry=True, timeout=60)


def test_one_of_several_shards_does_not_repeat_alone(server: th.ReferenceServer) -> None:
    with th.Subscriber(server, "m", "r", shard=(0, 2)) as rollout:
        rollout.add("w", np.zeros(4))
        with pytest.raises(th.InvalidArgument, match="the shards of a replica repeat it together"):
            rollout.update(retry=True, timeout=5)
