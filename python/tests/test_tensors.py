"""What is taken as a tensor, and what is refused by name."""

from __future__ import annotations

import array
import gc
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorhub as th
from tensorhub import _core


@pytest.fixture
def trainer(server: th.ReferenceServer) -> th.Publisher:
    return th.Publisher(server, "policy", "trainer-0")


@pytest.fixture
def rollout(server: th.ReferenceServer) -> th.Subscriber:
    return th.Subscriber(server, "policy", "rollout-0")


class Dlpack:
    """Speaks DLPack and nothing else."""

    def __init__(self, of: np.ndarray) -> None:
        self.of = of

    def __dlpack__(self, **given: object) -> object:
        return self.of.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.of.__dlpack_device__()


class Device:
    def __init__(self, kind: str) -> None:
        self.type = kind


class Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Torchlike:
    """What the binding uses of a torch.Tensor."""

    def __init__(self, of: np.ndarray, dtype: str = "torch.float32", device: str = "cpu") -> None:
        self.of = of
        self.dtype = Dtype(dtype)
        self.device = Device(device)
        self.shape = of.shape

    def data_ptr(self) -> int:
        return self.of.ctypes.data

    def is_contiguous(self) -> bool:
        return bool(self.of.flags.c_contiguous)


class Storage:
    """What the binding uses of a torch.UntypedStorage: the memory, which its tensors share."""

    def __init__(self, of: np.ndarray) -> None:
        self.of = of

    def nbytes(self) -> int:
        return self.of.nbytes

    def release(self) -> None:
        """As `resize_(0)`."""
        self.of = np.zeros(0, dtype=np.uint8)


class Stored(Torchlike):
    """A tensor with a storage, in which it begins after `offset` elements."""

    def __init__(self, of: np.ndarray, offset: int = 0, *, is_negated: bool = False) -> None:
        super().__init__(of[offset:])
        self.storage = Storage(of)
        self.offset = offset
        self.is_negated = is_negated

    def data_ptr(self) -> int:  # as torch's: a view of a released storage has an address
        return self.of.ctypes.data

    def untyped_storage(self) -> Storage:
        return self.storage

    def storage_offset(self) -> int:
        return self.offset

    def is_neg(self) -> bool:
        return self.is_negated


class Storageless(Torchlike):
    """As a DTensor: the shape of the whole tensor, and no memory of its own."""

    def data_ptr(self) -> int:
        return 0


class Counted(Torchlike):
    """A tensor whose versions torch counts, unless it is of inference mode."""

    def __init__(self, of: np.ndarray, *, is_inference: bool = False) -> None:
        super().__init__(of)
        self._is_inference = is_inference

    def is_inference(self) -> bool:
        return self._is_inference


class Module:
    """As a torch.nn.Module: `state_dict` gives other tensors over the same memory, unless it is told to keep them."""

    def __init__(self, **parameters: Torchlike) -> None:
        self.parameters = parameters

    def state_dict(self, *, keep_vars: bool = False) -> dict[str, Torchlike]:
        if keep_vars:
            return dict(self.parameters)
        return {name: Torchlike(each.of) for name, each in self.parameters.items()}


def test_a_tensor_without_memory_is_refused(server: th.ReferenceServer, trainer: th.Publisher) -> None:
    nothing = Storageless(np.zeros(6, dtype=np.float32))
    with pytest.raises(th.InvalidArgument, match="'w' has no memory of its own"):
        trainer.add("w", nothing)
    trainer.add("empty", Storageless(np.zeros((0, 3), dtype=np.float32)))
    with th.ArenaPublisher(server, "other", "trainer-0") as arena:
        arena.declare("w", (6,), "f32")
        with pytest.raises(th.InvalidArgument, match="'w' has no memory of its own"):
            arena.put("w", nothing)


def test_a_module_is_watched_and_its_tied_tensors_are_added_once(trainer: th.Publisher) -> None:
    embedding = Torchlike(np.zeros(6, dtype=np.float32))
    trainer.add_all(Module(embedding=embedding, norm=Torchlike(np.zeros(2, dtype=np.float32)), head=embedding))
    trainer.publish(1)
    assert [each.name for each in trainer.describe_model()] == ["embedding", "norm"]
    trainer.unpublish()
    embedding.of = np.ones(6, dtype=np.float32)  # as `parameter.data = ...`
    with pytest.raises(th.InvalidArgument, match="'embedding' has moved"):
        trainer.publish(2)


class Copied(Module):
    """A module with a hook that makes copies."""

    def state_dict(self, *, keep_vars: bool = False) -> dict[str, Torchlike]:
        return {name: Torchlike(each.of.copy()) for name, each in self.parameters.items()}


def zeros_like_torch(count: int = 6) -> Torchlike:
    return Torchlike(np.zeros(count, dtype=np.float32))


def test_a_tensor_that_a_module_has_replaced_is_refused_by_name(trainer: th.Publisher) -> None:
    module = Module(w=zeros_like_torch(), norm=zeros_like_torch())
    trainer.add_all(module)
    module.parameters["w"] = Torchlike(module.parameters["w"].of)  # another view of the same memory
    trainer.publish(1)
    trainer.unpublish()
    added = module.parameters["w"]
    module.parameters["w"] = zeros_like_torch()
    for publish in (trainer.publish, trainer.publish_snapshot):
        with pytest.raises(th.InvalidArgument, match=r"'w' is another one in its module now.*make a new worker"):
            publish(2)
    with pytest.raises(th.InvalidArgument, match="'w' is another one"):
        trainer.join()
    module.parameters["w"] = added
    trainer.publish(2)


@pytest.mark.parametrize("mode", ["in_place", "staged"])
def test_a_rollout_whose_module_has_replaced_a_tensor_is_not_updated(server: th.ReferenceServer, mode: th.Mode) -> None:
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0", mode=mode) as rollout,
    ):
        trainer.add("w", np.ones(6, dtype=np.float32))
        trainer.publish(1)
        module = Module(w=zeros_like_torch())
        rollout.add_all(module)
        if mode == "staged":
            rollout.stage()
        module.parameters["w"] = zeros_like_torch()
        calls = [rollout.update, *([rollout.update_async] if mode == "in_place" else [rollout.stage, rollout.install])]
        for call in calls:
            with pytest.raises(th.InvalidArgument, match="'w' is another one in its module now"):
                call()
        assert (module.parameters["w"].of == 0).all()


def test_tensors_that_a_module_ties_unties_loses_or_gains_are_refused_by_name(server: th.ReferenceServer) -> None:
    def refused(change: Callable[[dict[str, Torchlike]], object]) -> str:
        embedding = zeros_like_torch()
        module = Module(embedding=embedding, tied=embedding, head=zeros_like_torch())
        with th.Publisher(server, "policy", "trainer-0") as trainer:
            trainer.add_all(module)
            change(module.parameters)
            with pytest.raises(th.InvalidArgument) as raised:
                trainer.publish(1)
        return raised.value.sentence

    assert "'head' is another one" in refused(lambda now: now.update(head=now["embedding"]))
    assert "'tied' is another one" in refused(lambda now: now.update(tied=zeros_like_torch()))
    assert "'head' is not in its module any more" in refused(lambda now: now.pop("head"))
    assert "'bias' is new in its module" in refused(lambda now: now.update(bias=zeros_like_torch()))


def test_a_module_whose_state_dict_makes_copies_is_refused_by_name(trainer: th.Publisher) -> None:
    with pytest.raises(th.InvalidArgument, match=r"'w' is another one each time.*named_parameters"):
        trainer.add_all(Copied(w=zeros_like_torch()))


def test_a_module_that_leads_back_to_its_worker_is_collected_with_it(server: th.ReferenceServer) -> None:
    def used() -> list[weakref.ref[object]]:
        trainer, module = th.Publisher(server, "policy", "trainer-0"), Module(w=zeros_like_torch())
        module.worker = trainer  # type: ignore[attr-defined]
        trainer.add_all(module)
        trainer.publish(1)
        return [weakref.ref(trainer), weakref.ref(module), weakref.ref(module.parameters["w"])]

    seen = used()
    gc.collect()
    assert all(each() is None for each in seen)


class Uninitialized(Torchlike):
    """As a parameter of a lazy module."""

    def is_contiguous(self) -> bool:
        raise ValueError("call forward first")


def test_what_a_tensor_raises_is_told_without_its_traceback(trainer: th.Publisher) -> None:
    with pytest.raises(th.InvalidArgument) as refused:
        trainer.add("w", Uninitialized(np.zeros(3, dtype=np.float32)))
    assert refused.value.sentence == "tensor 'w' cannot be read: ValueError: call forward first"


def test_a_tensor_that_is_not_contiguous_is_not_to_be_copied_if_it_is_to_be_written(
    trainer: th.Publisher, rollout: th.Subscriber
) -> None:
    for worker, has_copy in ((trainer, True), (rollout, False)):
        with pytest.raises(th.InvalidArgument, match="not contiguous") as refused:
            worker.add("w", np.zeros((4, 4)).T[1:])
        assert ("contiguous copy" in str(refused.value)) == has_copy


def test_memory_that_cannot_be_written_is_refused_though_its_tensor_says_nothing(
    trainer: th.Publisher, rollout: th.Subscriber, tmp_path: Path
) -> None:
    np.ones(16, dtype=np.float32).tofile(tmp_path / "w")
    mapped = Torchlike(np.memmap(tmp_path / "w", dtype=np.float32, mode="r"))
    with pytest.raises(th.InvalidArgument, match="'w' is read-only"):
        rollout.add("w", mapped)
    trainer.add("w", mapped)
    trainer.publish(1)
    rollout.add("w", Torchlike(np.memmap(tmp_path / "w", dtype=np.float32, mode="r+")))
    rollout.update()


def test_a_time_out_that_is_no_number_and_names_that_are_none_are_refused(
    trainer: th.Publisher, rollout: th.Subscriber
) -> None:
    trainer.add("w", np.zeros(3))
    rollout.add("w", np.zeros(3))
    calls: list[Callable[..., object]] = [rollout.update, rollout.unpublish, rollout.models, rollout.why, rollout.wait]
    for call in calls:
        for given in (None, "soon"):
            with pytest.raises(TypeError, match="a time-out has to be a number of seconds"):
                call(timeout=given)
    with pytest.raises(TypeError, match=r"changed= takes the names of tensors, and got 1"):
        trainer.publish(1, changed=[1])  # type: ignore[list-item]


def test_every_protocol_is_taken(trainer: th.Publisher) -> None:
    trainer.add("numpy", np.zeros((3, 4), dtype=np.float16))
    trainer.add("scalar", np.zeros((), dtype=np.int64))
    trainer.add("dlpack", Dlpack(np.zeros((2, 5), dtype=np.float32)))
    trainer.add("buffer", array.array("d", [1, 2, 3]))
    trainer.add("bytes", b"read-only is enough to publish")
    trainer.add("bytearray", bytearray(10))
    trainer.add("torch", Torchlike(np.zeros(6, dtype=np.uint16), "torch.bfloat16"))
    trainer.add("fp8", Torchlike(np.zeros(6, dtype=np.uint8), "torch.float8_e4m3fn"))
    trainer.add("mx scales", Torchlike(np.zeros(6, dtype=np.uint8), "torch.float8_e8m0fnu"))
    trainer.add("fp4", Torchlike(np.zeros(6, dtype=np.uint8), "torch.float4_e2m1fn_x2"))
    trainer.publish(1)
    seen = [(each.name, each.dtype, each.shape) for each in trainer.describe_model()]
    assert seen == [
        ("numpy", "f16", (3, 4)),
        ("scalar", "i64", ()),
        ("dlpack", "f32", (2, 5)),
        ("buffer", "f64", (3,)),
        ("bytes", "u8", (30,)),
        ("bytearray", "u8", (10,)),
        ("torch", "bf16", (6,)),
        ("fp8", "f8_e4m3", (6,)),
        ("mx scales", "f8_e8m0", (6,)),
        ("fp4", "f4_e2m1_x2", (6,)),
    ]


def read_only() -> np.ndarray:
    out = np.zeros(4)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (np.zeros((4, 4)).T[1:], "not contiguous"),
        (Dlpack(np.zeros((4, 4))[:, ::2]), "not contiguous"),
        (Torchlike(np.zeros((4, 4)).T[1:]), "not contiguous"),
        (np.zeros(4, dtype=">f4"), "byte order"),
        (np.zeros(4, dtype=[("a", "f4"), ("b", "i2")]), "does not know"),
        (np.array(["text"]), "does not know"),
        (Torchlike(np.zeros(4), "torch.qint8"), "does not know"),
        (Torchlike(np.zeros(4), device="meta"), "meta device"),
        (Torchlike(np.zeros(4), device="cuda"), "host memory only"),
        (read_only(), "read-only"),
        (b"read-only", "read-only"),
        (np.float32(3), "is a scalar"),
        (np.zeros(3).max(), "is a scalar"),
        (3.5, "of type float"),
        ("text", "of type str"),
        (None, "of type NoneType"),
        ([1.0, 2.0], "of type list"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(rollout: th.Subscriber, tensor: object, sentence: str) -> None:
    with pytest.raises(th.InvalidArgument, match=sentence) as refused:
        rollout.add("layers.0.weight", tensor)
    assert "'layers.0.weight'" in str(refused.value)


def test_tensors_that_overlap_are_refused_by_name(trainer: th.Publisher) -> None:
    whole = np.zeros(100, dtype=np.float32)
    trainer.add("whole", whole)
    trainer.add("part", whole[10:20])
    with pytest.raises(th.InvalidArgument, match=r"'part'.*if they are tied, add the memory once"):
        trainer.publish(1)


def test_a_name_twice_is_refused(trainer: th.Publisher) -> None:
    trainer.add("w", np.zeros(3))
    with pytest.raises(th.InvalidArgument, match="'w'"):
        trainer.add("w", np.zeros(4))


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (("c", None), "'c'.*of type NoneType"),
        (("a", np.zeros(3)), "'a' was added twice"),
        (("there", np.zeros(3)), "'there' was added twice"),
        (("", np.zeros(3)), "a tensor has no name"),
        ((3, np.zeros(3)), "a tensor's name is of type int"),
    ],
)
def test_all_are_added_or_none(rollout: th.Subscriber, last: tuple[str, object], sentence: str) -> None:
    rollout.add("there", np.zeros(3))
    with pytest.raises((th.InvalidArgument, TypeError), match=sentence):
        rollout.add_all([("a", np.zeros(3)), ("b", np.zeros(3)), last])
    rollout.add_all({"a": np.zeros(3), "b": np.zeros(3)})
    rollout.join()
    assert [each.name for each in rollout.describe_model()] == ["there", "a", "b"]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_tensor_that_has_moved_is_refused_by_name(trainer: th.Publisher, kind: str) -> None:
    if kind == "torch":
        moving = Torchlike(np.zeros(100, dtype=np.float32))
        trainer.add("w", moving)
        trainer.publish(1)
        trainer.unpublish()
        moving.of = np.zeros(100, dtype=np.float32)  # as `param.data = ...`
    else:
        array_ = np.zeros(100, dtype=np.float32)
        trainer.add("w", array_)
        array_.resize(50_000_000, refcheck=False)
    with pytest.raises(th.InvalidArgument, match="'w' has moved"):
        trainer.publish(2)


def strided(of: np.ndarray) -> np.ndarray:
    return of.T


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (strided, "'w' is not contiguous"),
        (lambda of: of.reshape(2, 8), r"'w' is f32 \[2, 8\] now, and was added as f32 \[4, 4\]"),
        (lambda of: of.view(np.int32), r"'w' is i32 \[4, 4\] now, and was added as f32 \[4, 4\]"),
    ],
)
def test_a_tensor_that_shows_the_same_memory_as_another_is_refused(
    trainer: th.Publisher, kind: str, change: Callable[[np.ndarray], np.ndarray], sentence: str
) -> None:
    of = np.zeros((4, 4), dtype=np.float32)
    changed = change(of)
    given: Any = Torchlike(of) if kind == "torch" else of
    trainer.add("w", given)
    trainer.publish(1)
    trainer.unpublish()
    if kind == "torch":
        given.of, given.shape, given.dtype = changed, changed.shape, Dtype(f"torch.{changed.dtype}")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            of.dtype, of.shape, of.strides = changed.dtype, changed.shape, changed.strides
    with pytest.raises(th.InvalidArgument, match=sentence):
        trainer.publish(2)


def test_a_worker_that_is_closed_lets_its_tensors_go(server: th.ReferenceServer) -> None:
    for worker in (th.Publisher(server, "policy", "trainer-0"), th.Subscriber(server, "policy", "rollout-0")):
        memory = np.zeros(100, dtype=np.float32)
        module = Module(w=Torchlike(memory))
        gone = weakref.ref(memory), weakref.ref(module)
        worker.add_all(module)
        worker.join()
        del memory, module
        gc.collect()
        assert all(each() is not None for each in gone)
        worker.close()
        gc.collect()
        assert all(each() is None for each in gone)
        worker.close()


def test_tensors_of_a_worker_that_is_closed_stay_for_its_running_update(server: th.ReferenceServer) -> None:
    rollout = th.Subscriber(server, "policy", "rollout-0")
    memory = np.zeros(100, dtype=np.float32)
    gone = weakref.ref(memory)
    rollout.add("w", memory)
    del memory
    update = rollout.update_async(5)
    rollout.close()
    gc.collect()
    assert gone() is not None
    update.close()


def test_the_memory_of_a_tensor_that_has_moved_is_kept(trainer: th.Publisher) -> None:
    """It is served until the worker ends, whatever a tensor has been given instead."""
    parameter = Stored(np.ones(100, dtype=np.float32))
    served = weakref.ref(parameter.storage)
    trainer.add("w", parameter)
    trainer.publish(1)
    parameter.storage = Storage(np.zeros(100, dtype=np.float32))  # as `param.data = ...`, `module.half()`
    parameter.of = parameter.storage.of
    gc.collect()
    assert served() is not None
    trainer.unpublish()
    with pytest.raises(th.InvalidArgument, match="'w' has moved"):
        trainer.publish(2)


class Weights(np.ndarray):  # type: ignore[type-arg]
    """Of an owner, as a parameter of torch leads to whose method is its hook."""

    owner: object = None


class Owner:
    def __init__(self, worker: th.Publisher | th.Subscriber) -> None:
        self.worker = worker
        self.weights = np.arange(100.0).view(Weights)
        self.weights.owner = self
        worker.add("w", self.weights)


class Paired(tuple):  # type: ignore[type-arg]
    """As a torch.Tensor, the first of two. Python's collector takes no tuple apart: the worker has to give it up."""

    __slots__ = ()
    dtype = Dtype("torch.float64")
    device = Device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return self[0].shape

    def data_ptr(self) -> int:
        return self[0].ctypes.data

    def is_contiguous(self) -> bool:
        return True


def added_in_a_cycle(worker: th.Publisher | th.Subscriber) -> list[weakref.ref[object]]:
    owner = Owner(worker)
    return [weakref.ref(owner), weakref.ref(worker), weakref.ref(owner.weights)]


def added_in_a_cycle_of_the_core(worker: th.Publisher | th.Subscriber) -> list[weakref.ref[object]]:
    weights = np.arange(100.0)
    core = worker._inner
    assert isinstance(core, (_core.Publisher, _core.Subscriber))
    core.add("w", Paired((weights, core)))
    return [weakref.ref(weights)]


def replicas_of(client: th.ServerClient) -> list[str]:
    return [replica.name for model in client.models() for replica in model.replicas]


@pytest.mark.parametrize("add", [added_in_a_cycle, added_in_a_cycle_of_the_core])
@pytest.mark.parametrize("kind", ["trainer", "rollout"])
def test_a_worker_whose_tensors_lead_back_to_it_is_collected(
    server: th.ReferenceServer, kind: str, add: Callable[[th.Publisher | th.Subscriber], list[weakref.ref[object]]]
) -> None:
    def used() -> list[weakref.ref[object]]:
        if kind == "trainer":
            trainer = th.Publisher(server, "policy", "trainer-0")
            seen = add(trainer)
            trainer.publish(1)
            return seen
        with th.Publisher(server, "policy", "trainer-0") as source:
            source.add("w", np.zeros(100))
            source.publish(1)
            rollout = th.Subscriber(server, "policy", "rollout-0")
            seen = add(rollout)
            rollout.update()
            return seen

    with th.ServerClient(server) as client:
        gc.collect()
        gc.disable()  # else it may come before it is looked for
        try:
            seen = used()
            assert all(each() is not None for each in seen)
            name = f"{kind}-0"
            assert name in replicas_of(client)
            gc.collect()
        finally:
            gc.enable()
        assert all(each() is None for each in seen)
        until = time.monotonic() + 10
        while name in replicas_of(client):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_worker_in_a_cycle_that_is_held_serves_on(server: th.ReferenceServer) -> None:
    trainer = th.Publisher(server, "policy", "trainer-0")
    Owner(trainer)
    gc.collect()
    trainer.publish(1)
    gc.collect()
    with th.Subscriber(server, "policy", "rollout-0") as rollout:
        target = np.zeros(100)
        rollout.add("w", target)
        rollout.update()
    assert np.array_equal(target, np.arange(100.0))
    trainer.close()


@pytest.mark.parametrize("takes_lists", [True, False])
def test_torch_is_told_of_what_is_written(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch, takes_lists: bool
) -> None:
    told: list[object] = []

    def increment_version(given: object) -> None:
        if isinstance(given, list) and not takes_lists:
            raise TypeError
        told.extend(given if isinstance(given, list) else [given])

    graph = types.SimpleNamespace(increment_version=increment_version)
    torch = types.SimpleNamespace(Tensor=Counted, autograd=types.SimpleNamespace(graph=graph))
    monkeypatch.setitem(sys.modules, "torch", torch)
    counted, inference = (
        Counted(np.zeros(6, dtype=np.float32)),
        Counted(np.zeros(6, dtype=np.float32), is_inference=True),
    )
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0") as rollout,
    ):
        trainer.add_all({name: np.ones(6, dtype=np.float32) for name in ("a", "b", "c")})
        rollout.add("a", counted)
        rollout.add_all({"b": np.zeros(6, dtype=np.float32), "c": inference})
        trainer.publish(1)
        rollout.update()
        assert told == [counted]
        rollout.update()
        assert told == [counted]
        with pytest.raises(th.TimedOut):
            rollout.update(at_least=2, timeout=0.1)
        assert told == [counted]
        trainer.unpublish()
        trainer.publish(2)
        with rollout.update_async() as update:
            update.wait()
        assert told[2:] in ([], [counted])  # at the begin, too, if it knew of version 2 then
    told.clear()
    with th.Subscriber(server, "policy", "rollout-1", mode="staged") as rollout:
        rollout.add_all({"a": counted, "b": np.zeros(6, dtype=np.float32), "c": inference})
        with pytest.raises(th.NotFound, match="nothing is staged"):
            rollout.install()
        assert told == []


def test_a_part_of_a_released_storage_is_refused_by_name(trainer: th.Publisher) -> None:
    part = Stored(np.ones(100, dtype=np.float32), 40)
    trainer.add("there", part)
    released = Stored(np.ones(100, dtype=np.float32), 40)
    released.storage.release()  # as FSDP does
    with pytest.raises(
        th.InvalidArgument, match=r"'w' has a storage of 0 bytes, expected at least 400: .*add it while"
    ):
        trainer.add("w", released)


def test_a_negated_view_is_refused_by_name(trainer: th.Publisher) -> None:
    with pytest.raises(th.InvalidArgument, match=r"'w' is a negated view: call resolve_neg\(\)"):
        trainer.add("w", Stored(np.ones(4, dtype=np.float32), is_negated=True))


def test_memory_that_is_exported_cannot_be_resized(trainer: th.Publisher) -> None:
    memory = bytearray(100)
    trainer.add("w", memory)
    with pytest.raises(BufferError):
        memory.extend(b"x" * 1_000_000)


def test_tensors_are_kept_alive(server: th.ReferenceServer) -> None:
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0") as rollout,
    ):
        trainer.add("w", np.full(1_000_000, 7, dtype=np.int32))  # nobody else holds it
        target = np.zeros(1_000_000, dtype=np.int32)
        rollout.add("w", target)
        np.zeros(1_000_000, dtype=np.int32)
        trainer.publish(1)
        rollout.update()
        assert (target == 7).all()


def test_a_layout_that_differs_names_the_first_difference(server: th.ReferenceServer) -> None:
    with (
        th.Publisher(server, "policy", "trainer-0") as trainer,
        th.Subscriber(server, "policy", "rollout-0") as rollout,
    ):
        trainer.add("same", np.zeros(3, dtype=np.float32))
        trainer.add("other", np.zeros((4, 2), dtype=np.float32))
        trainer.publish(1)
        rollout.add("same", np.zeros(3, dtype=np.float32))
        rollout.add("other", np.zeros((2, 4), dtype=np.float32))
        with pytest.raises(th.LayoutMismatch, match="other"):
            rollout.update(timeout=10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lanez": 3}, "'lanez'"),
        ({"lanes": "many"}, "lanes"),
        ({"transport": "carrier pigeon"}, "carrier pigeon"),
        ({"model": ""}, "model"),
        ({"shard": (3, 2)}, "shard"),
        ({"listen_port": 70_000}, "listen_port"),
        ({"transport": "tcp", "for_tenants": True}, "'tcp' has no option for_tenants"),
    ],
)
def test_wrong_options_are_refused_by_name(
    server: th.ReferenceServer, options: dict[str, object], sentence: str
) -> None:
    names = {"model": "policy", "replica": "trainer-0"}
    with pytest.raises(th.Error, match=sentence):
        th.Publisher(server, **{**names, **options})  # type: ignore[arg-type]


def test_a_wrong_mode_is_refused(server: th.ReferenceServer, rollout: th.Subscriber) -> None:
    with pytest.raises(th.InvalidArgument, match="sideways"):
        th.Subscriber(server, "policy", "rollout-1", mode="sideways")  # type: ignore[arg-type]
    with pytest.raises(th.InvalidArgument, match="staged or double_buffered"):
        rollout.stage()
    with pytest.raises(th.InvalidArgument, match="staged or double_buffered"):
        rollout.install()
    with pytest.raises(th.InvalidArgument, match="double_buffered"):
        rollout.tensor("w")
