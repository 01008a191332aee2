"""The README's recipes for slime and AReaL, run as they stand there.

Neither framework is installed: stand-ins make the calls of slime at commit 002fa9d, with `pull` of SGLang's main, and
those of AReaL 1.0.4, in their order. Each machine has folders of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed here")

import tensorhub as th  # noqa: E402
from tensorhub import safetensors  # noqa: E402

README = (Path(__file__).parents[1] / "README.md").read_text()
RANKS = 2

Recipe = Callable[..., ModuleType]


@pytest.fixture
def recipe(server: th.ReferenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Makes a module of the README's block that has its name, with the test's server and folders."""
    made: list[ModuleType] = []
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, **changes: str) -> ModuleType:
        block = re.search(rf"^```python\n(# {name}\.py.*?)^```$", README, re.DOTALL | re.MULTILINE)
        assert block is not None, f"the README has no {name}.py"
        text = block[1]
        for old, new in {"tcp://10.0.0.1:5570": server.address, **changes}.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{name}.py").write_text(text)
        made.append(importlib.import_module(name))
        return made[-1]

    yield make
    for each in made:
        del sys.modules[each.__name__]
        for worker in (getattr(each, "published", None), each.receiver() if hasattr(each, "receiver") else None):
            if worker is not None:
                worker.close()


def provide(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Puts a stand-in module at that name, and packages around it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        package = ".".join(parts[:i])
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
            if i > 1:
                monkeypatch.setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[package], False)
    for member, value in members.items():
        monkeypatch.setattr(sys.modules[name], member, value, False)


def load_function(path: str) -> Callable[..., Any]:
    """As both slime and SGLang find a hook."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def write_checkpoint(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """As both trainers: a file for each part of the weights, an index, and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (name, tensor) in enumerate(tensors.items(), 1):
        numpy_files.save_file({name: tensor}, folder / f"model-{i:05d}-of-{len(tensors):05d}.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text("{}")


def weights(version: int) -> dict[str, np.ndarray]:
    return {"a": np.full((30, 5), version, dtype=np.float32), "b": np.arange(7, dtype=np.int16) + version}


class SlimeTrainer:
    """`UpdateWeightFromDisk`, and what `RayTrainGroup` does with the engines then."""

    def __init__(self, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hook = hook
        self._rank = 0
        provide(monkeypatch, "torch.distributed", get_rank=lambda: self._rank)

    def write(self, folder: Path, version: int) -> Path:
        version_dir = folder / f"weight_v{version:06d}"
        shutil.rmtree(version_dir, ignore_errors=True)
        write_checkpoint(version_dir, weights(version))
        for self._rank in reversed(range(RANKS)):
            load_function(self._hook)(SimpleNamespace(), str(version_dir), [])
        return version_dir


class SGLangHost:
    """`local_checkpoint.pull` of a version that is a whole checkpoint, in every rank at once."""

    def __init__(self, folder: Path, hook: str) -> None:
        self.source, self.loaded = folder / "new", folder / "loaded"
        self._hook = hook
        self._lock = threading.Lock()
        self._applied = -1

    def pull(self, version: int) -> None:
        with ThreadPoolExecutor(RANKS) as ranks:
            for each in [ranks.submit(self._pull, version) for _ in range(RANKS)]:
                each.result()

    def _pull(self, version: int) -> None:
        load_function(self._hook)(str(self.source), version)
        with self._lock:
            if version <= self._applied:
                return
            files = list((self.source / f"weight_v{version:06d}").iterdir())
            assert [each.name for each in files] == ["model.safetensors"], "one file needs no index"
            shutil.rmtree(self.loaded, ignore_errors=True)
            self.loaded.mkdir()
            for each in files:
                shutil.copy2(each, self.loaded)
            self._applied = version


def test_slime(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = dict(re.findall(r"--(\S+-(?:path|hook)) (hub_slime\.\w+)", README))
    trainer = SlimeTrainer(flags["custom-update-weight-post-write-path"], monkeypatch)
    read_hook = flags["sglang-custom-pull-weights-pre-read-hook"]
    hosts = [SGLangHost(tmp_path / f"host-{i}", read_hook) for i in range(2)]
    recipe("hub_slime")
    received: list[int] = []

    def save_file(*given: Any, **options: Any) -> Any:
        received.append(given[3])
        return safetensors.save_file(*given, **options)

    monkeypatch.setattr("hub_slime.save_file", save_file)
    for version in (1, 2, 3):
        version_dir = trainer.write(hosts[0].source, version)  # one of the machines is the trainer's, too
        assert not version_dir.exists()
        for host in hosts:
            host.pull(version)
            loaded = numpy_files.load_file(host.loaded / "model.safetensors")
            assert all(np.array_equal(loaded[name], each) for name, each in weights(version).items())
            assert [each.name for each in host.source.glob("weight_v*")] == [version_dir.name]
    assert received == [1, 1, 2, 2, 3, 3]  # once on each host


def test_slime_goes_on_after_a_version_that_does_not_come(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, host = SlimeTrainer("hub_slime.publish", monkeypatch), SGLangHost(tmp_path / "host", "hub_slime.receive")
    recipe("hub_slime")
    monkeypatch.setattr("hub_slime.save_file", functools.partial(safetensors.save_file, timeout=0.3))
    trainer.write(tmp_path / "trainer", 1)
    host.pull(1)
    with pytest.raises(th.TimedOut):
        host.pull(2)
    trainer.write(tmp_path / "trainer", 2)
    host.pull(2)
    assert host.loaded.joinpath("model.safetensors").stat().st_size > 0


@dataclasses.dataclass
class WeightUpdateMeta:
    path: str
    version: int | None = None

    def with_version(self, version: int) -> WeightUpdateMeta:
        return dataclasses.replace(self, path=f"{Path(self.path).parent}/weight_update_v{version}", version=version)


class Actor:
    """`FSDPPPOActor`: one object for all ranks, whose rank 0 saves the checkpoint."""

    rank = 0

    def __init__(self, config: str) -> None:
        self.config = config
        self.rollout: Rollout | None = None
        self.version = 0

    @classmethod
    def as_controller(cls, config: str, scheduler: str) -> Actor:
        """The controller has its workers import the class, and calls them."""
        assert scheduler == "scheduler"
        made: Actor = load_function(f"{cls.__module__}.{cls.__name__}")(config)
        return made

    def create_process_group(self, parallel_strategy: str) -> None:
        assert parallel_strategy == "fsdp:d2"

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        assert self.rollout is not None
        is_saved: Future[None] = Future()
        loading = self.rollout.update_weights_from_disk(meta, is_saved)
        self.save(meta.path)
        is_saved.set_result(None)
        loading.result()

    def save(self, path: str) -> None:
        for Actor.rank in reversed(range(RANKS)):
            self._save_model_to_hf(path, None, None)

    def _save_model_to_hf(self, path: str, _tokenizer: None, _processor: None) -> None:
        if Actor.rank == RANKS - 1:  # the barrier: rank 0 goes on when all have written
            write_checkpoint(Path(path), weights(self.version))


class Trainer:
    """`PPOTrainer`, with the single controller."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config, self.scheduler = config, "scheduler"
        alloc = SimpleNamespace(parallel="fsdp:d2")
        self.actor = self._create_train_engine(config.actor, alloc)
        self.ref = self._create_train_engine(config.ref, alloc)

    def _create_train_engine(self, actor_config: str, alloc: SimpleNamespace) -> Actor:
        actor = Actor.as_controller(actor_config, self.scheduler)
        actor.create_process_group(parallel_strategy=alloc.parallel)
        return actor

    def train(self, meta: WeightUpdateMeta, version: int) -> None:
        self.actor.version = version
        self.actor.update_weights(meta.with_version(version))


class WorkerExtension:
    """vLLM's worker with `VLLMWorkerExtension` mixed in."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.synced = 0
        self.model_runner = SimpleNamespace(vllm_config="config", model=self)

    def load_weights(self, given: Iterable[tuple[str, Any]]) -> None:
        assert configs == ["config"]
        self.weights = {name: tensor.clone() for name, tensor in given}

    def sync(self) -> None:
        self.synced += 1


configs: list[str] = []


@contextlib.contextmanager
def set_current_vllm_config(config: str) -> Iterator[None]:
    configs.append(config)
    yield
    configs.remove(config)


class Rollout:
    """`RolloutController`, on a machine of its own: asks the workers when the trainer has written."""

    def __init__(self, workers: list[Any]) -> None:
        self.answers: list[tuple[bool, str]] = []
        self._workers = workers
        self._pool = ThreadPoolExecutor(1)

    def update_weights_from_disk(self, meta: WeightUpdateMeta, is_saved: Future[None]) -> Future[None]:
        def update() -> None:
            is_saved.result(20)
            self.answers = [each.areal_update_weights(meta.path) for each in self._workers]

        return self._pool.submit(update)


def test_areal(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: Actor.rank, False)
    provide(monkeypatch, "areal.engine", FSDPPPOActor=Actor)
    provide(monkeypatch, "areal", PPOTrainer=Trainer)
    name = "areal.engine.vllm_ext.vllm_worker_extension"
    provide(monkeypatch, name, VLLMWorkerExtension=WorkerExtension, set_current_vllm_config=set_current_vllm_config)
    folder = tmp_path / "shm"
    hub_actor = recipe("hub_actor", **{"/dev/shm/areal": str(folder)})  # noqa: S108 (which the test replaces)
    recipe("hub_worker")
    named = re.search(r"vllm\.worker_extension_cls=([\w.]+)", README)
    assert named is not None
    workers = [load_function(named[1])() for _ in range(RANKS)]
    trainer = hub_actor.HubTrainer(SimpleNamespace(actor="actor", ref="ref"))
    assert type(trainer.ref) is Actor
    rollout = trainer.actor.rollout = Rollout(workers)
    meta = WeightUpdateMeta(str(tmp_path / "fileroot" / "weight_update"))
    for version in (1, 2, 3):
        trainer.train(meta, version)
        assert rollout.answers == [(True, "Success")] * RANKS
        for worker in workers:
            assert all(np.array_equal(worker.weights[name], each) for name, each in weights(version).items())
        assert list(folder.iterdir()) == []
    trainer.actor.save(str(tmp_path / "checkpoint"))
    assert hub_actor.published.held_version == 3, "a checkpoint of the user's is none of the hub's"

    monkeypatch.setattr(sys.modules["hub_worker"].receiver(), "receive", functools.partial(_fail, "it did not come"))
    trainer.train(meta, 4)
    assert rollout.answers == [(False, "it did not come")] * RANKS
    assert [each.synced for each in workers] == [4] * RANKS


def _fail(sentence: str, *_given: Any) -> None:
    raise RuntimeError(sentence)
