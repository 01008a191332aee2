"""Tensors of torch: modules in place, and whole models that a framework hands over tensor by tensor.

>>> publisher.add_all(module)     # in place, as everything else: see tensorhub.Publisher

A framework that shards (FSDP, Megatron) has no whole tensors to publish in place; it makes them one by one. They go
into an arena, and come out of a receiver:

>>> arena = ArenaPublisher(server, "policy", "trainer-0", layout)      # [(name, dtype, shape), ...]
>>> arena.begin(step)                                                  # receivers that wait read along
>>> for name, tensor in gathered:
...     arena.put(name, tensor)
>>> arena.commit(step)

>>> receiver = Receiver(server, "policy", "rollout-0")                 # learns the layout from the hub
>>> receiver.receive(at_least=step)
>>> engine.load_weights(receiver.tensors())
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import torch

from tensorhub import _core, workers
from tensorhub.errors import InvalidArgument, NotFound
from tensorhub.lifetime import InWithBlock
from tensorhub.machine import MachineCopy, NotShared, warn_of_own_memory
from tensorhub.workers import Options, Subscriber, Update, _selector, seconds_of, shards_of_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import SupportsIndex

    from typing_extensions import Unpack

    from tensorhub.reports import PublishReport, UnpublishReport, UpdateReport
    from tensorhub.server import ReferenceServer

__all__ = ["ArenaPublisher", "Receiver"]


class ArenaPublisher(InWithBlock):
    """`tensorhub.ArenaPublisher` for tensors of torch; those of a device are copied into the arena once.

    With `memory="cuda"` the arena is pinned, so that GPUs copy to it at full speed. Without a `layout` the tensors that
    are put before the first `commit` are the layout, in their order; they wait until then. `put` may be called from
    several threads.
    """

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        layout: Iterable[tuple[str, torch.dtype, Sequence[int]]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._publisher = workers.ArenaPublisher(server, model, replica, **options)
        self._layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._waiting: dict[str, torch.Tensor] | None = {} if layout is None else None
        self._lock = threading.Lock()
        self._is_published = False
        self._taken: set[str] | None = None
        """Tensors of a version that was begun: they are put, or being put. None: no version was begun."""
        for name, dtype, shape in layout or ():
            self._declare(name, dtype, shape)

    def begin(self, version: SupportsIndex, timeout: float = _core.drain_timeout) -> None:
        """Lets those that wait for `version` read what is put from now on. Waits for a layout, if none is known."""
        if self._waiting is None:
            self._publisher.begin(version, timeout)
            self._is_published, self._taken = False, set()

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Copies one tensor into its place, also from a device. It may change when this returns."""
        _check_is_of_torch(name, tensor)
        if self._waiting is not None:
            copied = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            if copied.data_ptr() == 0 and copied.numel() != 0:
                raise InvalidArgument(
                    f"tensor '{name}' has no memory of its own (a DTensor, perhaps): give full_tensor() or to_local()"
                )
            self._waiting[name] = copied
            return
        known = self._layout.get(name)
        if known is None:
            raise InvalidArgument(f"tensor '{name}' is not in the layout that the arena was made with")
        if known != (tensor.dtype, tuple(tensor.shape)):
            raise InvalidArgument(
                f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)}, and the layout says {known[0]} "
                f"{list(known[1])}"
            )
        self._take(name)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if _is_in_host_memory(tensor):
            self._publisher.put(name, tensor.contiguous())
        else:  # one copy, in the tensor's current stream, for which it waits
            try:
                torch.utils.dlpack.from_dlpack(self._publisher.tensor(name)).copy_(tensor)
            except BaseException:
                self._give_back(name)
                raise
            self._publisher.put(name)

    def commit(self, version: SupportsIndex, timeout: float = _core.join_timeout) -> PublishReport:
        """Publishes what was put as `version`. Every tensor must have been put since the last one."""
        if self._waiting is not None:
            if not self._waiting:
                raise InvalidArgument("nothing was put: put every tensor of the model, and commit then")
            self._declare_waiting()
            for name, tensor in self._waiting.items():
                self._publisher.put(name, tensor.resolve_conj().resolve_neg())
            self._waiting = None
        report = self._publisher.commit(version, timeout)
        self._is_published, self._taken = True, None
        return report

    def wait_held(
        self,
        version: SupportsIndex,
        replicas: SupportsIndex | Iterable[str],
        timeout: float = _core.update_timeout,
    ) -> tuple[str, ...]:
        """As `tensorhub.ArenaPublisher.wait_held`."""
        return self._publisher.wait_held(version, replicas, timeout)

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint, as at `tensorhub.ArenaPublisher`. Without a layout: after all tensors were put once."""
        self._declare_waiting()
        self._publisher.roll_back_to(version, timeout)

    def unpublish(self, timeout: float = _core.drain_timeout) -> UnpublishReport:
        """Takes back what is published or begun, and forgets what was put, as at `tensorhub.ArenaPublisher`."""
        if self._waiting is not None:
            self._waiting = {}
        report = self._publisher.unpublish(timeout)
        self._is_published, self._taken = False, None
        return report

    def _take(self, name: str) -> None:
        """From now on the tensor's bytes may be written: nobody reads them."""
        with self._lock:
            if self._is_published:
                self.unpublish()
            if self._taken is None:
                return
            if name in self._taken:
                raise InvalidArgument(f"tensor '{name}' was put already: commit() or unpublish()")
            self._taken.add(name)

    def _give_back(self, name: str) -> None:
        """It was not written, and may be put again."""
        with self._lock:
            if self._taken is not None:
                self._taken.discard(name)

    def _declare_waiting(self) -> None:
        for name, tensor in (self._waiting or {}).items():
            if name not in self._layout:  # an earlier commit may have failed after this
                self._declare(name, tensor.dtype, tensor.shape)

    def _declare(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        self._publisher.declare(name, shape, dtype)
        self._layout[name] = (dtype, tuple(shape))

    def leave(self, grace: float = _core.drain_timeout) -> UnpublishReport:
        """Leaves the model for good, as at `Publisher`."""
        return self._publisher.leave(grace)

    def close(self) -> None:
        """Ends it at once."""
        self._publisher.close()


def _is_in_host_memory(tensor: torch.Tensor) -> bool:
    """A DTensor counts as if it were: it is refused there, by its name."""
    return tensor.device.type == "cpu" or hasattr(tensor, "full_tensor")


def _check_is_of_torch(name: str, tensor: object) -> None:
    if not hasattr(tensor, "detach"):
        raise TypeError(
            f"tensor '{name}' is of type {type(tensor).__name__}: give a tensor of torch, such as "
            f"torch.from_numpy(array), or use tensorhub.ArenaPublisher, which takes arrays"
        )


class Receiver(InWithBlock):
    """Receives whole models, whose layout it learns from the hub, into two memories that take turns.

    The shards of a model (one for each rank of a trainer, perhaps) are received together, all of the same version.
    What `tensors` has given stays as it is until the next `receive`. With `memory="cuda"` it is pinned, for copies to a
    GPU. Not thread-safe, but for `close`.

    Each object has two memories of the whole model. With `machine`, a name, all processes of this machine that give the
    same one have two between them (`tensorhub.machine.MachineCopy`): `receive` then takes a `version`, since they could
    not agree on the latest, and a tensor that is kept keeps its version, which delays the update after the next one. A
    process that writes to one is ended by SIGSEGV. Where nothing can be shared each object has its own memories, and a
    warning says why.

    A process that was forked from this one does not have the memory of these tensors, and is ended by SIGSEGV when it
    reads one: this is so in the workers of a DataLoader, unless its `multiprocessing_context` is "spawn". Give them
    copies (`tensor.clone()`).
    """

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        *,
        machine: str = "",
        **options: Unpack[Options],
    ) -> None:
        if options.get("shard") is not None:
            raise InvalidArgument("a Receiver receives all shards: it has no option shard")
        self._shared = MachineCopy(server, model, replica, name=machine, **options) if machine else None
        self._server = server
        self._model = model
        self._replica = replica
        self._options = options
        self._asker = None if machine else Subscriber(server, model, replica, **options)
        """Learns the layout, where this object receives for itself."""
        self._shards: list[Subscriber] = []
        self._layout: list[tuple[Subscriber, str]] = []
        self._is_closed = False
        self.version = 0
        """The version that `tensors` gives; zero: none yet."""

    def receive(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
    ) -> list[UpdateReport]:
        """Receives a version, as `Subscriber.update`; a report for each shard.

        An error leaves what was there; one at the very end, while the shards are exchanged, leaves no version.
        With `machine` the end of the process that has received leaves none.
        """
        if self._shared is not None:
            kind, number = _selector(version, at_least)
            if kind != "exactly":
                raise InvalidArgument("a receiver with machine= takes version=: processes do not agree on another one")
            deadline = time.monotonic() + seconds_of(timeout)
            try:
                return self._shared.receive(number, timeout=timeout)
            except NotShared as e:
                warn_of_own_memory(self._model, e.sentence)
                self._shared.close()
                self._shared = None
                timeout = max(0.0, deadline - time.monotonic())
            finally:
                self.version = 0 if self._shared is None else self._shared.version
        with self._running(version, at_least, timeout) as running:
            return self._install([each.wait(timeout) for each in running])

    def arriving(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Receives a version, and gives each tensor as soon as it is here, while others are on their way.

        After the last one the version is what `tensors` gives, too. An error in the middle, or an iteration that is
        given up, leaves what was there; the tensors that were given are then no version. They must not be written, and
        stay as they are until the next `receive` or `arriving`. With `machine` it gives all of them when all are here.
        """
        if self._shared is not None:
            self.receive(version, at_least=at_least, timeout=timeout)
            yield from self.tensors()
            return
        deadline = time.monotonic() + seconds_of(timeout)
        with self._running(version, at_least, timeout) as running:
            for update in running:
                for name, tensor in update.tensors(timeout=deadline - time.monotonic()):
                    yield name, torch.utils.dlpack.from_dlpack(tensor)
            self._install([each.wait(timeout) for each in running])

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors of the version received last, in the trainer's order. They must not be written."""
        if not self.version:
            raise NotFound("no version was received yet: call receive")
        if self._shared is not None:
            for name, tensor in self._shared.tensors():
                yield name, torch.utils.dlpack.from_dlpack(tensor)
        for shard, name in self._layout:
            yield name, torch.utils.dlpack.from_dlpack(shard.tensor(name))

    def let_go(self) -> None:
        """With `machine`: call it as soon as the weights are loaded, so that others need not wait for this process."""
        if self._shared is not None:
            self._shared.let_go()

    def close(self) -> None:
        """Ends it at once, and its call in another thread soon."""
        self._is_closed = True
        for each in [self._asker, *self._shards]:
            if each is not None:
                each.close()
        if self._shared is not None:
            self._shared.close()

    @contextlib.contextmanager
    def _running(
        self, version: SupportsIndex | None, at_least: SupportsIndex | None, timeout: float
    ) -> Iterator[list[Update]]:
        deadline = time.monotonic() + seconds_of(timeout)
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
        self.version = 0
        for each in self._shards:
            each.install()
        self.version = reports[0].version
        return reports

    def _learn_layout(self, deadline: float) -> None:
        asker = self._asker = self._asker or Subscriber(self._server, self._model, self._replica, **self._options)
        if self._is_closed:  # in another thread, which has not seen it
            self.close()
        count = shards_of_model(asker, self._model, deadline)
        layout = []
        with contextlib.ExitStack() as unfinished:
            shards = []
            for index in range(count):
                options = self._options.copy()
                options["shard"] = (index, count)
                shard = Subscriber(self._server, self._model, self._replica, mode="double_buffered", **options)
                unfinished.callback(shard.close)
                shards.append(shard)
            for index, shard in enumerate(shards):
                for tensor in asker.describe_model(index, max(0.0, deadline - time.monotonic())):
                    shard.allocate(tensor.name, tensor.shape, tensor.dtype)
                    layout.append((shard, tensor.name))
            unfinished.pop_all()
        self._shards, self._layout = shards, layout
        if self._is_closed:  # since the last answer: `close` has not seen these shards
            self.close()
