"""Publishers, subscribers and seeders: the workers of a model.

Every tensor stays the caller's, in place: it is kept alive, and each call that reads or writes it checks that it still
lies where it lay. All time-outs are in seconds. Objects may be used from any thread, but not in a process that was
forked after they were made. A call that waits lets other threads run; Ctrl-C ends it.

A call that reads or writes tensors on GPUs first waits for what is queued on `stream`: a stream of torch or CuPy, or a
`cudaStream_t` as a number; None is torch's current stream of each device where a tensor of torch lies (of its current
device for pinned ones), and for other arrays the stream that they name, or the default stream of their device;
"all_done" says that nothing which touches the tensors is queued or running.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import logging
import math
import operator
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypedDict

from tensorhub import _core
from tensorhub.autograd import WrittenTensors
from tensorhub.errors import Cancelled, Error, InvalidArgument, NotFound
from tensorhub.lifetime import Closable
from tensorhub.modules import Module, WatchedModule
from tensorhub.reports import (
    InstallReport,
    Model,
    Progress,
    PublishReport,
    Replica,
    SnapshotReport,
    Source,
    Stuck,
    TensorSpec,
    UnpublishReport,
    UpdateReport,
)
from tensorhub.server import ReferenceServer

if TYPE_CHECKING:
    from typing_extensions import CapsuleType, Unpack

__all__ = [
    "ArenaPublisher",
    "Location",
    "Mode",
    "Module",
    "Options",
    "Publisher",
    "Security",
    "Seeder",
    "Subscriber",
    "TensorView",
    "Update",
]

_logger = logging.getLogger("tensorhub")
_written = object()
"""In place of a tensor that is not given: None is a mistake."""


def replica_of_process(role: str) -> str:
    """`<role>-<host>-...`, as no other process has: containers of one host may share its name and process numbers."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def shards_of_model(
    worker: _Member, model: str, deadline: float, is_given_up: Callable[[], bool] = lambda: False
) -> int:
    """The number of a model's shards, as soon as a version of it has been published. `deadline` is a monotonic time."""
    pause, answer = 0.1, 0.1  # the last question needs time for its answer, too
    while True:
        # Of all models: a new server says of none that it is not there, until its workers have come back.
        for each in worker.models("", max(0.0, deadline - time.monotonic())):
            if each.name == model and each.available:
                return each.shards
        if is_given_up():
            raise Cancelled(f"nobody waits for model '{model}' any more", model=model)
        if deadline - time.monotonic() < pause + answer:
            raise NotFound(f"no version of model '{model}' has been published", model=model)
        time.sleep(pause)


Mode = Literal["in_place", "staged", "double_buffered"]
"""Where a subscriber receives.

* `in_place`: into its tensors, which are of no version while an update runs.
* `staged`: beside its tensors; `install` copies what was staged over them. One more copy of the shard in host memory.
* `double_buffered`: into one of two memories of the library's own; `install` flips them.
"""


class TensorView(Protocol):
    """A view of memory of the library's: a buffer, and a tensor of DLPack. Read-only, but for an arena's."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = ...,
        max_version: tuple[int, int] | None = ...,
        dl_device: tuple[int, int] | None = ...,
        copy: bool | None = ...,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Location:
    """Where a worker runs, in names of your own; readers take the nearest source. Empty: unknown."""

    datacenter: str = ""
    rack: str = ""
    host: str = ""
    device: str = ""


@dataclass(frozen=True)
class Security:
    """Keys of a worker, for a server that admits only known ones (`tensorhub.make_keys`)."""

    server_key: str
    """The server's public key."""
    public_key: str
    secret_key: str
    trust_sources: bool = False
    """Digests that a source could forge are enough (xxh3_128). Otherwise the weights have blake3_128; all workers of a
    model must agree."""


class Options(TypedDict, total=False):
    """Options that a worker can do without."""

    shard: tuple[int, int]
    """Index and count: which part of the model this process holds."""
    location: Location
    security: Security
    spot: bool
    """May vanish: it serves, but is never relied upon."""
    transport: str
    """"auto" (memory of the same machine is read directly, everything else by TCP), "tcp", "same_host", "verbs" or
    "libfabric". The last two are there where their libraries are; the error says why they are not."""
    listen_host: str
    """Where readers come in: this machine's address on the network that carries the weights. The default is loopback,
    but with a server on another machine the interface from which that server is reached. Verbs: addresses of RDMA
    interfaces, separated by commas; the default is the best one. "same_host" has neither this option nor the next
    two."""
    listen_port: int
    advertised_host: str
    """The host that readers connect to, if it is not `listen_host`. With a `listen_host` of "0.0.0.0" the default is
    this machine's address towards a server on another machine."""
    memory: Literal["host", "cuda"]
    """Where the tensors of a publisher, or of a subscriber in mode in_place or staged, may lie: "host" is the default,
    "cuda" means NVIDIA GPUs as well, each tensor wherever it is. What the library allocates is in host memory; with
    "cuda" it is pinned, so that GPUs copy from it and to it at full speed."""
    provider: str
    """Of libfabric, as `fi_info -l` names it; the default is "tcp"."""
    rdma_device: str
    """Of verbs: only this device, such as "mlx5_0"."""
    for_tenants: bool
    """Of "auto" and "same_host": the host has several tenants. Readers get copies of this worker's memory, and nothing
    of it that they could keep; the process makes no core dumps any more."""
    chunk_bytes: int
    """What is read at once, 1 MiB by default. The same for all workers of a model: with another one a worker is refused
    (`LayoutMismatch`)."""
    lanes: int
    """Threads that read during an update and digest during a publish."""
    window_chunks: int
    far_window_chunks: int
    offload_limit_bytes: int
    """Host memory in which each of its workers may keep retained versions for others."""
    join_timeout: float
    drain_timeout: float
    connect_timeout: float
    server_timeout: float


def _fields_of(name: str, kind: type[Location | Security], group: object) -> dict[str, object]:
    """The fields of a group of options; none if it is None."""
    if group is None:
        return {}
    if isinstance(group, Mapping):  # as a configuration file gives it
        group = kind(**group)
    if not isinstance(group, kind):
        raise TypeError(f"option {name} is {group!r}: give a tensorhub.{kind.__name__}")
    return {field.name: getattr(group, field.name) for field in fields(group)}


def _shard_of(options: Options) -> tuple[int, int]:
    """Of an option that is None, as of one that is left out, the default."""
    return options.get("shard") or (0, 1)


def _given(server: str | ReferenceServer, model: str, replica: str, options: Options) -> dict[str, object]:
    plain: dict[str, object] = dict(options)
    for name, kind in (("location", Location), ("security", Security)):
        plain.update(_fields_of(name, kind, plain.pop(name, None)))
    for name in sorted(options.keys() - Options.__annotations__.keys()):
        near = difflib.get_close_matches(name, Options.__annotations__, 1)
        hint = f"did you mean {near[0]!r}?" if near else "tensorhub.Options has them all"
        raise InvalidArgument(f"there is no option {name!r}: {hint}")
    address = server.address if isinstance(server, ReferenceServer) else server
    return {"server": address, "model": model, "replica": replica, **plain}


def _update_report(told: dict[str, Any]) -> UpdateReport:
    sources = tuple(Source(*each) for each in told.pop("sources"))
    return UpdateReport(**told, sources=sources)


def _number(version: SupportsIndex, argument: str = "version") -> int:
    """A version as the core takes it, whose own refusal names neither the argument nor what is wrong."""
    try:
        number = operator.index(version)
    except TypeError:
        raise TypeError(f"{argument} is {version!r}, of type {type(version).__name__}: give a whole number") from None
    if not 0 <= number < 2**64:
        raise InvalidArgument(f"{argument} is {number}: versions are from 1 to 2**64 - 1")
    return number


def names_of(argument: str, kind: str, given: Iterable[str]) -> list[str]:
    """Names that an argument takes; of one string it would take the letters."""
    if isinstance(given, str):
        raise TypeError(f"{argument}= takes the names of {kind}, and got one string: write {argument}=[{given!r}]")
    names = list(given)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{argument}= takes the names of {kind}, and got {wrong[0]!r}")
    return names


def _number_or_names(replicas: SupportsIndex | Iterable[str]) -> int | list[str]:
    """Whom `wait_held` waits for, as the core takes it."""
    if isinstance(replicas, Iterable):
        return names_of("replicas", "replicas", replicas)
    try:
        number = operator.index(replicas)
    except TypeError:
        raise TypeError(f"replicas is {replicas!r}: give a whole number, or names of replicas") from None
    if not 0 <= number < 2**32:
        raise InvalidArgument(f"replicas is {number}: a number of replicas is from 0 to 2**32 - 1")
    return number


def seconds_of(timeout: float) -> float:
    """A time-out that is reckoned with here, refused as the core refuses it."""
    try:
        is_number = not math.isnan(timeout)
    except (TypeError, OverflowError):
        why = "a time-out has to be a number of seconds; float('inf') waits for a year"
        raise TypeError(why) from None
    if not is_number:
        raise InvalidArgument("a time-out has to be a number of seconds, and NaN is none")
    return float(timeout)


def _selector(version: SupportsIndex | None, at_least: SupportsIndex | None) -> tuple[str, int]:
    if version is not None and at_least is not None:
        raise TypeError("give version or at_least, not both")
    if version is not None:
        return "exactly", _number(version)
    if at_least is not None:
        return "at_least", _number(at_least, "at_least")
    return "latest", 0


def _tensor_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a tensor's name is of type {type(name).__name__}: call add(name, tensor)")
    return name


def _dtype_name(dtype: object) -> str:
    """Ours, or that of a framework's dtype."""
    return str(dtype).removeprefix("torch.")


class _Member(Closable):
    """What publishers, subscribers and seeders have in common."""

    _inner: _core.Publisher | _core.Arena | _core.Subscriber | _core.SharedCopy | _core.Seeder

    def __init__(self, server: str | ReferenceServer, model: str, replica: str, shard: tuple[int, int]) -> None:
        super().__init__()
        self._who = f"{type(self).__name__}({model}/{replica}, shard {shard[0]} of {shard[1]}"

    def __repr__(self) -> str:
        if self._is_of_a_parent:
            return f"{self._who}, made before fork())"
        if self.is_closed:
            return f"{self._who}, closed)"
        held = self._inner.held_version
        return f"{self._who}, {f'version {held}' if held else 'no version'})"

    @property
    def held_version(self) -> int:
        """The version that is held completely (of a subscriber that stages: that is live); zero: none."""
        return self._inner.held_version

    @property
    def offloaded_bytes(self) -> int:
        """Host memory in which this object keeps retained versions for others."""
        return self._inner.offloaded_bytes

    def models(self, model: str = "", timeout: float = _core.join_timeout) -> list[Model]:
        """What the server knows of a model, or of all of them. Works without any tensor."""
        return [
            Model(**{**told, "replicas": tuple(Replica(**each) for each in told["replicas"])})
            for told in self._inner.models(model, timeout)
        ]

    def describe_model(self, shard: int = 0, timeout: float = _core.join_timeout) -> list[TensorSpec]:
        """The tensors of a shard of this model, as its first worker announced them. Works without any tensor."""
        return [TensorSpec(*each) for each in self._inner.describe_model(shard, timeout)]

    def why(self, timeout: float = _core.join_timeout) -> str:
        """How the server has chosen this worker's sources: a line for each decision, the latest last."""
        return self._inner.why(timeout)

    def stuck(self, older_than: float = 1.0, timeout: float = _core.join_timeout) -> list[Stuck]:
        """What in this model has waited for longer than `older_than`, and for what; the oldest first."""
        return [Stuck(**told) for told in self._inner.stuck(older_than, timeout)]

    def retain(self, versions: int, timeout: float = _core.join_timeout) -> None:
        """The latest `versions` of this model are not to be lost: their last reliable holder hands them over."""
        self._inner.retain(versions, timeout)

    def pin(self, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Retains one version until it is released."""
        self._inner.pin(_number(version), timeout)

    def release(self, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Ends a `pin`."""
        self._inner.release(_number(version), timeout)


class _Worker(_Member):
    """What publishers and subscribers have in common."""

    _inner: _core.Publisher | _core.Arena | _core.Subscriber | _core.SharedCopy

    def join(self) -> None:
        """Joins the model. Implied by the first call that needs it; call it to find errors early."""
        self._inner.join()

    def unpublish(self, timeout: float = _core.drain_timeout) -> UnpublishReport:
        """Hides what is shown, and returns when nobody reads it any more: the memory is the caller's again.

        At the deadline, and at Ctrl-C, the remaining readers are cut off.
        """
        return UnpublishReport(**self._inner.unpublish(timeout))

    def leave(self, grace: float = _core.drain_timeout) -> UnpublishReport:
        """Leaves the model for good: readers end or are moved, and what is retained is handed over, within `grace`."""
        return UnpublishReport(**self._inner.leave(grace))


class _Trainer(_Worker):
    """Workers that publish."""

    _inner: _core.Publisher | _core.Arena

    def wait_held(
        self,
        version: SupportsIndex,
        replicas: SupportsIndex | Iterable[str],
        timeout: float = _core.update_timeout,
    ) -> tuple[str, ...]:
        """Waits until other replicas hold `version`, or a newer one, in all shards, and returns their names.

        `replicas`: how many, or the names of those that all have to. They have *received* it: one that stages counts
        before it has installed it. A copy that `retain` has made does not count; a seeder or another trainer does,
        unless names are given. Whoever dies, or updates again meanwhile, does not count any more.
        Of a trainer of several shards one is enough to call this. `TimedOut` says who holds it, and what the others
        hold; `Unavailable`: it was there, and for 5 s nobody has held it or read anything.
        """
        return tuple(self._inner.wait_held(_number(version), _number_or_names(replicas), timeout))

    def roll_back_to(self, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint: later versions are withdrawn wherever they are held, and may be published again."""
        self._inner.roll_back_to(_number(version), timeout)

    def statistics(self) -> dict[str, Any]:
        """What it has done since it was made: calls by outcome, bytes, times."""
        return self._inner.statistics()


class _InPlace(_Worker):
    """Workers of the caller's tensors."""

    _inner: _core.Publisher | _core.Subscriber

    def __init__(self, server: str | ReferenceServer, model: str, replica: str, shard: tuple[int, int]) -> None:
        super().__init__(server, model, replica, shard)
        self._modules: list[WatchedModule] = []

    def add(self, name: str, tensor: object) -> None:
        """Tells of one tensor: of torch, of numpy, or anything with `__dlpack__` or a buffer; never copied.

        All workers of a shard add the same tensors in the same order, before any other call.
        """
        self._add_pairs([(name, tensor)])

    def add_all(self, tensors: Module | Mapping[str, object] | Iterable[tuple[str, object]]) -> None:
        """Adds a module's parameters and persistent buffers (tied ones once, by their first name), or what is given.

        After an error none of them is added. Give the module: each later call that reads or writes the tensors asks it
        (by `state_dict(keep_vars=True)`) whether it still has them, and refuses if it has others. With
        `named_parameters()` nobody notices that a module has replaced a parameter, and with `state_dict()`, which makes
        other tensors over the memory of this moment, not even that a parameter was given other memory.
        """
        if isinstance(tensors, Module):
            watched = WatchedModule(tensors)
            self._add_pairs(watched.to_add())
            self._modules.append(watched)
            return
        self._add_pairs(tensors.items() if isinstance(tensors, Mapping) else tensors)

    def _add_pairs(self, pairs: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        named = [(_tensor_name(name), tensor) for name, tensor in pairs]
        self._inner.add_all(named)
        return named

    def join(self) -> None:
        """Joins the model. Implied by the first call that needs it; call it to find errors early."""
        self._check_modules()
        super().join()

    def close(self) -> None:
        """Ends this object at once, and its calls in other threads soon; readers that still read are cut off.

        The tensors are let go, unless a call or an update uses them still: then with this object. A worker that leaves
        its model for good, and has time to, calls `leave`.
        """
        super().close()
        if not self._inner.keeps_tensors:
            self._let_go()

    def _let_go(self) -> None:
        self._modules = []

    def _check_modules(self) -> None:
        for each in self._modules:
            each.check()


class Publisher(_InPlace, _Trainer):
    """A trainer: its tensors become versions, in place or as a copy.

    >>> trainer = Publisher(server, model="policy", replica="trainer-0")
    >>> trainer.add_all(module)
    >>> with trainer.published(step):   # the tensors must not change in here
    ...     evaluate()
    """

    _inner: _core.Publisher

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        **options: Unpack[Options],
    ) -> None:
        self._inner = _core.Publisher(_given(server, model, replica, options))
        super().__init__(server, model, replica, _shard_of(options))

    def publish(
        self,
        version: SupportsIndex,
        timeout: float = _core.join_timeout,
        *,
        stream: object = None,
        changed: Iterable[str] | None = None,
    ) -> PublishReport:
        """Shows the tensors' bytes as `version`. They must not change until `unpublish` has returned.

        `changed`: only the tensors of these names have changed since the last publish, and the others keep their
        digests, which takes less time. A few chunks of the others are digested all the same: ContractBroken, if
        one has changed and was left out.
        """
        names = None if changed is None else names_of("changed", "tensors", changed)
        self._check_modules()
        before, number = self.held_version, _number(version)
        try:
            return PublishReport(**self._inner.publish(number, timeout, stream, names))
        except Error:
            raise
        except BaseException:  # Ctrl-C: it may have been published meanwhile
            with contextlib.suppress(Error):
                if self.held_version == number != before:
                    self.unpublish(0)
            raise

    def publish_snapshot(
        self, version: SupportsIndex, stride: int = 1, timeout: float = _core.join_timeout, *, stream: object = None
    ) -> SnapshotReport:
        """Publishes a copy of the tensors, which may change as soon as this returns; needs no `unpublish`.

        A snapshot is served until the second next one takes its memory. A trainer that publishes every tenth version
        only says `stride=10`. Costs the host memory of two shards.
        """
        self._check_modules()
        return SnapshotReport(**self._inner.publish_snapshot(_number(version), stride, timeout, stream))

    @contextlib.contextmanager
    def published(
        self,
        version: SupportsIndex,
        timeout: float = _core.join_timeout,
        *,
        stream: object = None,
        changed: Iterable[str] | None = None,
        drain_timeout: float = _core.drain_timeout,
    ) -> Iterator[PublishReport]:
        """Publishes `version`, as `publish` does, for the time of a `with` block, at whose end it is unpublished.

        That takes `drain_timeout` at most, and a second where Ctrl-C, `exit()` or a cancelled task leaves the block. If
        it cut off readers, or lost the version, a warning is logged; call `publish` and `unpublish` yourself to get the
        report.
        """
        report = self.publish(version, timeout, stream=stream, changed=changed)
        try:
            yield report
        except BaseException as e:
            if not isinstance(e, Exception):
                drain_timeout = min(drain_timeout, 1.0)
            try:
                self._warn_about(version, self.unpublish(drain_timeout))
            except Error as failure:  # the block's own error says more
                _logger.warning("%s): version %d could not be unpublished: %s", self._who, version, failure)
            raise
        self._warn_about(version, self.unpublish(drain_timeout))

    def _warn_about(self, version: SupportsIndex, report: UnpublishReport) -> None:
        if report.lost:
            why = "may be lost: it is retained, and no other worker is known to have taken it over"
            _logger.warning("%s): version %d %s", self._who, version, why)
        if report.forced:
            why = "was unpublished by force, when drain_timeout was over: whoever still read it was cut off"
            _logger.warning("%s): version %d %s", self._who, version, why)


class ArenaPublisher(_Trainer):
    """A trainer that has no tensors to publish in place: they are handed over one by one, into memory of our own.

    >>> trainer = ArenaPublisher(server, model="policy", replica="trainer-0")
    >>> trainer.declare("wq", (4096, 4096), "bf16")      # the layout
    >>> trainer.begin(step)                              # from now on workers that wait for it read along
    >>> for name, tensor in gathered:                    # in any order, from several threads
    ...     trainer.put(name, tensor)
    >>> trainer.commit(step)                             # every tensor was put: the version is whole

    A version that was begun is received chunk by chunk while it is filled, by subscribers that stage; it counts only
    when it is committed, and nobody is told of it before.
    """

    _inner: _core.Arena

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        **options: Unpack[Options],
    ) -> None:
        self._inner = _core.Arena(_given(server, model, replica, options))
        self._names: set[str] = set()
        super().__init__(server, model, replica, _shard_of(options))

    def declare(self, name: str, shape: Sequence[int], dtype: object) -> None:
        """Tells of one tensor, before any other call; in every worker of the shard alike.

        `dtype`: "bf16", "f32", ..., or that of a tensor of torch or an array of numpy.
        """
        self._inner.declare(name, list(shape), _dtype_name(dtype))
        self._names.add(name)

    def begin(self, version: SupportsIndex, timeout: float = _core.drain_timeout) -> None:
        """What is put from now on can be read at once, by those that wait for `version` or for a newer one.

        What was published before is taken back first, within `timeout`; the server's answer to the rest may take half a
        minute more. Without this call nothing is shown until `commit`.
        """
        self._inner.begin(_number(version), timeout)

    def put(self, name: str, tensor: object = _written) -> None:
        """Copies one tensor in host memory to its place. It may change when this returns.

        Without a tensor it is the bytes that were written to where `tensor` says. The first `put` after a `commit`
        takes that version back.
        """
        if tensor is _written:
            self._inner.put_written(name)
        else:
            self._inner.put(name, tensor)

    def tensor(self, name: str) -> TensorView:
        """Where a tensor's bytes belong, as an array of one's own: `numpy.asarray(arena.tensor("scale"))[...] = scale`.

        NumPy has no bf16 and no f8: its array of such a tensor is an object, and what is assigned to it is not written
        to the tensor. Use `torch.from_dlpack(arena.tensor("wq")).copy_(weights)` for these types.

        They may be written while nothing is published (after `begin` or `unpublish`, or before the first `commit`),
        and before the tensor is put. The memory lives as long as the array, also beyond `close`.
        """
        if name not in self._names:  # after the core's own look-up nothing more can be declared
            raise InvalidArgument(f"no tensor '{name}' was added: call declare(name, shape, dtype) before")
        return self._inner.tensor(name)

    def commit(self, version: SupportsIndex, timeout: float = _core.join_timeout) -> PublishReport:
        """Publishes what was put as `version`. Every tensor must have been put since the last `commit`."""
        return PublishReport(**self._inner.commit(_number(version), timeout))


class Update(Closable):
    """An update that runs: watch it, wait for it, `await` it, cancel it.

    A task that is cancelled while it awaits cancels the update, and ends when the update has: no byte is written
    afterwards. Nothing runs in the event loop meanwhile but its own selector. It is no coroutine: a task of it is
    `asyncio.ensure_future(update)`; `asyncio.create_task` refuses it.
    """

    _inner: _core.Update
    _closes = 0

    def __init__(self, core: _core.Update, ended: Callable[[bool | None], None] | None = None) -> None:
        self._inner = core
        self._ended = ended
        super().__init__()

    def close(self) -> None:
        """Cancels it, and waits until it has ended."""
        self._inner.close()
        self._see_end()

    def done(self) -> bool:
        """It has ended: with a result, an error, or by cancellation."""
        is_done = self._inner.done()
        if is_done:
            self._see_end()
        return is_done

    def _see_end(self) -> None:
        """Says once whether it has kept what was there; None: it has no result."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        kept = None
        with contextlib.suppress(Error):
            kept = self._inner.result()["kept"]
        ended(kept)

    def progress(self) -> Progress:
        """How far it is."""
        progress = Progress(**self._inner.progress())
        if progress.done:
            self.done()
        return progress

    def __del__(self) -> None:
        """Torch hears of the tensors also of an update that nobody has seen end."""
        ended = getattr(self, "_ended", None)
        if ended is None:
            return
        with contextlib.suppress(Exception):  # also at the end of the interpreter
            if not self.is_closed and self._inner.done():
                self._see_end()
            else:
                ended(False)

    def cancel(self) -> None:
        """It ends soon with `Cancelled`, unless it has just succeeded."""
        self._inner.cancel()

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended; it stays this object's."""
        return self._inner.descriptor()

    def wait(self, timeout: float = _core.update_timeout) -> UpdateReport:
        """The result, or the update's error; `TimedOut` if it still runs after `timeout`. Ctrl-C cancels it."""
        try:
            self._inner.wait(timeout)
            return _update_report(self._inner.result())
        finally:
            with contextlib.suppress(Error):  # it may be closed meanwhile
                self.done()

    def tensors(self, names: Iterable[str] = (), timeout: float = _core.update_timeout) -> Iterator[tuple[str, Any]]:
        """Names and tensors as they arrive, verified, in the order of `names` (all, in the order of `add`).

        What is waited for is read first. In mode in_place these are your tensors; otherwise they are read-only views
        of what is staged, which stay as they are until the next `stage`. The iteration ends when the version is
        complete; if it raises, what it gave before is no version. `timeout` is for all of them.
        """
        deadline = time.monotonic() + seconds_of(timeout)
        arriving = self._inner.tensors(list(names))
        while (next_one := arriving.next(max(0.0, deadline - time.monotonic()))) is not None:
            yield next_one
        if self._ended is not None:
            with contextlib.suppress(Error):
                self._inner.wait(max(0.0, deadline - time.monotonic()))
                self.done()

    def __await__(self) -> Generator[Any, None, UpdateReport]:
        return self._awaited().__await__()

    async def _awaited(self) -> UpdateReport:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.dup(self.fileno())  # of this task alone, and open until its end, also beside close()
        loop.add_reader(descriptor, ended.set)
        stopped: asyncio.CancelledError | None = None
        try:
            while not self.done():
                try:
                    await ended.wait()
                except asyncio.CancelledError as e:
                    stopped = e
                    self.cancel()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        if stopped is not None:
            try:
                raise stopped
            finally:
                del stopped  # its trace leads to this frame
        return _update_report(self._inner.result())


class Subscriber(_InPlace):
    """A rollout: versions are read into its tensors, and served on to others from the first byte on.

    >>> rollout = Subscriber(server, model="policy", replica="rollout-3")
    >>> rollout.add_all(module)
    >>> rollout.update()                # the latest version there is

    All shards of a replica make the same calls in the same order; when a call has failed in one of them, all repeat it.
    """

    _inner: _core.Subscriber

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        *,
        mode: Mode = "in_place",
        **options: Unpack[Options],
    ) -> None:
        self._inner = _core.Subscriber(_given(server, model, replica, options), mode)
        self._mode = mode
        self._written = WrittenTensors()
        super().__init__(server, model, replica, _shard_of(options))

    def _add_pairs(self, pairs: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        named = super()._add_pairs(pairs)
        for _, tensor in named:
            self._written.add(tensor)
        return named

    def _let_go(self) -> None:
        super()._let_go()
        self._written = WrittenTensors()

    def allocate(self, name: str, shape: Iterable[int], dtype: object) -> None:
        """Mode `double_buffered`: tells of one tensor, whose memory is the library's, as `ArenaPublisher.declare`."""
        self._inner.allocate(name, list(shape), _dtype_name(dtype))

    def tensor(self, name: str) -> TensorView:
        """Mode `double_buffered`: a read-only view of a tensor's live bytes, for `numpy.asarray` or `from_dlpack`.

        They change when the first `stage` after the next `install` begins; ask again after each `install`.
        A process that was forked from this one (a worker of a torch DataLoader is, on Linux) does not have the memory,
        and is ended by SIGSEGV when it reads it: give it a copy, or start it by spawn.
        """
        return self._inner.tensor(name)

    def update(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
        prefer_local: bool = False,
        retry: bool = False,
        stream: object = None,
    ) -> UpdateReport:
        """Takes a version: the latest that is there now, or `version`, or one that is `at_least` so high.

        The first and the last keep what is held if that is as new. A version that is not there yet is waited for, and
        with neither argument only if nothing is held. `prefer_local`: only what this datacenter holds completely.
        In mode `in_place` the bytes are undefined while this runs, and after an error; in the others this is `stage`
        and `install`, and an error leaves what is live. `retry`: it is repeated while it fails with errors that are
        `retryable`, all within `timeout`; not for one of several shards, which repeat a call together.
        Weights of torch that are updated between a forward pass and its backward pass make `backward` raise.
        """
        self._check_modules()
        if self._mode == "in_place":
            return self._receive(version, at_least, timeout, prefer_local, retry, stream)
        started = time.monotonic()
        deadline = started + seconds_of(timeout)
        kept = self._inner.kept_report(*_selector(version, at_least), timeout)
        if kept is not None:
            return _update_report(kept)
        report = self._receive(version, at_least, max(0.0, deadline - time.monotonic()), prefer_local, retry)
        installed = self._install(max(0.0, deadline - time.monotonic()), retry, stream)
        return replace(
            report,
            kept=report.kept and installed["kept"],
            lost=report.lost or installed["lost"],
            seconds=time.monotonic() - started,
        )

    def stage(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
        prefer_local: bool = False,
        retry: bool = False,
    ) -> UpdateReport:
        """Modes `staged` and `double_buffered`: receives a version beside what is live, which stays as it is."""
        self._refuse_in_place("stage")
        self._check_modules()
        return self._receive(version, at_least, timeout, prefer_local, retry)

    def install(self, timeout: float = _core.update_timeout, *, stream: object = None) -> InstallReport:
        """Makes live what was staged: a local copy, or a flip. Nobody may use the weights meanwhile."""
        self._check_modules()
        return InstallReport(**self._install(timeout, False, stream))

    def update_async(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
        prefer_local: bool = False,
        stream: object = None,
    ) -> Update:
        """Mode `in_place`: waits for `stream`, begins an `update` and returns; the update can be awaited."""
        if self._mode != "in_place":
            raise _wrong_mode("update_async", "in_place (in others: stage_async, then install)")
        which = _selector(version, at_least)
        self._check_modules()
        ended, may_write = self._begin_to_write(), self._may_write(*which)
        update = Update(self._inner.receive_async(*which, timeout, prefer_local, stream), ended)
        if may_write:  # nobody may ever ask this object how it has ended
            self._written.tell_torch()
        return update

    def stage_async(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
        prefer_local: bool = False,
    ) -> Update:
        """Modes `staged` and `double_buffered`: begins a `stage` and returns; it can be awaited.

        The first one allocates the memory of the stage before it returns, which takes a while for large models; in an
        event loop call `join` before, in a thread, or make the first `stage` there.
        """
        self._refuse_in_place("stage_async")
        which = _selector(version, at_least)
        self._check_modules()
        return Update(self._inner.receive_async(*which, timeout, prefer_local, None))

    @property
    def staged_version(self) -> int:
        """The version that lies beside the live one, completely; zero: none."""
        return self._inner.staged_version

    def newer(self) -> int | None:
        """The newest version that the server has told of, if it is newer than what is held. Never waits."""
        return self._inner.newer() or None

    def wait(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
    ) -> int:
        """Waits until such a version can be read, and returns its number; reads nothing."""
        return self._inner.wait(*_selector(version, at_least), timeout)

    def statistics(self) -> list[dict[str, Any]]:
        """What it has done since it was made, for each of its workers: one in place, two in the other modes."""
        return self._inner.statistics()

    def _receive(
        self,
        version: SupportsIndex | None,
        at_least: SupportsIndex | None,
        timeout: float,
        prefer_local: bool,
        retry: bool,
        stream: object = None,
    ) -> UpdateReport:
        which = _selector(version, at_least)
        if self._mode != "in_place":
            return _update_report(self._inner.receive(*which, timeout, prefer_local, retry, stream))
        ended, kept = self._begin_to_write(), None
        try:
            told = self._inner.receive(*which, timeout, prefer_local, retry, stream)
            kept = told["kept"]
            return _update_report(told)
        finally:
            ended(kept)

    def _may_write(self, kind: str, number: int) -> bool:
        """Whether an update is likely to write: as far as this process knows, something else is held than it takes."""
        if not self._written:
            return False
        held = self._inner.held_version
        if held == 0:
            return True
        if kind == "exactly":
            return number != held
        return number > held if kind == "at_least" else self._inner.newer() > held

    def _install(self, timeout: float, retry: bool, stream: object) -> dict[str, Any]:
        if self._written and not self._inner.staged_version:
            return self._inner.install(timeout, retry, stream)  # has nothing to write, and says so
        ended, kept = self._begin_to_write(), None
        try:
            told = self._inner.install(timeout, retry, stream)
            kept = told["kept"]
            return told
        finally:
            ended(kept)

    def _begin_to_write(self) -> Callable[[bool | None], None]:
        """What is to be called at the end, with whether the tensors were left as they are; None: nobody knows."""
        before = self._inner.held_version if self._written else 0
        return functools.partial(self._end_writing, before)

    def _end_writing(self, before: int, kept: bool | None) -> None:
        if kept is None and before != 0:
            with contextlib.suppress(Error):  # it may be closed
                kept = self._inner.held_version == before  # an update that has begun to write holds none
        if self._written and not kept:
            self._written.tell_torch()

    def _refuse_in_place(self, call: str) -> None:
        if self._mode == "in_place":
            raise _wrong_mode(call, "staged or double_buffered")


def _wrong_mode(call: str, modes: str) -> Exception:
    return InvalidArgument(f"{call} is for subscribers in mode {modes}")


class Seeder(_Member):
    """Brings each version into this machine's host memory by itself, for the readers nearby. Needs no tensors."""

    _inner: _core.Seeder

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        **options: Unpack[Options],
    ) -> None:
        self._inner = _core.Seeder(_given(server, model, replica, options))
        super().__init__(server, model, replica, _shard_of(options))

    @property
    def last_failure(self) -> str:
        """What went wrong last; empty: nothing so far."""
        return self._inner.last_failure

    def wait(self, version: SupportsIndex, timeout: float = _core.update_timeout) -> int:
        """Waits until it holds `version` or a later one."""
        return self._inner.wait(_number(version), timeout)

    def statistics(self) -> dict[str, Any]:
        """What it has done since it was made."""
        return self._inner.statistics()
