"""Tensors of torch on a real GPU, from a trainer in another process. test_cuda.py runs without a GPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import tensorhub as th


def why_not() -> str:
    """Why these tests cannot run here; empty: they can."""
    if os.environ.get("TENSORHUB_FAKE_CUDA_DRIVER"):
        return "a fake driver is this process's libcuda.so.1"
    if importlib.util.find_spec("tensorhub._cuda") is None:
        return "the package was built without component cuda"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed here"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no CUDA device here"


WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"gpu: {WHY_NOT}")
if TYPE_CHECKING or not WHY_NOT:
    import torch

LAYOUT: dict[str, tuple[str, tuple[int, ...]]] = {
    "embedding": ("bfloat16", (8192, 2048)),
    **{f"layer.{i}.weight": ("bfloat16", (2048, 2048)) for i in range(8)},
    **{f"layer.{i}.norm": ("float32", (2048,)) for i in range(8)},
    **{f"layer.{i}.bias": ("bfloat16", (513 + i,)) for i in range(8)},
    "quantized": ("float8_e4m3fn", (1001, 333)),
}
TIMEOUT = 30
CHILD_SECONDS = 120  # a trainer is killed after that, and whoever waits for it fails
CYCLES = 200_000_000  # about a tenth of a second


def raw(tensor: Any) -> Any:
    return tensor.view(-1).view(torch.uint8)


def expected(weights: dict[str, Any], version: int) -> list[Any]:
    """The bytes of each tensor; they differ from place to place, and between tensors and versions."""
    return [
        torch.arange(tensor.nbytes, dtype=torch.int32, device=tensor.device)
        .add_(31 * version + 7 * index)
        .remainder_(251)
        .to(torch.uint8)
        for index, tensor in enumerate(weights.values())
    ]


def write(weights: dict[str, Any], values: list[Any]) -> None:
    for tensor, value in zip(weights.values(), values, strict=True):
        raw(tensor).copy_(value)


def holds(weights: dict[str, Any], version: int) -> bool:
    values = expected(weights, version)
    return all(torch.equal(raw(tensor), value) for tensor, value in zip(weights.values(), values, strict=True))


def make(device: str) -> dict[str, Any]:
    """Weights, which hold version 0."""
    out = {name: torch.zeros(shape, dtype=getattr(torch, of), device=device) for name, (of, shape) in LAYOUT.items()}
    write(out, expected(out, 0))
    torch.cuda.synchronize()
    return out


def train(address: str, device: str, transport: str) -> None:
    """A trainer: a line of its input is a version to publish, or "unpublish"; it answers when that is done."""
    weights, stream = make(device), torch.cuda.Stream()
    with (
        th.Publisher(address, "m", "t", memory="cuda", transport=transport) as trainer,
        torch.cuda.stream(stream),
    ):
        trainer.add_all(weights)
        for line in sys.stdin:
            if line.strip() == "unpublish":
                trainer.unpublish(TIMEOUT)
            else:
                values = expected(weights, int(line))
                if device == "cuda":
                    torch.cuda._sleep(CYCLES)  # what is written next is written long after publish is called
                write(weights, values)
                trainer.publish(int(line), TIMEOUT)
                assert stream.query()
            print("done", flush=True)


class Scene(NamedTuple):
    ask: Callable[[object], None]
    """Has the trainer do something."""
    rollout: th.Subscriber
    weights: dict[str, Any]


@contextlib.contextmanager
def scene(
    server: th.ReferenceServer,
    source: str = "cuda",
    target: str = "cuda",
    *,
    mode: th.Mode = "in_place",
    transport: str = "auto",
    allocator: str = "",
) -> Iterator[Scene]:
    """A rollout, and a trainer in a process of its own, whose `allocator` of torch may have options."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # before and since torch 2.9
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if allocator:
        environment.update(dict.fromkeys(names, allocator))
    command = [sys.executable, __file__, server.address, source, transport]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        deadline = threading.Timer(CHILD_SECONDS, child.kill)
        deadline.start()

        def ask(what: object) -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            print(what, file=child.stdin, flush=True)
            assert child.stdout.readline() == "done\n", "the trainer has ended"

        try:
            weights = make(target)
            with th.Subscriber(server, "m", "r", memory="cuda", mode=mode, transport=transport) as rollout:
                rollout.add_all(weights)
                yield Scene(ask, rollout, weights)
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(TIMEOUT) == 0
        finally:
            deadline.cancel()
            child.kill()


def take_versions(of: Scene, count: int = 3) -> set[str]:
    """Publishes and takes some versions; returns how their bytes came."""
    paths: set[str] = set()
    for version in range(1, count + 1):
        of.ask(version)
        report = of.rollout.update(version, timeout=TIMEOUT)
        of.ask("unpublish")
        assert holds(of.weights, version)
        paths.update(each.path for each in report.sources)
    return paths


def test_memory_of_the_default_allocator_is_read_where_it_lies(server: th.ReferenceServer) -> None:
    with scene(server) as of:
        assert take_versions(of) == {"same_host"}


def test_a_trainer_with_expandable_segments(server: th.ReferenceServer) -> None:
    with scene(server, allocator="expandable_segments:True") as of:
        (path,) = take_versions(of)
    assert path.startswith("same_host")


def test_over_tcp(server: th.ReferenceServer) -> None:
    with scene(server, transport="tcp") as of:
        assert take_versions(of) == {"tcp"}


@pytest.mark.parametrize(("source", "target"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_between_device_and_host(server: th.ReferenceServer, source: str, target: str) -> None:
    with scene(server, source, target) as of:
        take_versions(of)


def test_a_stage_leaves_what_is_live(server: th.ReferenceServer) -> None:
    with scene(server, mode="staged") as of:
        for version in range(1, 4):
            of.ask(version)
            of.rollout.stage(version, timeout=TIMEOUT)
            of.ask("unpublish")
            assert holds(of.weights, version - 1)
            of.rollout.install(TIMEOUT)
            assert holds(of.weights, version)


@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_an_arena_takes_what_a_stream_has_still_to_write(server: th.ReferenceServer, memory: Any) -> None:
    from tensorhub.torch import ArenaPublisher, Receiver

    source, stream = make("cuda"), torch.cuda.Stream()
    layout = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source.items()]
    with (
        ArenaPublisher(server, "policy", "trainer-0", layout, memory=memory) as arena,
        Receiver(server, "policy", "rollout-0") as receiver,
    ):
        for version in (1, 2):
            values = expected(source, version)
            torch.cuda.synchronize()
            arena.begin(version)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)  # what is written next is written long after `put` is called
                for (name, tensor), value in zip(source.items(), values, strict=True):
                    raw(tensor).copy_(value)
                    arena.put(name, tensor)
            arena.commit(version)
            receiver.receive(version, timeout=TIMEOUT)
            received = dict(receiver.tensors())
            assert all(
                torch.equal(raw(received[name]), value.cpu()) for name, value in zip(source, values, strict=True)
            )


def test_updates_run_beside_captures_of_graphs(server: th.ReferenceServer) -> None:
    stop, begun = threading.Event(), threading.Event()
    quiet = threading.Lock()  # held by captures and by what the test itself does with torch, which would end them

    def capture() -> int:
        count, values, stream = 0, torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        while not stop.is_set():
            graph = torch.cuda.CUDAGraph()
            with quiet, torch.cuda.graph(graph, stream=stream):
                doubled = values * 2
                begun.set()
                time.sleep(0.05)  # an update begins meanwhile
                doubled += 1
            graph.replay()
            assert bool((doubled == 3).all())
            count += 1
            time.sleep(0.01)  # for whoever waits for the lock
        return count

    with scene(server) as of, concurrent.futures.ThreadPoolExecutor() as pool:
        captures = pool.submit(capture)
        try:
            for version in range(1, 7):
                of.ask(version)
                begun.clear()
                if not begun.wait(5):
                    captures.result(0)  # raises what has ended it
                of.rollout.update(version, timeout=TIMEOUT, stream="all_done")
                of.ask("unpublish")
                with quiet:
                    assert holds(of.weights, version)
        finally:
            stop.set()
        assert captures.result(TIMEOUT) >= 6


if __name__ == "__main__":
    train(*sys.argv[1:])
