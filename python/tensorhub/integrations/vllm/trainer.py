"""The sending half, in every rank of a trainer; the first ranks hold the weights, and rank 0 tells the engines.

The trainer's tensors are gathered one by one into host memory, which is published from there: the trainer goes on as
soon as the engines have what they asked for, and what they have, other engines read from them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from tensorhub import _core
from tensorhub.errors import InvalidArgument
from tensorhub.integrations.sending import SenderArena, Share, gathered_to_the_end
from tensorhub.server import read_keys, read_public_key
from tensorhub.torch import ArenaPublisher
from tensorhub.workers import Options, Security

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["TensorHubTrainerWeightTransferEngine", "TrainerInfo"]

_OUT_OF_STEP = 2


@dataclass
class TrainerInfo(TrainerInitInfo):
    """Where the weights are published, and what the engines are told (`engine.InitInfo`).

    vLLM's own field `rank`, of this process among the trainer's, has to be given: `TrainerInfo(rank=0, ...)`.
    """

    backend: ClassVar[str] = "tensorhub"

    server: str = ""
    model: str = ""
    replica: str = "trainer-0"
    version: int | None = None
    """The last version that was published: the next one is one higher. None: the latest that the server knows, also
    after a restart. (Ranks that send nothing count from zero then.) Of several senders each asks the server,
    when it has gathered the first tensor of a version. Where that is no collective, another barrier has to come before
    the first `send_weights`: rank 0 withdraws in `trainer_init` what an earlier trainer has not finished."""
    senders: int = 1
    """How many ranks, from the first on, put a part of the tensors each, and share the work of serving them."""
    overlap: bool = False
    """The engines are asked to take a version when it is begun, and receive it while it is gathered. They generate
    nothing meanwhile, and the gathering counts towards their `timeout`. Not the first version, whose layout they learn
    only when it is whole: if it did not come, they would wait for it until their `timeout`."""
    options: Options | None = None
    """Of the arena's worker: location, listen_host, transport, ..."""
    key_file: str = ""
    """The trainer's `.secret` file, for a server with keys."""
    server_key_file: str = ""
    engine: dict[str, Any] | None = None
    """More fields of `engine.InitInfo`, for all engines."""


def _options_of(info: TrainerInfo) -> Options:
    options = (info.options or Options()).copy()
    if info.key_file:
        options["security"] = Security(read_public_key(info.server_key_file), *read_keys(info.key_file))
    if info.senders > 1:
        options["shard"] = (info.rank, info.senders)
    return options


class TensorHubTrainerWeightTransferEngine(TrainerWeightTransferEngine):
    """Backend "tensorhub" of vLLM's trainer interface."""

    init_info_cls = TrainerInfo

    def __init__(
        self,
        arena: SenderArena | None,
        others: Collection[str],
        version: int,
        *,
        shares: bool = False,
        overlap: bool = False,
        **base: Any,
    ) -> None:
        """`arena`: of a sender. `others`: names of the tensors that other senders put. `shares`: there are some."""
        super().__init__(**base)
        self._arena = arena
        self._others = others
        self._shares = shares
        self._sends = 0
        """Since `trainer_init` or `roll_back_to`; all ranks have the same number."""
        self._failed = 0
        """How many of the last versions did not become whole; `_OUT_OF_STEP`: others are ahead of them."""
        self._overlaps = overlap and self.is_sender
        self._has_sent = False
        self._is_shut_down = False
        self.version = version

    @classmethod
    def trainer_init(
        cls, init_info: TrainerInfo, *, client: Any, source: Any = None
    ) -> TensorHubTrainerWeightTransferEngine:
        """Makes the arena of a sender, and connects the engines to the same server."""
        if source is None:
            raise InvalidArgument("the backend tensorhub needs a WeightSource")
        if init_info.senders < 1:
            raise InvalidArgument(f"senders is {init_info.senders}: at least one of the trainer's ranks has to send")
        arena, others, version = None, frozenset[str](), init_info.version or 0
        layout: list[tuple[str, Any, Any]] = []
        if init_info.rank < init_info.senders:
            options = _options_of(init_info)
            connect = (init_info.server, init_info.model, init_info.replica)
            arena = SenderArena(
                lambda: ArenaPublisher(*connect, layout, **options), *connect[:2], options, init_info.senders
            )
            arena.known = version
            if init_info.version is None and init_info.is_sender:
                version = arena.after(None) - 1
        whole = source.metadata()  # which may be a collective of all ranks
        if arena is not None:
            share = Share(init_info.rank, init_info.senders)
            own = [each for each in whole if share.takes(math.prod(each.shape) * each.dtype.itemsize)]
            others = frozenset(each.name for each in whole) - {each.name for each in own}
            layout.extend((each.name, each.dtype, each.shape) for each in own)
            arena.made()
        if init_info.is_sender:
            client.init_weight_transfer_engine(
                {"server": init_info.server, "model": init_info.model, **(init_info.engine or {})}
            )
        given = {"client": client, "source": source, "is_sender": init_info.is_sender}
        return cls(arena, others, version, shares=init_info.senders > 1, overlap=init_info.overlap, **given)

    def send_weights(self) -> None:
        """Publishes the source's tensors as the next version, and has the engines take it.

        An error of a sender is raised when all is gathered: the other ranks, where none is raised, wait for it.
        Nothing of the version is shown then, and if it is an error of another sender, rank 0 raises that of its
        engines. After `Replaced`, or an eviction, the next call joins anew. If an engine fails, the others may have the
        version, and the next call updates all of them. After `shutdown` it raises `InvalidArgument`.
        """
        with self._updating_engines() as begin, gathered_to_the_end(self.source) as gathering:
            if self._is_shut_down:
                raise InvalidArgument("send_weights was called after shutdown: make another engine with trainer_init")
            if self._arena is None:
                self.version += 1
                return
            first = self._take_number(self._arena, gathering)
            with self._arena.sending(self.version) as arena:
                if self._overlaps and self._has_sent:
                    begin()
                for name, tensor in itertools.chain(first, gathering):
                    if name not in self._others:
                        arena.put(name, tensor)
        self._has_sent = True

    def _take_number(self, arena: SenderArena, gathering: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Sets `version` to the next number, and returns what was gathered before.

        Several senders count in step, whether or not a version becomes whole. If two in a row did not, or others are
        ahead, they may be out of step, and take the latest version plus the number of all sends: that is higher than
        what any of them has tried, so nothing has to be withdrawn, and all get the same, since none has committed its
        part of the next version before all have asked the server.
        """
        if not self._shares:
            self.version = arena.after(self.version)
            return []
        last = self.version
        self.version += 1
        self._sends += 1
        first = list(itertools.islice(gathering, 1))  # the others are here now, and have sent what they sent before
        latest = arena.latest()
        self._failed = 0 if last == latest else self._failed + 1 if last > latest else _OUT_OF_STEP
        if self._failed >= _OUT_OF_STEP:
            self.version = latest + self._sends
        return first

    @contextlib.contextmanager
    def _updating_engines(self) -> Iterator[Callable[[], None]]:
        """Has the engines take the version after the `with` block, or from the call of what it gives on.

        If the block fails, an engine that has begun hears from the hub that the version does not come, and its error,
        which follows from the block's, is not raised.
        """
        running: Future[None] | None = None
        has_begun = False

        def begin() -> None:
            nonlocal running, has_begun
            self._start_update()
            has_begun = True
            pool = ThreadPoolExecutor(1)
            running = pool.submit(self.client.update_weights, {"version": self.version})
            pool.shutdown(wait=False)

        try:
            yield begin
            if not self.is_sender:
                return
            if running is None:
                self._start_update()
                has_begun = True
                self.client.update_weights({"version": self.version})
            else:
                running.result()
            self.client.finish_weight_update(str(self.version))
        except Exception:
            if running is not None:
                wait([running])
            if has_begun:
                self._finish_what_was_begun()
            raise

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint: later versions are withdrawn wherever they are held; the next one follows `version`.

        All ranks call it, before one of them sends again. `Refused`: the trainer's key has no right `publish`.
        """
        if self._arena is not None:
            self._arena.roll_back_to(version, timeout)
        self.version, self._sends, self._failed = version, 0, 0

    def _start_update(self) -> None:
        """An engine may still have an update that nobody has finished, of an earlier trainer perhaps."""
        try:
            self.client.start_weight_update()
        except Exception:  # noqa: BLE001 (each client has its own; the second call's goes to the caller)
            self._finish_what_was_begun()
            self.client.start_weight_update()

    def _finish_what_was_begun(self) -> None:
        """Of several engines those that have not failed have an update, and would refuse the next one."""
        with contextlib.suppress(Exception):  # of those that have failed
            self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Leaves the hub for good; the engines go on with what they have."""
        self._is_shut_down = True
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.leave()
