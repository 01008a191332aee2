"""Tensors of torch: modules in place, and whole models that a framework hands over tensor by tensor.

>>> publisher.add_all(module.state_dict())     # in place, as everything else: see tensorhub.Publisher

A framework that shards (FSDP, Megatron) has no whole tensors to publish in place; it makes them one by one. They go
into an arena, and come out of a receiver:

>>> arena = ArenaPublisher(server, "policy", "trainer-0", layout)      # [(name, dtype, shape), ...]
>>> for name, tensor in gathered:
...     arena.put(name, tensor)
>>> arena.commit(step)

>>> receiver = Receiver(server, "policy", "rollout-0")                 # learns the layout from the hub
>>> receiver.receive(at_least=step)
>>> engine.load_weights(receiver.tensors())
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch

from tensorhub import _core
from tensorhub.errors import InvalidArgument, NotFound
from tensorhub.workers import Options, Publisher, Subscriber, Update

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Unpack

    from tensorhub.reports import PublishReport, UnpublishReport, UpdateReport
    from tensorhub.server import ReferenceServer

__all__ = ["ArenaPublisher", "Receiver"]


class ArenaPublisher:
    """A publisher of a whole model that is handed over tensor by tensor, in any order, into host memory of its own.

    Without a `layout` the tensors that are put before the first `commit` are the layout, in their order.
    From the first `put` after a `commit` on nothing is published, until the next `commit`: readers go on with others
    that hold the version, or wait for the next. Not thread-safe.
    """

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        layout: Iterable[tuple[str, torch.dtype, Sequence[int]]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._publisher = Publisher(server, model, replica, **options)
        self._tensors: dict[str, torch.Tensor] = {}
        self._is_open = layout is None
        for name, dtype, shape in layout or ():
            self._make(name, dtype, shape)
        self._missing = set(self._tensors)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Copies one tensor into its place, also from a device. It may change when this returns."""
        if self._is_open and name not in self._tensors:
            self._make(name, tensor.dtype, tensor.shape)
        place = self._tensors.get(name)
        if place is None:
            raise InvalidArgument(f"tensor '{name}' is not in the layout that the arena was made with")
        if place.shape != tensor.shape or place.dtype != tensor.dtype:
            raise InvalidArgument(
                f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)}, and the layout says {place.dtype} "
                f"{list(place.shape)}"
            )
        if self._publisher.held_version:
            self._publisher.unpublish()
        place.copy_(tensor.detach())
        self._missing.discard(name)

    def commit(self, version: int, timeout: float = _core.join_timeout) -> PublishReport:
        """Publishes what was put as `version`. Every tensor must have been put since the last one."""
        if self._missing:
            raise InvalidArgument(
                f"version {version} is not whole: {len(self._missing)} tensors were not put, such as "
                f"'{min(self._missing)}'"
            )
        self._is_open = False
        report = self._publisher.publish(version, timeout)
        self._missing = set(self._tensors)
        return report

    def _make(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        place = torch.empty(tuple(shape), dtype=dtype)
        self._publisher.add(name, place)
        self._tensors[name] = place

    def leave(self, grace: float = _core.drain_timeout) -> UnpublishReport:
        """Leaves the model for good, as at `Publisher`."""
        return self._publisher.leave(grace)

    def close(self) -> None:
        """Ends it at once."""
        self._publisher.close()


class Receiver:
    """Receives whole models, whose layout it learns from the hub, into two memories that take turns.

    The shards of a model (one for each rank of a trainer, perhaps) are received together, all of the same version.
    What `tensors` has given stays as it is until the next `receive`. Not thread-safe.
    """

    def __init__(self, server: str | ReferenceServer, model: str, replica: str, **options: Unpack[Options]) -> None:
        if "shard" in options:
            raise InvalidArgument("a Receiver receives all shards: it has no option shard")
        self._server = server
        self._model = model
        self._replica = replica
        self._options = options
        self._asker = Subscriber(server, model, replica, **options)
        self._shards: list[Subscriber] = []
        self._layout: list[tuple[Subscriber, str]] = []
        self.version = 0
        """The version that `tensors` gives; zero: none yet."""

    def receive(
        self,
        version: int | None = None,
        *,
        at_least: int | None = None,
        timeout: float = _core.update_timeout,
    ) -> list[UpdateReport]:
        """Receives a version, as `Subscriber.update`; a report for each shard. An error leaves what was there."""
        with self._running(version, at_least, timeout) as running:
            return self._install([each.wait(timeout) for each in running])

    def arriving(
        self,
        version: int | None = None,
        *,
        at_least: int | None = None,
        timeout: float = _core.update_timeout,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Receives a version, and gives each tensor as soon as it is here, while others are on their way.

        After the last one the version is what `tensors` gives, too. An error in the middle, or an iteration that is
        given up, leaves what was there; the tensors that were given are then no version. They must not be written, and
        stay as they are until the next `receive` or `arriving`.
        """
        deadline = time.monotonic() + timeout
        with self._running(version, at_least, timeout) as running:
            for update in running:
                for name, tensor in update.tensors(timeout=deadline - time.monotonic()):
                    yield name, torch.from_dlpack(tensor)
            self._install([each.wait(timeout) for each in running])

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors of the version received last, in the trainer's order. They must not be written."""
        if not self.version:
            raise NotFound("no version was received yet: call receive")
        for shard, name in self._layout:
            yield name, torch.from_dlpack(shard.tensor(name))

    def close(self) -> None:
        """Ends it at once."""
        for each in [self._asker, *self._shards]:
            each.close()

    @contextlib.contextmanager
    def _running(self, version: int | None, at_least: int | None, timeout: float) -> Iterator[list[Update]]:
        deadline = time.monotonic() + timeout
        if not self._shards:
            self._learn_layout(deadline)
        running = [
            each.stage_async(version, at_least=at_least, timeout=deadline - time.monotonic()) for each in self._shards
        ]
        try:
            yield running
        finally:
            for update in running:
                update.close()

    def _install(self, reports: list[UpdateReport]) -> list[UpdateReport]:
        for each in self._shards:
            each.install()
        self.version = reports[0].version
        return reports

    def _learn_layout(self, deadline: float) -> None:
        count = self._wait_for_model(deadline)
        shards = []
        for index in range(count):
            options = self._options.copy()
            options["shard"] = (index, count)
            shards.append(Subscriber(self._server, self._model, self._replica, mode="double_buffered", **options))
        for index, shard in enumerate(shards):
            for tensor in self._asker.describe_model(index, max(0.0, deadline - time.monotonic())):
                shard.allocate(tensor.name, tensor.shape, tensor.dtype)
                self._layout.append((shard, tensor.name))
        self._shards = shards

    def _wait_for_model(self, deadline: float) -> int:
        pause, answer = 0.1, 0.1  # the last question needs time for its answer, too
        while True:
            # Of all models: a new server says of none that it is not there, until its workers have come back.
            for model in self._asker.models("", max(0.0, deadline - time.monotonic())):
                if model.name == self._model and model.available:
                    return model.shards
            if deadline - time.monotonic() < pause + answer:
                raise NotFound(f"no version of model '{self._model}' has been published", model=self._model)
            time.sleep(pause)
