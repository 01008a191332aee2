"""Tensors on CUDA devices, over a driver that runs on the CPU (tests/cuda/library).

Its device memory faults when the CPU touches it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import tensorhub as th

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRIVER = os.environ.get("TENSORHUB_FAKE_CUDA_DRIVER", "")
needs_cuda = pytest.mark.skipif(not DRIVER, reason="cuda: the component is not built here")
COUNT = 300_000


@pytest.fixture(scope="module")
def driver() -> ctypes.CDLL:
    loaded = ctypes.CDLL(DRIVER, mode=ctypes.RTLD_GLOBAL)  # from now on it is this process's libcuda.so.1
    loaded.fake_allocate.restype = loaded.fake_last_stream.restype = loaded.fake_faults.restype = ctypes.c_uint64
    loaded.fake_stream.restype = ctypes.c_void_p
    loaded.fake_allocate.argtypes = [ctypes.c_int, ctypes.c_size_t]
    loaded.fake_write.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
    loaded.fake_read.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    loaded.fake_hold.argtypes = loaded.fake_is_pinned.argtypes = [ctypes.c_uint64]
    loaded.fake_default_stream.restype = ctypes.c_uint64
    return loaded


class DeviceArray:
    """What CuPy's arrays show of themselves."""

    def __init__(self, driver: ctypes.CDLL, values: np.ndarray, device: int = 0, read_only: bool = False) -> None:
        self.driver, self.like, self.read_only = driver, values.copy(), read_only
        self.address = driver.fake_allocate(device, values.nbytes)
        self.write(values)
        self.dtype = values.dtype
        self.strides: tuple[int, ...] | None = None
        self.stream: int | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.like.shape,
            "typestr": self.like.dtype.str,
            "data": (self.address, self.read_only),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }

    def write(self, values: np.ndarray) -> None:
        self.driver.fake_write(self.address, values.ctypes.data, values.nbytes)

    def values(self) -> np.ndarray:
        out = np.empty_like(self.like)
        self.driver.fake_read(out.ctypes.data, self.address, out.nbytes)
        return out


class TorchArray:
    """What the binding uses of a tensor of torch on a device."""

    def __init__(self, of: DeviceArray, device: int = 0) -> None:
        self.of = of
        self.dtype = "torch.float32"
        self.shape = of.like.shape
        self.device = SimpleNamespace(type="cuda", index=device)

    def data_ptr(self) -> int:
        return int(self.of.address)

    def is_contiguous(self) -> bool:
        return True


@pytest.fixture
def workers(
    server: th.ReferenceServer,
) -> Iterator[Callable[..., tuple[th.Publisher, th.Subscriber]]]:
    made: list[th.Publisher | th.Subscriber] = []

    def make(source: object, target: object, **options: Any) -> tuple[th.Publisher, th.Subscriber]:
        transport = options.get("transport", "auto")
        trainer = th.Publisher(server, "m", "t", memory="cuda", transport=transport)
        rollout = th.Subscriber(server, "m", "r", memory="cuda", **options)
        made.extend([trainer, rollout])
        trainer.add("w", source)
        rollout.add("w", target)
        return trainer, rollout

    yield make
    for each in made:
        each.close()


def numbers(first: int = 0) -> np.ndarray:
    return np.arange(first, first + COUNT, dtype=np.float32)


@needs_cuda
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("mode", ["in_place", "staged"])
def test_from_device_to_device(driver: ctypes.CDLL, workers: Callable[..., Any], transport: str, mode: th.Mode) -> None:
    source, target = DeviceArray(driver, numbers()), DeviceArray(driver, numbers(9), device=1)
    trainer, rollout = workers(source, target, mode=mode, transport=transport)
    for version in range(1, 3):
        source.write(numbers(version))
        with trainer.published(version):
            assert rollout.update(at_least=version, timeout=20).version == version
        assert np.array_equal(target.values(), numbers(version))
    assert driver.fake_faults() == 0


@needs_cuda
def test_from_device_to_host_and_a_snapshot(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    source, target = DeviceArray(driver, numbers()), np.zeros(COUNT, dtype=np.float32)
    trainer, rollout = workers(TorchArray(source), target)
    trainer.publish_snapshot(1, stream="all_done")
    source.write(numbers(5))
    rollout.update(timeout=20)
    assert np.array_equal(target, numbers())


def held_back(driver: ctypes.CDLL, number: int, call: Callable[[], object]) -> None:
    """The call waits as long as the stream is held, and ends when it is not."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        driver.fake_hold(number)
        try:
            calling = pool.submit(call)
            with pytest.raises(concurrent.futures.TimeoutError):
                calling.result(timeout=0.2)
        finally:
            driver.fake_hold(0)
        calling.result(timeout=20)


@needs_cuda
def test_calls_wait_for_the_current_stream_of_torch(
    driver: ctypes.CDLL, workers: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = driver.fake_stream(1)
    number = driver.fake_last_stream()
    asked: list[object] = []

    def current_stream(device: object) -> object:
        asked.append(device)
        return SimpleNamespace(cuda_stream=stream)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=current_stream)))
    source, target = (TorchArray(DeviceArray(driver, numbers(k), device=1), device=1) for k in (1, 2))
    trainer, rollout = workers(source, target)
    held_back(driver, number, lambda: trainer.publish(1))
    held_back(driver, number, lambda: rollout.update(timeout=20))
    held_back(driver, number, lambda: rollout.update_async(timeout=20).wait())
    assert {id(each) for each in asked} == {id(source.device), id(target.device)}
    assert np.array_equal(target.of.values(), numbers(1))
    driver.fake_hold(number)
    try:
        with pytest.raises(th.TimedOut, match="the work queued on the given stream did not finish"):
            rollout.update(at_least=2, timeout=0.2)
        rollout.update(at_least=1, timeout=5, stream="all_done")
    finally:
        driver.fake_hold(0)


class WithProtocol:
    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream


@needs_cuda
@pytest.mark.parametrize(
    "spell",
    [int, WithProtocol, lambda s: SimpleNamespace(ptr=s), lambda s: SimpleNamespace(cuda_stream=s)],
    ids=["number", "protocol", "cupy", "torch"],
)
def test_a_stream_that_is_given(
    driver: ctypes.CDLL, workers: Callable[..., Any], spell: Callable[[int], object]
) -> None:
    stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    trainer, _ = workers(DeviceArray(driver, numbers()), DeviceArray(driver, numbers()))
    held_back(driver, number, lambda: trainer.publish(1, stream=spell(stream)))
    trainer.unpublish()
    with pytest.raises(th.InvalidArgument, match="stream 'x' is not understood"):
        trainer.publish(2, stream="x")


@needs_cuda
def test_the_default_stream_is_that_of_the_calling_thread(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    trainer, _ = workers(DeviceArray(driver, numbers()), DeviceArray(driver, numbers()))
    driver.fake_hold(driver.fake_default_stream(0, 2))
    try:
        with pytest.raises(th.TimedOut, match="the work queued on the given stream did not finish"):
            trainer.publish(1, timeout=0.3, stream=2)
    finally:
        driver.fake_hold(0)
    trainer.publish(1, stream=2)


@needs_cuda
def test_a_given_stream_is_waited_for_wherever_the_tensors_are(
    driver: ctypes.CDLL, workers: Callable[..., Any]
) -> None:
    stream = driver.fake_stream(1)
    number = driver.fake_last_stream()
    trainer, rollout = workers(numbers(), numbers())
    held_back(driver, number, lambda: trainer.publish(1, stream=stream))
    trainer.unpublish()
    trainer.close()
    rollout.close()
    trainer, _ = workers(DeviceArray(driver, numbers()), DeviceArray(driver, numbers()))
    trainer.add("of another device", DeviceArray(driver, numbers(), device=1))
    held_back(driver, driver.fake_default_stream(1, 0), lambda: trainer.publish(1, stream=0))


@needs_cuda
def test_a_default_stream_may_name_its_device(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    trainer, _ = workers(numbers(), numbers())
    of_torch = SimpleNamespace(cuda_stream=0, device=SimpleNamespace(type="cuda", index=1))
    held_back(driver, driver.fake_default_stream(1, 0), lambda: trainer.publish(1, stream=of_torch))
    trainer.unpublish()
    of_cupy = SimpleNamespace(ptr=0, device_id=1)
    held_back(driver, driver.fake_default_stream(1, 0), lambda: trainer.publish(2, stream=of_cupy))


@needs_cuda
def test_a_worker_that_leaves_waits_for_no_stream(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    trainer, _ = workers(DeviceArray(driver, numbers()), DeviceArray(driver, numbers()))
    driver.fake_hold(number)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            calling = pool.submit(trainer.publish, 1, timeout=60, stream=stream)
            with pytest.raises(concurrent.futures.TimeoutError):
                calling.result(timeout=0.2)
            trainer.leave(1)
            assert isinstance(calling.exception(timeout=20), (th.Cancelled, th.InvalidArgument))
    finally:
        driver.fake_hold(0)


@needs_cuda
def test_an_array_names_its_stream(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    source = DeviceArray(driver, numbers())
    source.stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    trainer, _ = workers(source, DeviceArray(driver, numbers()))
    held_back(driver, number, lambda: trainer.publish(1))


class PinnedTorchArray:
    """What the binding uses of a pinned tensor of torch."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.dtype = "torch.float32"
        self.shape = values.shape
        self.device = SimpleNamespace(type="cpu", index=None)

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def is_contiguous(self) -> bool:
        return True

    def is_pinned(self) -> bool:
        return True


@needs_cuda
def test_pinned_memory_is_written_in_the_current_stream_of_torch(
    driver: ctypes.CDLL, workers: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    current = SimpleNamespace(cuda_stream=stream)
    cuda = SimpleNamespace(current_stream=lambda device: current if device is None else None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    trainer, _ = workers(PinnedTorchArray(numbers()), numbers())
    held_back(driver, number, lambda: trainer.publish(1))


@needs_cuda
def test_the_wait_for_a_stream_is_interrupted(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    trainer, rollout = workers(DeviceArray(driver, numbers()), DeviceArray(driver, numbers()))
    driver.fake_hold(number)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for worker, call in ((trainer, "publish"), (rollout, "update")):
                arguments = (1,) if call == "publish" else ()
                calling = pool.submit(getattr(worker, call), *arguments, timeout=60, stream=stream)
                for _ in range(200):
                    worker._inner.interrupt()
                    with contextlib.suppress(concurrent.futures.TimeoutError, th.Cancelled):
                        calling.result(timeout=0.05)
                    if calling.done():
                        break
                assert isinstance(calling.exception(timeout=20), th.Cancelled)
    finally:
        driver.fake_hold(0)


@needs_cuda
def test_a_staged_install_waits_for_the_stream(driver: ctypes.CDLL, workers: Callable[..., Any]) -> None:
    stream = driver.fake_stream(0)
    number = driver.fake_last_stream()
    target = DeviceArray(driver, numbers(3))
    trainer, rollout = workers(DeviceArray(driver, numbers()), target, mode="staged")
    with trainer.published(1):
        driver.fake_hold(number)  # a stage does not wait for it
        rollout.stage(timeout=20)
    held_back(driver, number, lambda: rollout.install(20, stream=stream))
    assert np.array_equal(target.values(), numbers())


@needs_cuda
def test_what_cannot_be_taken(driver: ctypes.CDLL, server: th.ReferenceServer) -> None:
    with (
        th.Publisher(server, "m", "t", memory="cuda") as trainer,
        th.Subscriber(server, "m", "r", memory="cuda") as rollout,
    ):
        strided = DeviceArray(driver, numbers())
        strided.strides = (8,)
        with pytest.raises(th.InvalidArgument, match="tensor 'w' is not contiguous"):
            trainer.add("w", strided)
        with pytest.raises(th.InvalidArgument, match="tensor 'w' is read-only"):
            rollout.add("w", DeviceArray(driver, numbers(), read_only=True))
        other = TorchArray(DeviceArray(driver, numbers()))
        other.device.type = "xpu"
        with pytest.raises(th.InvalidArgument, match="on device xpu, expected host memory or a CUDA device"):
            trainer.add("w", other)
        moved = DeviceArray(driver, numbers())
        trainer.add("w", moved)
        moved.address = DeviceArray(driver, numbers()).address
        with pytest.raises(th.InvalidArgument, match="tensor 'w' has moved"):
            trainer.publish(1)


def test_a_worker_of_host_memory_takes_no_device(server: th.ReferenceServer) -> None:
    with th.Publisher(server, "m", "t") as trainer:
        on_device = SimpleNamespace(__cuda_array_interface__={"shape": (1,), "typestr": "<f4", "data": (4096, False)})
        with pytest.raises(th.InvalidArgument, match=r"tensor 'w' is on a CUDA device.*memory='cuda'"):
            trainer.add("w", on_device)
        trainer.add("w", np.zeros(4))
        with pytest.raises(th.InvalidArgument, match="a stream was given to a worker of host memory"):
            trainer.publish(1, stream=7)
        trainer.publish(1, stream="all_done")


@needs_cuda
@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_memory_of_the_library_is_on_the_host_and_pinned_for_devices(
    driver: ctypes.CDLL, server: th.ReferenceServer, memory: Literal["host", "cuda"]
) -> None:
    with (
        th.ArenaPublisher(server, "m", "t", memory=memory) as trainer,
        th.Seeder(server, "m", "s", memory=memory),
        th.SharedCopy(server, "m", "c", name=f"test-{os.getpid()}-{memory}", memory=memory) as copy,
        th.Subscriber(server, "m", "r", mode="double_buffered", memory=memory) as rollout,
    ):
        trainer.declare("w", (COUNT,), "f32")
        copy.declare("w", (COUNT,), "f32")
        rollout.allocate("w", (COUNT,), "f32")
        for version in range(1, 4):
            trainer.begin(version)
            trainer.put("w", numbers(version))
            trainer.commit(version)
            assert copy.update(version, timeout=20).version == version
            rollout.update(version, timeout=20)
            view = np.asarray(rollout.tensor("w"))
            assert np.array_equal(view, numbers(version))
            assert driver.fake_is_pinned(view.ctypes.data) == (memory == "cuda")
    assert driver.fake_faults() == 0


def test_other_memory_does_not_exist(server: th.ReferenceServer) -> None:
    with pytest.raises(th.InvalidArgument, match="memory 'tpu' does not exist: take 'host' or 'cuda'"):
        th.Publisher(server, "m", "t", memory="tpu")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("transport", "what"),
    [("tcp", "memory 'cuda'"), ("verbs", "transport 'verbs' with memory 'cuda'")],
)
def test_a_package_without_the_component_says_so(
    server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch, transport: str, what: str
) -> None:
    for name in ("_cuda", "_verbs_cuda"):
        monkeypatch.setitem(sys.modules, f"tensorhub.{name}", None)
    with pytest.raises(th.TransportFailed, match=f"{what} cannot be used here: .* built without it.*CUDA Toolkit"):
        th.Publisher(server, "m", "t", memory="cuda", transport=transport)


@needs_cuda
def test_a_machine_without_a_driver_says_so() -> None:
    script = """
import tensorhub as th
with th.ReferenceServer() as server:
    try:
        th.Publisher(server, "m", "t", memory="cuda")
        print("a driver")
    except th.SystemFailed as e:
        print(e)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    if said.stdout.strip() == "a driver":
        pytest.skip("cuda: this machine has a driver")
    assert "there is no NVIDIA driver here" in said.stdout or "no device" in said.stdout
