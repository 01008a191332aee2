"""One copy of a whole model for the processes of a machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorhub as th
from tensorhub import machine, machine_owner
from tensorhub.machine import MachineCopy, NotShared, machine_name

RANK = textwrap.dedent("""
    import hashlib, os, sys
    import numpy as np
    import tensorhub as th
    from tensorhub.machine import MachineCopy
    _, server, name, replica = sys.argv
    weights = MachineCopy(server, "policy", replica, name=name)
    for line in sys.stdin:
        call, *given = line.split()
        try:
            if call == "receive":
                weights.receive(int(given[0]), timeout=float(given[1]))
            elif call == "fork":  # the child lives until its input ends, which is when the test does
                child = os.fork()
                if child == 0:
                    try:
                        weights.receive(1)
                    except th.InvalidArgument:
                        os.write(1, b"refused\\n")
                    os.read(0, 1)
                    os._exit(0)
                continue
            digest = hashlib.sha256()
            for _, tensor in weights.tensors():
                digest.update(np.asarray(tensor))
            del tensor
            print(weights.version, digest.hexdigest(), flush=True)
        except th.Error as e:
            print(e.code, str(e), flush=True)
""")


class Rank:
    """A process that receives when it is told to."""

    def __init__(self, server: th.ReferenceServer, name: str, replica: str, stderr: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, server.address, name, replica],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def ask(self, *call: object) -> None:
        assert self.process.stdin is not None
        print(*call, file=self.process.stdin, flush=True)

    def says(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split(maxsplit=1)

    def does(self, *call: object) -> list[str]:
        self.ask(*call)
        return [each.strip() for each in self.says()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def memories(self) -> dict[str, int]:
        """Bytes of the memories of the library that it has mapped, by inode."""
        out: dict[str, int] = {}
        for line in Path(f"/proc/{self.process.pid}/maps").read_text().splitlines():
            where, _, _, _, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith("/memfd:tensorhub "):
                start, end = (int(each, 16) for each in where.split("-"))
                out[inode] = max(out.get(inode, 0), end - start)  # the owner has mapped them twice
        return out


class Scene:
    """A trainer that publishes, and the processes of a machine."""

    def __init__(self, server: th.ReferenceServer) -> None:
        self.server = server
        self.name = f"test-{os.getpid()}-{os.urandom(4).hex()}"
        self.weights = {"a": np.arange(2_000_000, dtype=np.float32), "b": np.ones(7, dtype=np.int64)}
        self.trainer = th.Publisher(server, "policy", "trainer-0")
        self.trainer.add_all(self.weights)
        self.ranks: list[Rank] = []
        self.copies: list[MachineCopy] = []

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in self.weights.values())

    def publish(self, version: int) -> list[str]:
        """What a rank says that has it."""
        self.trainer.unpublish()
        for each in self.weights.values():
            np.add(each, 1, out=each)
        self.trainer.publish(version)
        digest = hashlib.sha256()
        for each in self.weights.values():
            digest.update(each)
        return [str(version), digest.hexdigest()]

    def start(self, count: int) -> list[Rank]:
        self.ranks += [Rank(self.server, self.name, f"rollout-{i}") for i in range(count)]
        return self.ranks

    def copy(self, **options: Any) -> MachineCopy:
        """In this process."""
        made = MachineCopy(self.server, "policy", f"rollout-{len(self.copies)}", name=self.name, **options)
        self.copies.append(made)
        return made


@pytest.fixture
def scene(server: th.ReferenceServer) -> Iterator[Scene]:
    made = Scene(server)
    yield made
    for each in made.ranks:
        each.kill()
    for copy in made.copies:
        copy.close()
    made.trainer.close()


class Halves:
    """A trainer with two shards, and processes of a machine, one of which still uses a view of version 1 of a shard."""

    PATIENCE = 0.3
    """Seconds that the server waits for the shards that do not call."""

    def __init__(self, server: th.ReferenceServer) -> None:
        name = f"test-{os.getpid()}-{os.urandom(4).hex()}"
        self.trainers = [th.Publisher(server, "policy", "trainer-0", shard=(i, 2)) for i in range(2)]
        self.weights = [np.zeros(1000) for _ in range(2)]
        for i, each in enumerate(self.trainers):
            each.add(f"w{i}", self.weights[i])
        self.copies = [MachineCopy(server, "policy", f"rollout-{i}", name=name) for i in range(3)]
        self.kept: dict[str, np.ndarray] = {}

    def publish(self, version: int) -> None:
        for each in self.trainers:
            each.unpublish()
        for weights in self.weights:
            weights[:] = version
        for each in self.trainers:
            each.publish(version)

    def keep(self, shard: int) -> tuple[MachineCopy, MachineCopy]:
        """The owner, which has version 2 and is to receive 3, and one that has not asked yet."""
        owner, other, third = self.copies
        self.publish(1)
        for each in (owner, other):
            each.receive(1, timeout=60)
        self.kept = {name: each for name, each in of(other).items() if name == f"w{shard}"}
        other.let_go()
        self.publish(2)
        owner.receive(2, timeout=60)
        self.publish(3)
        return owner, third


@pytest.fixture
def halves() -> Iterator[Halves]:
    with th.ReferenceServer(recovery_grace=0.1, group_timeout=Halves.PATIENCE) as server:
        made = Halves(server)
        yield made
        made.kept.clear()
        for each in (*made.copies, *made.trainers):
            each.close()


def of(copy: MachineCopy) -> dict[str, np.ndarray]:
    return {name: np.asarray(each) for name, each in copy.tensors()}


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread, and where its result or error will be."""
    out: list[object] = []

    def run() -> None:
        try:
            out.append(call())
        except th.Error as e:
            out.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, out


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)


def wait_for_a_try(owner: MachineCopy) -> None:
    wait_until(lambda: owner._owner is not None and owner._owner._trying is not None)


def wait_for_askers(owner: MachineCopy, count: int) -> None:
    serving = owner._owner
    assert serving is not None
    wait_until(lambda: sum(each.version > 0 for each in list(serving._askers.values())) == count)


def test_four_processes_have_one_copy_and_one_place_in_the_hub(scene: Scene) -> None:
    ranks = scene.start(4)
    for version in (1, 2, 3, 4):
        want = scene.publish(version)
        for each in ranks:
            each.ask("receive", version, 60)
        assert [each.says() for each in ranks] == [[want[0], f"{want[1]}\n"]] * 4
    memories: dict[str, int] = {}
    for each in ranks:
        mapped = each.memories()
        assert sum(mapped.values()) >= 2 * scene.bytes, "it reads the shared memory"
        memories |= mapped
    assert sum(memories.values()) < 2 * scene.bytes + (1 << 20), "two memories, and no more, of all four processes"
    (model,) = scene.trainer.models("policy")
    assert len({each.name.partition("@")[0] for each in model.replicas}) == 2, "the trainer, and one for the machine"


def test_an_owner_that_is_killed_has_a_successor(scene: Scene) -> None:
    ranks = scene.start(3)
    want = scene.publish(1)
    for each in ranks:  # the first one receives
        assert each.does("receive", 1, 60) == want
    for each in ranks[1:]:
        each.ask("receive", 9, 30)
    ranks[0].kill()
    for each in ranks[1:]:
        code, text = each.says()
        assert code == "disconnected"
        assert f"process {ranks[0].process.pid}" in text
        assert "version 9" in text
        assert scene.name in text
    want = scene.publish(2)
    for each in ranks[1:]:
        each.ask("receive", 2, 60)
    assert [each.says() for each in ranks[1:]] == [[want[0], f"{want[1]}\n"]] * 2
    ranks[1].kill()  # while nobody waits: nothing is said of it
    ranks[2].kill()
    want = scene.publish(3)
    assert scene.start(1)[-1].does("receive", 3, 60) == want


def test_an_owner_that_was_killed_between_two_updates_is_not_missed(scene: Scene) -> None:
    first, second = scene.start(2)
    want = scene.publish(1)
    assert first.does("receive", 1, 60) == want
    assert second.does("receive", 1, 60) == want
    first.kill()
    assert second.does("tensors") == want  # as long as it holds them
    assert second.does("receive", 9, 0.5)[0] == "timed_out"
    assert second.does("tensors")[0] == "not_found"
    want = scene.publish(2)
    assert second.does("receive", 2, 60) == want


def test_a_process_that_was_killed_holds_nothing(scene: Scene) -> None:
    first, second = scene.start(2)
    for version in (1, 2):
        want = scene.publish(version)
        assert first.does("receive", version, 60) == want
        if version == 1:
            assert second.does("receive", 1, 60) == want
    scene.publish(3)
    code, text = first.does("receive", 3, 1)
    assert code == "timed_out"
    assert f"which processes {second.process.pid} still hold" in text
    second.kill()
    assert first.does("receive", 3, 60)[0] == "3"


def test_a_child_that_was_forked_keeps_neither_the_name_nor_the_copy(scene: Scene) -> None:
    first, second = scene.start(2)
    want = scene.publish(1)
    assert first.does("receive", 1, 60) == want
    assert second.does("receive", 1, 60) == want
    assert first.does("fork") == ["refused"]
    second.ask("receive", 9, 30)
    first.kill()
    assert second.says()[0] == "disconnected"
    want = scene.publish(2)
    assert second.does("receive", 2, 60) == want


@pytest.mark.parametrize("server_lives", [True, False])
def test_a_program_that_ends_says_so(scene: Scene, server_lives: bool) -> None:
    scene.ranks = [Rank(scene.server, scene.name, f"rollout-{i}", subprocess.PIPE) for i in range(2)]
    first, second = scene.ranks
    want = scene.publish(1)
    assert first.does("receive", 1, 60) == want
    second.ask("receive", 9, 30)
    time.sleep(0.2)  # may be waiting by now
    if not server_lives:  # the end of the workers takes longer
        scene.server.close()
    _, said = first.process.communicate(timeout=60)
    assert second.says()[0] == "disconnected"
    assert first.process.returncode == 0
    assert "Traceback" not in said


def test_one_that_comes_late_finds_what_is_there(scene: Scene) -> None:
    scene.publish(1)
    first, second = scene.copy(), scene.copy()
    assert [(each.version, each.kept) for each in first.receive(1, timeout=60)] == [(1, False)]
    assert [(each.version, each.kept) for each in second.receive(1, timeout=float("inf"))] == [(1, True)]
    assert (of(second)["a"] == scene.weights["a"]).all()


def test_all_hear_at_once_that_an_update_has_failed(scene: Scene) -> None:
    scene.publish(1)
    copies = [scene.copy() for _ in range(3)]
    for each in copies:
        each.receive(1, timeout=60)
        each.let_go()
    scene.publish(2)
    scene.publish(3)
    waiting = [in_thread(lambda each=each: each.receive(2, timeout=30)) for each in copies]  # type: ignore[misc]
    for thread, out in waiting:
        thread.join(60)
        (error,) = out
        assert isinstance(error, th.Unavailable | th.NotFound)
        assert (error.model, error.version) == ("policy", 2)
    for each in copies:
        assert each.version == 1
        assert list(of(each)) == ["a", "b"]  # what was there still is


def test_one_that_waits_for_the_future_keeps_nobody_from_what_is_there(scene: Scene) -> None:
    scene.publish(1)
    owner, early = scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    thread, out = in_thread(lambda: early.receive(9, timeout=30))
    for version in (2, 3):
        time.sleep(0.1)  # the other one may be waiting by now
        scene.publish(version)
        owner.receive(version, timeout=60)
        assert (of(owner)["a"] == scene.weights["a"]).all()
    owner.let_go()
    scene.publish(9)
    thread.join(60)
    assert [each.version for each in out[0]] == [9]  # type: ignore[attr-defined]
    assert (of(early)["a"] == scene.weights["a"]).all()


def test_what_nobody_waits_for_any_more_is_given_up(scene: Scene) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    with pytest.raises(th.TimedOut) as e:
        other.receive(7, timeout=0.3)
    assert e.value.version == 7
    thread, out = in_thread(lambda: other.receive(8, timeout=30))
    time.sleep(0.1)
    other.close()
    thread.join(60)
    assert isinstance(out[0], th.Cancelled)
    scene.publish(9)
    owner.receive(9, timeout=60)
    assert (of(owner)["a"] == scene.weights["a"]).all()


def test_a_view_is_right_for_as_long_as_it_is_kept(scene: Scene) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    for each in (owner, other):
        each.receive(1, timeout=60)
    first, kept = scene.weights["a"].copy(), of(other)
    for version in (2, 3):
        scene.publish(version)
        other.let_go()
        if version == 3:
            with pytest.raises(th.TimedOut, match=f"which processes {os.getpid()} still hold"):
                owner.receive(3, timeout=1)
            assert (kept["a"] == first).all()
            kept.clear()
        owner.receive(version, timeout=60)
    with pytest.raises((th.Unavailable, th.TimedOut)):
        list(other.tensors())  # let go, and another version is live


@pytest.mark.parametrize("shard", [0, 1])
def test_a_view_of_one_shard_delays_the_update_of_all(halves: Halves, shard: int) -> None:
    owner, _ = halves.keep(shard)
    thread, out = in_thread(lambda: owner.receive(3, timeout=60))
    time.sleep(4 * halves.PATIENCE)
    halves.kept.clear()
    thread.join(60)
    assert [each.version for each in out[0]] == [3, 3]  # type: ignore[attr-defined]
    assert all((each == 3).all() for each in of(owner).values())


@pytest.mark.parametrize("shard", [0, 1])
def test_who_keeps_a_view_of_one_shard_is_named(halves: Halves, shard: int) -> None:
    owner, _ = halves.keep(shard)
    with pytest.raises(th.TimedOut, match=f"which processes {os.getpid()} still hold") as e:
        owner.receive(3, timeout=5 * halves.PATIENCE)
    assert (e.value.model, e.value.version) == ("policy", 3)
    assert (halves.kept[f"w{shard}"] == 1).all()
    halves.kept.clear()
    assert [each.kept for each in owner.receive(3, timeout=60)] == [False, False]


@pytest.mark.parametrize("shard", [0, 1])
def test_one_that_gives_up_while_a_view_is_kept_spoils_nothing(halves: Halves, shard: int) -> None:
    owner, third = halves.keep(shard)
    serving, copies = owner._owner, owner._copies
    assert serving is not None
    thread, out = in_thread(lambda: third.receive(3, timeout=60))
    wait_for_a_try(owner)
    time.sleep(halves.PATIENCE / 2)  # the server may have heard of it by now
    third.close()
    thread.join(60)
    assert isinstance(out[0], th.Cancelled)
    wait_until(lambda: serving._trying is None)
    halves.kept.clear()
    assert [each.kept for each in owner.receive(3, timeout=60)] == [False, False]
    assert owner._owner is serving
    assert serving.is_serving
    assert owner._copies == copies


def test_an_update_that_was_cancelled_for_nobody_here_is_made_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier call, of which a shard hears late."""
    scene.publish(1)
    copy, update = scene.copy(), th.SharedCopy.update
    failures = [th.Cancelled("the caller interrupted the update")] * 2

    def is_cancelled(*given: Any, **options: Any) -> th.UpdateReport:
        if failures:
            raise failures.pop()
        return update(*given, **options)

    monkeypatch.setattr(th.SharedCopy, "update", is_cancelled)
    copy.receive(1, timeout=60)
    owner = copy._owner
    assert owner is not None
    assert owner.is_serving
    assert not failures


def test_what_fails_while_the_interpreter_ends_is_the_end_of_the_owner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    copy = scene.copy()
    copy.receive(1, timeout=60)
    monkeypatch.setattr(machine_owner, "is_ending", lambda: True)

    def fails(*_given: Any, **_options: Any) -> None:
        raise th.SystemFailed("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(th.SharedCopy, "update", fails)
    with pytest.raises(th.Disconnected):
        copy.receive(2, timeout=60)


def test_how_a_try_has_ended_that_was_given_up_is_told_to_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publish(1)
    owner, early, late = scene.copy(), scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    may_fail, update = threading.Event(), th.SharedCopy.update

    def fails_once(*given: Any, **options: Any) -> th.UpdateReport:
        if may_fail.is_set():
            return update(*given, **options)
        may_fail.wait(60)
        raise th.GroupFailed("another shard was interrupted")

    monkeypatch.setattr(th.SharedCopy, "update", fails_once)
    in_thread(lambda: early.receive(2, timeout=60))
    wait_for_a_try(owner)
    serving = owner._owner
    assert serving is not None
    trying = serving._trying
    assert trying is not None
    early.close()
    wait_until(lambda: trying.is_given_up)
    thread, out = in_thread(lambda: late.receive(2, timeout=60))
    wait_for_askers(owner, 1)
    owner.let_go()
    may_fail.set()
    scene.publish(2)
    thread.join(60)
    assert [each.version for each in out[0]] == [2]  # type: ignore[attr-defined]


def test_one_that_has_missed_versions_lets_go_of_its_own_when_it_asks(scene: Scene) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    for each in (owner, other):
        each.receive(1, timeout=60)
    scene.publish(2)
    owner.receive(2, timeout=60)
    owner.let_go()
    scene.publish(3)
    other.receive(3, timeout=20)  # into the memory of the version that it had
    assert (of(other)["a"] == scene.weights["a"]).all()


@pytest.mark.parametrize("error", [th.Disconnected, th.TimedOut, th.Unavailable])
def test_a_version_that_another_process_has_replaced_is_asked_for_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: type[th.Error]
) -> None:
    scene.publish(1)
    copy, hold = scene.copy(), th.AttachedCopy.hold
    failures = [error("version 2 is live by now"), error("the owner has ended")]

    def fails_twice(*given: Any, **options: Any) -> th.HeldCopy:
        if failures:
            raise failures.pop()
        return hold(*given, **options)

    monkeypatch.setattr(th.AttachedCopy, "hold", fails_twice)
    copy.receive(1, timeout=60)
    assert (of(copy)["a"] == scene.weights["a"]).all()
    failures += [error("again")] * 1000
    with pytest.raises((error, th.TimedOut)):  # at the deadline
        copy.receive(1, timeout=0.2)


def test_a_process_of_another_user_is_not_trusted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have taken the name by intention."""
    scene.publish(1)
    theirs, mine = scene.copy(), scene.copy()
    theirs.receive(1, timeout=60)
    peers, user = [(77, os.geteuid() + 1)], os.geteuid()
    monkeypatch.setattr(machine, "peer_of", lambda _: peers.pop() if peers else (os.getpid(), user))
    assert [each.kept for each in mine.receive(1, timeout=60)] == [False]
    assert (of(mine)["a"] == scene.weights["a"]).all()
    assert f"process 77 of user {user + 1} has the name of this machine's copy '{scene.name}'" in caplog.text
    theirs.close()
    scene.publish(2)
    mine.receive(2, timeout=60)
    assert (of(mine)["a"] == scene.weights["a"]).all()


def test_an_owner_takes_no_orders_from_another_user(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publish(1)
    with monkeypatch.context() as patched:
        patched.setattr(machine_owner, "peer_of", lambda _: (77, os.geteuid() + 1))
        with pytest.raises(th.Disconnected):
            scene.copy().receive(1, timeout=60)
    scene.copies[0].receive(1, timeout=60)


def test_another_layout_is_learned_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is new, and a trainer with other tensors: engines that are started again can go on."""
    scene.publish(1)
    copy = scene.copy()
    copy.receive(1, timeout=60)
    known = copy._copies

    def differs(*_given: Any, **_options: Any) -> None:
        raise th.LayoutMismatch("tensor 'a' has another shape")

    with monkeypatch.context() as patched:
        patched.setattr(th.SharedCopy, "update", differs)
        with pytest.raises(th.LayoutMismatch):
            copy.receive(2, timeout=60)
    copy.receive(1, timeout=60)
    assert copy._copies != known
    assert (of(copy)["a"] == scene.weights["a"]).all()


def test_who_holds_when_the_owner_closes_keeps_its_bytes(scene: Scene) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    for each in (owner, other):
        each.receive(1, timeout=60)
    first = scene.weights["a"].copy()
    owner.close()
    assert (of(other)["a"] == first).all()
    with pytest.raises(th.Cancelled, match=f"'{scene.name}' was closed"):
        owner.receive(1)
    scene.publish(2)
    other.receive(2, timeout=60)  # is the owner now
    last = scene.copy()
    last.receive(2, timeout=60)
    assert (of(last)["a"] == scene.weights["a"]).all()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_version_that_was_rolled_back_is_received_anew(server: th.ReferenceServer, shards: int) -> None:
    name = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    weights = [np.full(1000, 1.0 + i, dtype=np.float32) for i in range(shards)]
    trainers = [th.Publisher(server, "policy", "trainer-0", shard=(i, shards)) for i in range(shards)]
    for i, (trainer, each) in enumerate(zip(trainers, weights, strict=True)):
        trainer.add(f"w{i}", each)

    def all_do(call: Callable[[th.Publisher], object]) -> None:
        for thread, out in [in_thread(lambda each=each: call(each)) for each in trainers]:  # type: ignore[misc]
            thread.join(60)
            assert not isinstance(out[0], Exception), out[0]

    first, second = (MachineCopy(server, "policy", f"rollout-{i}", name=name) for i in range(2))
    all_do(lambda each: each.publish(1))
    for copy in (first, second):
        assert [each.version for each in copy.receive(1, timeout=60)] == [1] * shards
        copy.let_go()
    for value in (2.0, 3.0):
        all_do(lambda each: each.unpublish())
        if value == 3.0:
            all_do(lambda each: each.roll_back_to(1))
        for each in weights:
            each[:] = value
        all_do(lambda each: each.publish(2))
        for copy, kept in ((first, False), (second, True)):
            assert [each.kept for each in copy.receive(2, timeout=60)] == [kept] * shards
            got = of(copy)
            assert list(got) == [f"w{i}" for i in range(shards)]
            assert all((each == value).all() for each in got.values())
            del got
            copy.let_go()
    for each in (first, second, *trainers):
        each.close()


def test_an_owner_that_was_evicted_joins_anew(scene: Scene) -> None:
    copies = [scene.copy() for _ in range(2)]
    scene.publish(1)
    for each in copies:
        each.receive(1, timeout=60)
    scene.publish(2)
    with th.ServerClient(scene.server) as client:
        for replica in client.models("policy")[0].replicas:
            if replica.name != "trainer-0":
                client.evict("policy", replica.name)
    waiting = [in_thread(lambda each=each: each.receive(2, timeout=30)) for each in copies]  # type: ignore[misc]
    for thread, _ in waiting:
        thread.join(60)
    assert isinstance(waiting[0][1][0], th.Replaced) or isinstance(waiting[1][1][0], th.Replaced)
    for each in copies:
        each.receive(2, timeout=60)
        assert (of(each)["a"] == scene.weights["a"]).all()


def test_two_names_are_two_copies(scene: Scene) -> None:
    scene.publish(1)
    mine = scene.copy()
    other = MachineCopy(scene.server, "policy", "rollout-other", name=f"{scene.name}-other")
    for each in (mine, other):
        assert not each.receive(1, timeout=60)[0].kept
    other.close()


def test_a_model_that_is_not_there_is_named(scene: Scene) -> None:
    with (
        pytest.raises(th.NotFound, match="model 'nothing'") as e,
        MachineCopy(scene.server, "nothing", "rollout-0", name=scene.name) as copy,
    ):
        copy.receive(1, timeout=0.4)
    assert e.value.model == "nothing"


def test_an_owner_that_hangs_is_named(scene: Scene) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(scene.copy()._address)
    listener.listen()
    with pytest.raises(th.TimedOut, match=rf"process {os.getpid()}, .*'{scene.name}',.*hangs") as e:
        scene.copies[0].receive(3, timeout=0.1)
    assert (e.value.model, e.value.version) == ("policy", 3)
    listener.close()
    scene.publish(3)
    scene.copies[0].receive(3, timeout=60)


def test_who_asks_for_what_is_here_does_not_interrupt_what_is_received(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    owner, early, late = scene.copy(), scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    interrupts: list[object] = []
    monkeypatch.setattr(machine_owner._Shards, "interrupt", interrupts.append)
    thread, out = in_thread(lambda: early.receive(9, timeout=30))
    wait_for_a_try(owner)
    for _ in range(3):
        assert [each.kept for each in late.receive(1, timeout=60)] == [True]
    assert not interrupts
    late.let_go()
    scene.publish(9)
    thread.join(60)
    assert [each.version for each in out[0]] == [9]  # type: ignore[attr-defined]


def test_what_is_here_needs_no_server(scene: Scene) -> None:
    scene.publish(1)
    first, second = scene.copy(), scene.copy()
    first.receive(1, timeout=60)
    scene.server.close()
    assert [each.kept for each in second.receive(1, timeout=20)] == [True]
    assert (of(second)["a"] == scene.weights["a"]).all()


def test_an_object_that_is_collected_where_the_owner_s_lock_is_held_ends_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a collection of garbage does, which may begin anywhere."""
    scene.publish(1)
    copy = scene.copy()
    copy.receive(1, timeout=60)
    owner = copy._owner
    assert owner is not None
    joins: list[object] = []
    monkeypatch.setattr(owner._thread, "join", joins.append)
    copy.let_go()
    last = [scene.copies.pop()]
    del copy

    def collects() -> bool:
        with owner._shards._lock:
            last.clear()
            return owner._is_closed

    thread, out = in_thread(collects)
    thread.join(20)
    assert out == [True]
    assert not joins, "a thread that has the lock waits for one that needs it"


def test_one_with_more_time_is_not_told_that_a_model_is_not_there_yet(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    hasty, patient = scene.copy(), scene.copy()
    shards_of_model, may_end = machine_owner.shards_of_model, threading.Event()

    def is_not_there_at_first(*given: Any) -> int:
        if may_end.is_set():
            return shards_of_model(*given)
        may_end.wait(60)
        raise th.NotFound("no version of model 'policy' has been published")

    monkeypatch.setattr(machine_owner, "shards_of_model", is_not_there_at_first)
    first, told = in_thread(lambda: hasty.receive(1, timeout=60))
    wait_for_a_try(hasty)
    second, got = in_thread(lambda: patient.receive(1, timeout=90))
    wait_for_askers(hasty, 2)
    may_end.set()
    for each in (first, second):
        each.join(60)
    assert isinstance(told[0], th.NotFound)
    assert [each.version for each in got[0]] == [1]  # type: ignore[attr-defined]


def test_an_owner_is_told_of_nearly_all_the_time_there_is(scene: Scene) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as owner:
        owner.bind(scene.copy()._address)
        owner.listen()
        owner.settimeout(60)
        thread, _ = in_thread(lambda: scene.copies[0].receive(1, timeout=600))
        with owner.accept()[0] as connection:
            assert 600 > json.loads(connection.recv(1 << 17))["seconds"] > 590
    thread.join(60)


def test_a_worker_that_is_made_while_its_owner_is_collected_is_closed(scene: Scene) -> None:
    shards = machine_owner._Shards(scene.server, "policy", "rollout-0", {})

    class Collects(list[Any]):
        def append(self, each: Any) -> None:
            shards.close()
            super().append(each)

    shards._workers = Collects()
    worker = th.Subscriber(scene.server, "policy", "rollout-0")
    with pytest.raises(th.Cancelled):
        shards._added(worker)
    assert worker.is_closed


def test_the_silence_of_a_server_is_believed_by_those_alone_that_have_time_to_ask(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    owner, hasty, patient = scene.copy(), scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    models, asked = th.SharedCopy.models, threading.Event()

    def answers_late(copy: th.SharedCopy, model: str, seconds: float) -> list[th.Model]:
        asked.set()
        if seconds < 1:
            time.sleep(seconds)
            raise th.TimedOut("the deadline passed while waiting for an answer of the reference server")
        return [dataclasses.replace(each, replicas=()) for each in models(copy, model, seconds)]  # it is withdrawn

    monkeypatch.setattr(th.SharedCopy, "models", answers_late)
    update = th.SharedCopy.update
    updated: list[object] = []
    monkeypatch.setattr(th.SharedCopy, "update", lambda *a, **b: updated.append(a) or update(*a, **b))
    first, told = in_thread(lambda: hasty.receive(1, timeout=1))
    assert asked.wait(60)
    patient.receive(1, timeout=60)
    first.join(60)
    assert updated, "the one that has time has asked, and was told that it is here no more"
    assert isinstance(told[0], th.TimedOut)


@pytest.mark.parametrize("wrong", [{"copies": ""}, {"reports": []}])
def test_an_answer_without_copies_for_all_shards_is_asked_for_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    ask, wrongs = MachineCopy._ask, [wrong]

    def answers_wrongly_once(*given: Any) -> dict[str, Any]:
        return {**ask(*given), **(wrongs.pop() if wrongs else {})}

    monkeypatch.setattr(MachineCopy, "_ask", answers_wrongly_once)
    assert len(other.receive(1, timeout=60)) == 1
    assert (of(other)["a"] == scene.weights["a"]).all()


def test_copies_that_are_closed_meanwhile_are_named_as_those_that_were_updated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    updated = machine_owner._updated
    shards = machine_owner._Shards(scene.server, "policy", "rollout-0", {})
    names = []

    def closes(*given: Any) -> Any:
        ends = updated(*given)
        names.append(shards.copies.name)
        shards.close()
        return ends

    monkeypatch.setattr(machine_owner, "_updated", closes)
    answer = shards.receive(machine_owner._Try(1, time.monotonic() + 60))
    assert answer["copies"] == names[0] != ""
    assert shards.copies.name == ""


def test_one_whose_time_is_up_first_is_told_why(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_GRACE", 30.0)
    scene.publish(1)
    owner, patient, hasty = scene.copy(), scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    thread, _ = in_thread(lambda: patient.receive(8, timeout=60))
    wait_for_a_try(owner)
    for version, why in ((8, "while the version was being received"), (9, "while version 8 was being received")):
        with pytest.raises(th.TimedOut, match=why) as e:
            hasty.receive(version, timeout=0.5)
        assert (e.value.model, e.value.version) == ("policy", version)
    patient.close()
    thread.join(60)


def test_what_an_owner_had_that_has_ended_is_mapped_no_more(scene: Scene) -> None:
    """The next one needs as much memory again."""
    first, second = scene.start(2)
    want = scene.publish(1)
    for each in (first, second):
        assert each.does("receive", 1, 60) == want
    assert second.memories()
    second.ask("receive", 9, 60)
    with th.ServerClient(scene.server) as client:  # else it might ask nobody, and become the owner itself
        wait_until(lambda: any(each.version == 9 for each in client.stuck("policy", older_than=0)))
    first.kill()
    assert second.says()[0] == "disconnected"
    assert second.memories() == {}


def test_copies_that_are_made_anew_replace_those_that_others_have_mapped(scene: Scene) -> None:
    first, second = scene.start(2)
    want = scene.publish(1)
    for each in (first, second):
        assert each.does("receive", 1, 60) == want
    known = set(second.memories())
    with th.ServerClient(scene.server) as client:
        for replica in client.models("policy")[0].replicas:
            if replica.name != "trainer-0":
                client.evict("policy", replica.name)
    scene.publish(2)
    while first.does("receive", 2, 60)[0] == "replaced":
        second.ask("receive", 9, 60)
    assert not known & set(first.memories())
    deadline = time.monotonic() + 30
    while second.memories() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert second.memories() == {}, "it waits, and has let go of what is over"


def test_who_closes_while_it_attaches_holds_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publish(1)
    owner, other = scene.copy(), scene.copy()
    owner.receive(1, timeout=60)
    hold = th.AttachedCopy.hold

    def closes(*given: Any, **options: Any) -> th.HeldCopy:
        held = hold(*given, **options)
        other.close()
        return held

    monkeypatch.setattr(th.AttachedCopy, "hold", closes)
    with pytest.raises(th.Cancelled):
        other.receive(1, timeout=60)
    assert (other._held, other._attached) == ([], [])


def test_a_release_with_other_fields_can_share() -> None:
    told = machine._report_told({"version": 7, "kept": True, "bytes": 5, "of_the_future": 3})
    assert (told.version, told.kept, told.bytes, told.unchanged_bytes, told.sources) == (7, True, 5, 0, ())


@pytest.mark.parametrize("here", [True, False])
def test_an_owner_of_another_protocol_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    scene.publish(1)
    scene.copy()
    monkeypatch.setattr(machine if here else machine_owner, "PROTOCOL", 2)
    said = rf"process {os.getpid()}, .*protocol {1 if here else 2} .* has {2 if here else 1}: run one release"
    with pytest.raises(th.ProtocolMismatch, match=said):
        scene.copies[0].receive(1, timeout=20)
    monkeypatch.undo()
    scene.copies[0].receive(1, timeout=60)


@pytest.mark.parametrize(
    "asked",
    [
        b"no json",
        b"\xff\xfe",
        b"[" * 60000,
        b'{"protocol": 1, "version": Infinity, "seconds": 1}',
        b'{"protocol": 1, "version": -3, "seconds": 1}',
        b'{"protocol": 1, "version": 2, "seconds": NaN}',
        b'{"protocol": 1, "version": ' + b"9" * 5000 + b', "seconds": 1}',
        b'{"protocol": 1, "version": 1}',
    ],
    ids=lambda asked: str(asked[:50]),
)
def test_an_owner_outlives_what_it_cannot_read(scene: Scene, asked: bytes) -> None:
    scene.publish(1)
    copy = scene.copy()
    copy.receive(1, timeout=60)
    owner = copy._owner
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(30)
        stranger.connect(copy._address)
        stranger.send(asked)
        assert stranger.recv(1) == b"", "it is disconnected"
    copy.receive(1, timeout=60)
    assert owner is not None
    assert copy._owner is owner
    assert owner.is_serving


@pytest.mark.parametrize("length", [5, 64])
def test_a_name_that_somebody_has_and_does_not_serve_is_done_without(
    scene: Scene, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    scene.publish(1)
    scene.name = (os.urandom(2).hex() + "x" * 64)[:length]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        taken.bind(scene.copy()._address)
        scene.copies[0].receive(1, timeout=60)
    assert (of(scene.copies[0])["a"] == scene.weights["a"]).all()
    assert f"a process has the name of this machine's copy '{scene.name}', and does not answer" in caplog.text


def test_a_process_without_descriptors_is_told_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = scene.copy()

    def fails(*_given: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", fails)
        with pytest.raises(th.SystemFailed, match=f"'{scene.name}': .*Too many open files"):
            copy.receive(1, timeout=60)

    def has_no_threads(*_given: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", has_no_threads)
        with pytest.raises(th.SystemFailed, match=f"'{scene.name}': can't start new thread"):
            copy.receive(1, timeout=60)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", fails)
        with pytest.raises(th.SystemFailed, match=f"'{scene.name}': .*Too many open files"):
            copy.receive(1, timeout=60)
    scene.publish(1)
    copy.receive(1, timeout=60)


def test_what_cannot_be_shared_is_told_to_all(
    server: th.ReferenceServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = [th.Publisher(server, "halves", "trainer-0", shard=(i, 2)) for i in range(2)]
    for i, each in enumerate(trainers):
        each.add("w", np.ones(1 - i, dtype=np.float32))  # the second shard is empty
    for thread, out in [in_thread(lambda each=each: each.publish(1)) for each in trainers]:  # type: ignore[misc]
        thread.join(60)
        assert isinstance(out[0], th.PublishReport)
    copies = [MachineCopy(server, "halves", f"rollout-{i}", name=scene.name) for i in range(2)]
    for each in copies:
        with pytest.raises(NotShared, match="shard 1 has no bytes") as e:
            each.receive(1, timeout=20)
        assert (e.value.code, e.value.model) == ("invalid_argument", "halves")
    monkeypatch.setattr(machine_owner, "_MOST_SHARDS", 1)
    with pytest.raises(NotShared, match="it has 2 shards, of which 1"):
        copies[1].receive(1, timeout=20)
    for closed in (*copies, *trainers):
        closed.close()


def test_the_reports_of_all_shards_fit_into_a_message() -> None:
    largest = dict.fromkeys(("version", "bytes", "unchanged_bytes"), 2**64 - 1)
    times = dict.fromkeys(("seconds", "wait_seconds", "pull_seconds"), 1234.567890123456)
    told = dataclasses.asdict(th.UpdateReport(kept=False, lost=False, sources=(), **largest, **times))
    del told["sources"]
    assert len(json.dumps([told] * machine_owner._MOST_SHARDS)) < machine_owner.LARGEST_MESSAGE - 1000


def test_a_process_that_may_not_attach_is_told_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a user namespace where its user has no number."""
    scene.publish(1)

    def refuses(*_given: Any) -> None:
        raise th.Refused("the owner may belong to another user")

    monkeypatch.setattr(machine, "AttachedCopy", refuses)
    with pytest.raises(NotShared, match="may belong to another user"):
        scene.copy().receive(1, timeout=60)


@pytest.mark.parametrize(
    "consequence",
    [
        th.GroupFailed("another shard of the replica failed"),
        th.Torn("shard 1 of the replica did not call update()"),
        th.TimedOut("the deadline passed while waiting for the other shards of the replica"),
    ],
)
def test_the_failure_that_others_follow_from_is_the_one_that_is_told(consequence: th.Error) -> None:
    cause = th.Corrupt("bytes do not match")
    for failures in ([consequence, cause], [cause, consequence]):
        assert machine_owner._cause_among(failures) is cause
    waits = th.TimedOut("the deadline passed while waiting for the bytes")
    if not isinstance(consequence, th.TimedOut):
        assert machine_owner._cause_among([consequence, waits]) is waits


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": ""}, "1 to 64 bytes"),
        ({"name": "x" * 65}, "1 to 64 bytes"),
        ({"shard": (0, 2)}, "no option shard"),
        ({"memory": "cuda"}, "memory='cuda'"),
        ({"chunk_byte": 3}, "did you mean 'chunk_bytes'"),
        ({"transport": "pigeon"}, "pigeon"),
    ],
)
def test_wrong_options_are_refused_when_it_is_made(
    server: th.ReferenceServer, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(th.InvalidArgument, match=said):
        MachineCopy(server, "policy", "rollout-0", **{"name": "n", **options})


def test_who_differs_in_more_than_a_port_has_another_name() -> None:
    def name(
        server: str = "tcp://10.0.0.1:1", model: str = "m", engine: str = "1", shared: str = "", **options: object
    ) -> str:
        return machine_name(server, model, options, engine=engine, shared=shared)

    keys = th.Security("server", "public", "secret")
    assert name() == name(listen_port=7000)
    assert name(security=keys) == name(security=th.Security("server", "public", "another"))
    names = [
        name(),
        name("tcp://10.0.0.1:2"),
        name(model="n"),
        name(transport="tcp"),
        name(security=keys),
        name(location=th.Location(rack="r")),
        name(engine="2"),
        name(shared="1"),
        name(shared="2"),
    ]
    assert len(set(names)) == len(names)
    assert name(engine="1", shared="s") == name(engine="2", shared="s")
    assert all(len(name(model=each * 200).encode()) <= 64 for each in "xé模")
