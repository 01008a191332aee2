"""tensorhub.torch: real tensors of torch in place, arenas and receivers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import tensorhub as th  # noqa: E402
from tensorhub import machine_owner  # noqa: E402
from tensorhub.torch import ArenaPublisher, Receiver  # noqa: E402

LAYOUT = [
    ("embedding", torch.bfloat16, (30, 40)),
    ("weight", torch.float8_e4m3fn, (7, 3)),
    ("scale", torch.float32, ()),
    ("mask", torch.bool, (2, 2)),
    ("phase", torch.complex64, (3,)),
]


def tensors(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn(shape).to(dtype) for name, dtype, shape in LAYOUT}


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


def test_modules_in_place(server: th.ReferenceServer) -> None:
    source, target = torch.nn.Linear(50, 60), torch.nn.Linear(50, 60)
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r") as rollout:
        trainer.add_all(source.named_parameters())
        rollout.add_all(target)
        with trainer.published(1):
            rollout.update()
        assert torch.equal(source.weight, target.weight)
        with torch.no_grad():
            source.weight.add_(1)  # what an optimizer does
        with trainer.published(2):
            rollout.update()
        assert torch.equal(source.weight, target.weight)
        source.weight.data = torch.zeros(60, 50)  # what FSDP does
        with pytest.raises(th.InvalidArgument, match="'weight' has moved"):
            trainer.publish(3)


def assigned(module: torch.nn.Sequential) -> None:
    module.load_state_dict({name: tensor.clone() for name, tensor in module.state_dict().items()}, assign=True)


def given_a_parameter(module: torch.nn.Sequential) -> None:
    module[0].weight = torch.nn.Parameter(torch.ones(8, 8))


def given_a_layer(module: torch.nn.Sequential) -> None:
    module[0] = torch.nn.Linear(8, 8)


def parametrized(module: torch.nn.Sequential) -> None:
    torch.nn.utils.parametrizations.weight_norm(module[0])


def tied(module: torch.nn.Sequential) -> None:
    module[1].weight = module[0].weight


@pytest.mark.parametrize("change", [assigned, given_a_parameter, given_a_layer, parametrized, tied])
def test_what_a_module_has_replaced_is_refused(
    server: th.ReferenceServer, change: Callable[[torch.nn.Sequential], None]
) -> None:
    source, target = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)) for _ in range(2))
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r") as rollout:
        trainer.add_all(source)
        rollout.add_all(target)
        with trainer.published(1):
            rollout.update()
        change(source)
        with pytest.raises(th.InvalidArgument, match="make a new worker"):
            trainer.publish(2)
        change(target)
        with pytest.raises(th.InvalidArgument, match="make a new worker"):
            rollout.update()


def test_a_module_whose_hook_makes_copies_is_refused(server: th.ReferenceServer) -> None:
    module = torch.nn.Linear(3, 3)
    module.register_state_dict_post_hook(
        lambda _module, found, prefix, _local: found.update({f"{prefix}bias": found[f"{prefix}bias"].clone()})
    )
    with th.Publisher(server, "m", "t") as trainer:
        with pytest.raises(th.InvalidArgument, match="'bias' is another one each time"):
            trainer.add_all(module)
        trainer.add_all(module.named_parameters())
        trainer.publish(1)


def test_the_memory_of_a_parameter_is_kept(server: th.ReferenceServer) -> None:
    source, target = torch.nn.Linear(5, 6, bias=False), torch.zeros(6, 5)
    shown = source.weight.detach().clone()
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r") as rollout:
        trainer.add_all(source)
        rollout.add("weight", target)
        trainer.publish(1)
        served = weakref.ref(source.weight.untyped_storage())
        source.half()  # gives the parameter other memory
        gc.collect()
        assert served() is not None
        rollout.update(1)
        assert torch.equal(target, shown)


@pytest.mark.parametrize(
    "how",
    ["update", "update_async", "await", "arriving", "install", "progress", "descriptor", "some tensors", "dropped"],
)
def test_weights_that_were_updated_between_forward_and_backward_are_refused_by_torch(
    server: th.ReferenceServer, how: str
) -> None:
    source, target = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    mode: th.Mode = "staged" if how == "install" else "in_place"
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r", mode=mode) as rollout:
        trainer.add_all(source)
        rollout.add_all(target)

        kept: list[th.Update] = []

        def update() -> None:
            if how == "update_async":
                rollout.update_async().wait()
            elif how == "await":
                asyncio.run(awaited(rollout))
            elif how == "arriving":
                list(rollout.update_async().tensors())
            elif how == "progress":
                kept.append(rollout.update_async())
                while not kept[-1].progress().done:
                    time.sleep(0.01)
            elif how == "descriptor":
                kept.append(rollout.update_async())
                select.select([kept[-1]], [], [], 20)
            elif how == "some tensors":
                kept.append(rollout.update_async())
                next(kept[-1].tensors())
                select.select([kept[-1]], [], [], 20)
            elif how == "dropped":
                select.select([rollout.update_async()], [], [], 20)
            else:
                rollout.update()

        trainer.publish(1)
        shown = target(torch.ones(1, 4, requires_grad=True)).sum()
        update()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            shown.backward()
        shown = target(torch.ones(1, 4, requires_grad=True)).sum()
        update()  # which keeps what is there
        with contextlib.suppress(th.TimedOut):
            rollout.update(at_least=2, timeout=0.1)
        shown.backward()


async def awaited(rollout: th.Subscriber) -> None:
    await rollout.update_async()


def test_tensors_of_inference_mode_are_updated(server: th.ReferenceServer) -> None:
    with torch.inference_mode():
        target = torch.zeros(3)
    with th.Publisher(server, "m", "t") as trainer, th.Subscriber(server, "m", "r") as rollout:
        trainer.add("w", torch.ones(3))
        trainer.publish(1)
        rollout.add("w", target)
        rollout.update()
    assert torch.equal(target, torch.ones(3))


def released() -> torch.Tensor:
    whole = torch.zeros(8)
    part = whole[4:]
    whole.untyped_storage().resize_(0)  # what FSDP does
    return part


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (torch.zeros(4, 4).t()[1:], "not contiguous"),
        (torch.zeros(4, 1).expand(4, 4), "not contiguous"),
        (torch.zeros(4, device="meta"), "meta device"),
        (torch.zeros(4, 4).to_sparse(), "not contiguous"),
        (torch.zeros(4, dtype=torch.complex64).conj(), "conjugate view"),
        (torch.zeros(2, dtype=torch.complex64).conj().imag[:1], "negated view"),
        (released(), "a storage of 0 bytes"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(
    server: th.ReferenceServer, tensor: torch.Tensor, sentence: str
) -> None:
    with (
        th.Publisher(server, "m", "t") as trainer,
        pytest.raises(th.InvalidArgument, match=f"'w'.*{sentence}"),
    ):
        trainer.add("w", tensor)


def test_a_model_goes_through_an_arena(server: th.ReferenceServer) -> None:
    arena, receiver = ArenaPublisher(server, "m", "t", LAYOUT), Receiver(server, "m", "r")
    with pytest.raises(th.NotFound, match="no version"):
        list(receiver.tensors())
    for version in (1, 2, 3):
        source = tensors(version)
        for name, tensor in reversed(source.items()):  # in any order
            arena.put(name, tensor)
        arena.commit(version)
        assert [each.version for each in receiver.receive(version)] == [version]
        got = dict(receiver.tensors())
        assert list(got) == [name for name, _, _ in LAYOUT]
        for name, tensor in source.items():
            assert got[name].dtype == tensor.dtype
            assert got[name].shape == tensor.shape
            assert bits(got[name]) == bits(tensor)
    with pytest.raises(th.TimedOut):
        receiver.receive(9, timeout=0.2)
    assert bits(got["embedding"]) == bits(source["embedding"])  # what was there is still there
    assert receiver.version == 3
    receiver.close()
    arena.leave()


@pytest.mark.parametrize("has_layout", [False, True])
def test_an_arena_takes_views_as_what_they_show(server: th.ReferenceServer, has_layout: bool) -> None:
    source = {
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negated": torch.tensor([1 + 2j]).conj().imag,
    }
    layout = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source.items()]
    arena, receiver = ArenaPublisher(server, "m", "t", layout if has_layout else None), Receiver(server, "m", "r")
    for name, tensor in source.items():
        arena.put(name, tensor)
    arena.commit(1)
    receiver.receive(1)
    got = dict(receiver.tensors())
    assert all(torch.equal(got[name], tensor) for name, tensor in source.items())
    receiver.close()
    arena.close()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors count as if they were on a device."""
    monkeypatch.setattr(sys.modules["tensorhub.torch"], "_is_in_host_memory", lambda _: False)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("begins", [True, False])
def test_tensors_of_a_device_are_copied_into_the_arena(server: th.ReferenceServer, begins: bool) -> None:
    with (
        ArenaPublisher(server, "m", "t", LAYOUT) as arena,
        Receiver(server, "m", "r") as receiver,
    ):
        for version in (1, 2, 3):
            source = tensors(version)
            source["phase"] = source["phase"].conj()
            source["embedding"] = source["embedding"].t().contiguous().t()
            if begins:
                arena.begin(version)
            for name, tensor in source.items():
                arena.put(name, tensor)
            arena.commit(version)
            receiver.receive(version)
            received = dict(receiver.tensors())
            assert all(bits(received[name]) == bits(tensor.resolve_conj()) for name, tensor in source.items())


@pytest.mark.usefixtures("device")
def test_nobody_reads_what_a_device_writes(server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {name: torch.full((1000,), 1.0) for name in "ab"}
    with ArenaPublisher(server, "m", "t", [(name, torch.float32, (1000,)) for name in "ab"]) as arena:
        for name, tensor in source.items():
            arena.put(name, tensor)
        arena.commit(1)
        place, shown = arena._publisher.tensor, []

        def where(name: str) -> Any:
            shown.append(arena._publisher.held_version)
            return place(name)

        monkeypatch.setattr(arena._publisher, "tensor", where)
        arena.put("a", source["a"])
        assert shown == [0]  # version 1 was taken back before
        arena.put("a", source["a"] * 2)
        arena.begin(2)
        arena.put("a", source["a"] * 3)
        with pytest.raises(th.InvalidArgument, match="'a' was put already"):
            arena.put("a", source["a"] * 4)
        assert (torch.utils.dlpack.from_dlpack(place("a")) == 3).all()
        with pytest.raises(th.InvalidArgument, match="1 tensors were not put"):
            arena.commit(2)
        arena.put("b", source["b"])
        arena.commit(2)


@pytest.mark.usefixtures("device")
def test_a_tensor_of_a_device_that_could_not_be_copied_can_be_put_again(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ArenaPublisher(server, "m", "t", [("a", torch.float32, (4,))]) as arena:
        arena.begin(1)
        with monkeypatch.context() as failing:
            failing.setattr(torch.Tensor, "copy_", MagicMock(side_effect=RuntimeError("out of memory")))
            with pytest.raises(RuntimeError, match="out of memory"):
                arena.put("a", torch.ones(4))
        arena.put("a", torch.ones(4))
        arena.commit(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_that_numpy_lacks_are_written_in_place_by_torch(server: th.ReferenceServer, dtype: torch.dtype) -> None:
    weights = torch.arange(8, dtype=torch.float32).to(dtype)
    received = torch.zeros(8, dtype=dtype)
    with th.ArenaPublisher(server, "m", "t") as arena, th.Subscriber(server, "m", "r") as rollout:
        arena.declare("wq", (8,), dtype)
        arena.begin(1)
        torch.from_dlpack(arena.tensor("wq")).copy_(weights)
        arena.put("wq")
        arena.commit(1)
        rollout.add("wq", received)
        rollout.update(1)
    assert bits(received) == bits(weights)


def test_a_tensor_of_the_host_that_was_put_stays_when_one_of_a_device_is_put(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["tensorhub.torch"]
    with ArenaPublisher(server, "m", "t", [(name, torch.float32, (4,)) for name in "ab"]) as arena:
        for version in (1, 2):
            arena.put("a", torch.ones(4))
            with monkeypatch.context() as on_device:
                on_device.setattr(module, "_is_in_host_memory", lambda _: False)
                arena.put("b", torch.ones(4))
            arena.commit(version)


def test_an_arena_is_whole_or_not_published(server: th.ReferenceServer) -> None:
    arena = ArenaPublisher(server, "m", "t", LAYOUT)
    source = tensors(1)
    arena.put("mask", source["mask"])
    with pytest.raises(th.InvalidArgument, match="4 tensors were not put, such as 'embedding'"):
        arena.commit(1)
    with pytest.raises(th.InvalidArgument, match=r"'head' is not in the layout"):
        arena.put("head", source["mask"])
    with pytest.raises(th.InvalidArgument, match=r"'scale' is torch.float32 \[2\]"):
        arena.put("scale", torch.zeros(2))
    with pytest.raises(th.InvalidArgument, match=r"'scale' is torch\.float64"):
        arena.put("scale", torch.zeros((), dtype=torch.float64))
    for name, tensor in source.items():
        arena.put(name, tensor)
    arena.commit(1)
    arena.put("mask", source["mask"])
    with pytest.raises(th.InvalidArgument, match="4 tensors"):
        arena.commit(2)
    arena.close()


def test_the_first_commit_of_an_arena_without_a_layout_can_be_repeated() -> None:
    with th.ReferenceServer() as gone:
        address = gone.address
    arena, source = ArenaPublisher(address, "m", "t", join_timeout=0.3), tensors(1)
    for name, tensor in source.items():
        arena.put(name, tensor)
    with pytest.raises((th.Disconnected, th.TimedOut)):
        arena.commit(1)
    with th.ReferenceServer(address) as server:
        arena.commit(1)
        receiver = Receiver(server, "m", "r")
        receiver.receive()
        got = dict(receiver.tensors())
        assert all(bits(got[name]) == bits(tensor) for name, tensor in source.items())
        receiver.close()
        arena.close()


@pytest.mark.parametrize("has_layout", [False, True])
def test_a_commit_of_nothing_is_refused_and_can_be_made_good(server: th.ReferenceServer, has_layout: bool) -> None:
    with ArenaPublisher(server, "m", "t", [("w", torch.float32, (3,))] if has_layout else None) as arena:
        with pytest.raises(th.InvalidArgument, match="put"):
            arena.commit(1)
        arena.put("w", torch.ones(3))
        assert arena.commit(1).version == 1


def without_memory_of_its_own() -> torch.Tensor:
    """As a DTensor, a copy of which has none either."""
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("has_layout", [False, True])
def test_what_an_arena_cannot_take_is_refused_by_name(server: th.ReferenceServer, has_layout: bool) -> None:
    with ArenaPublisher(server, "m", "t", [("w", torch.float32, (3,))] if has_layout else None) as arena:
        for given in (np.ones(3, dtype=np.float32), [1.0, 2.0, 3.0], None):
            with pytest.raises(TypeError, match=rf"'w' is of type {type(given).__name__}.*from_numpy"):
                arena.put("w", given)
        with pytest.raises(th.InvalidArgument, match=r"'w' has no memory of its own.*full_tensor"):
            arena.put("w", without_memory_of_its_own())
        arena.put("w", torch.ones(3))
        arena.commit(1)


def test_a_receiver_that_could_not_learn_a_layout_learns_it_later(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena, receiver = ArenaPublisher(server, "m", "t", LAYOUT), Receiver(server, "m", "r")
    source = tensors(1)
    for name, tensor in source.items():
        arena.put(name, tensor)
    arena.commit(1)

    def fails_after_some(shard: th.Subscriber, name: str, shape: tuple[int, ...], dtype: str) -> None:
        if name == "mask":
            raise MemoryError
        allocate(shard, name, shape, dtype)

    allocate = th.Subscriber.allocate
    with monkeypatch.context() as patched:
        patched.setattr(th.Subscriber, "allocate", fails_after_some)
        with pytest.raises(MemoryError):
            receiver.receive()
    receiver.receive()
    got = dict(receiver.tensors())
    assert all(bits(got[name]) == bits(tensor) for name, tensor in source.items())
    receiver.close()
    arena.close()


def test_a_receiver_takes_all_shards_of_one_version(server: th.ReferenceServer) -> None:
    arenas = [ArenaPublisher(server, "m", "t", LAYOUT[i::2], shard=(i, 2)) for i in range(2)]
    source = tensors(1)
    for i, arena in enumerate(arenas):
        for name, _, _ in LAYOUT[i::2]:
            arena.put(name, source[name])
        if i == 0:
            import threading

            first = threading.Thread(target=arena.commit, args=(1,))
            first.start()
        else:
            arena.commit(1)
            first.join()
    receiver = Receiver(server, "m", "r")
    assert [each.version for each in receiver.receive()] == [1, 1]
    got = dict(receiver.tensors())
    assert sorted(got) == sorted(source)
    assert all(bits(got[name]) == bits(tensor) for name, tensor in source.items())
    receiver.close()
    for arena in arenas:
        arena.close()


def test_a_receiver_gives_tensors_as_they_arrive(server: th.ReferenceServer) -> None:
    arena, receiver = ArenaPublisher(server, "m", "t", LAYOUT), Receiver(server, "m", "r")
    for version in (1, 2):
        source = tensors(version)
        for name, tensor in source.items():
            arena.put(name, tensor)
        arena.commit(version)
        got = dict(receiver.arriving(version))
        assert receiver.version == version
        assert list(got) == [name for name, _, _ in LAYOUT]
        for name, tensor in source.items():
            assert bits(got[name]) == bits(tensor), name
    given_up = receiver.arriving(at_least=3, timeout=20)
    arena.put("mask", source["mask"])
    with pytest.raises(th.TimedOut):
        next(receiver.arriving(at_least=3, timeout=0.3))
    given_up.close()
    assert receiver.version == 2
    receiver.close()
    arena.close()


def test_receivers_that_cannot_share_have_copies_of_their_own(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine_owner, "_MOST_SHARDS", 0)
    arena, name = ArenaPublisher(server, "m", "t", LAYOUT), f"test-{os.getpid()}-{os.urandom(4).hex()}"
    receivers = [Receiver(server, "m", f"r{i}", machine=name) for i in range(2)]
    for version in (1, 2):
        source = tensors(version)
        for each, tensor in source.items():
            arena.put(each, tensor)
        arena.commit(version)
        for receiver in receivers:
            assert [(each.version, each.kept) for each in receiver.receive(version)] == [(version, False)]
            assert receiver.version == version
            assert {each: bits(tensor) for each, tensor in receiver.tensors()} == {
                each: bits(tensor) for each, tensor in source.items()
            }
            receiver.let_go()
    assert caplog.text.count("in memory of its own") == 2
    for receiver in receivers:
        receiver.close()
    arena.close()


def test_receivers_of_a_machine_share_a_copy(server: th.ReferenceServer) -> None:
    arena, name = ArenaPublisher(server, "m", "t", LAYOUT), f"test-{os.getpid()}-{os.urandom(4).hex()}"
    receivers = [Receiver(server, "m", f"r{i}", machine=name) for i in range(2)]
    assert [each._asker for each in receivers] == [None, None], "none has a worker of its own, with its ports"
    with pytest.raises(th.NotFound, match="no version"):
        list(receivers[0].tensors())
    for version in (1, 2, 3):
        source = tensors(version)
        for each, tensor in source.items():
            arena.put(each, tensor)
        arena.commit(version)
        for receiver, kept in zip(receivers, (False, True), strict=True):
            if version == 3:
                got = dict(receiver.arriving(version))
            else:
                assert [(each.version, each.kept) for each in receiver.receive(version)] == [(version, kept)]
                got = dict(receiver.tensors())
            assert receiver.version == version
            assert list(got) == [each for each, _, _ in LAYOUT]
            for each, tensor in source.items():
                assert (got[each].dtype, got[each].shape) == (tensor.dtype, tensor.shape)
                assert bits(got[each]) == bits(tensor)
            del got
            receiver.let_go()
    for wrong in ({}, {"at_least": 3}):
        with pytest.raises(th.InvalidArgument, match="takes version="):
            receivers[0].receive(**wrong)
    for receiver in receivers:
        receiver.close()
    arena.close()


def test_a_receiver_of_a_model_that_is_not_there_says_so(server: th.ReferenceServer) -> None:
    receiver = Receiver(server, "m", "r")
    with pytest.raises(th.NotFound, match="no version of model 'm'"):
        receiver.receive(timeout=0.3)
    receiver.close()


@pytest.mark.parametrize("seconds", [None, "3", float("nan")])
@pytest.mark.parametrize("call", ["receive", "arriving"])
def test_a_receivers_times_are_numbers(server: th.ReferenceServer, call: str, seconds: Any) -> None:
    with (
        Receiver(server, "policy", "rollout-0") as receiver,
        pytest.raises((TypeError, th.InvalidArgument), match="time-out has to be a number of seconds"),
    ):
        list(getattr(receiver, call)(timeout=seconds))
