"""The sending half, in every rank of a trainer; rank 0 holds the weights and tells the engines.

The trainer's tensors are gathered one by one into host memory, which is published from there: the trainer goes on as
soon as the engines have what they asked for, and what they have, other engines read from them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from tensorhub import _core
from tensorhub.errors import InvalidArgument
from tensorhub.integrations.sending import SenderArena, gathered_to_the_end
from tensorhub.server import read_keys, read_public_key
from tensorhub.torch import ArenaPublisher
from tensorhub.workers import Options, Security

__all__ = ["TensorHubTrainerWeightTransferEngine", "TrainerInfo"]


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
    """The last version that was published: the next one is one higher. None: the first one follows the latest that the
    server knows, also after a restart."""
    options: Options | None = None
    """Of the arena's worker: location, listen_host, transport, ..."""
    key_file: str = ""
    """The trainer's `.secret` file, for a server with keys."""
    server_key_file: str = ""
    engine: dict[str, Any] | None = None
    """More fields of `engine.InitInfo`, for all engines."""


class TensorHubTrainerWeightTransferEngine(TrainerWeightTransferEngine):
    """Backend "tensorhub" of vLLM's trainer interface."""

    init_info_cls = TrainerInfo

    def __init__(self, arena: SenderArena | None, version: int | None, **base: Any) -> None:
        """`arena`: of the sender only. The other ranks count from zero, if no version is given."""
        super().__init__(**base)
        self._arena = arena
        self._is_shut_down = False
        self.version = version if arena is not None else version or 0

    @classmethod
    def trainer_init(
        cls, init_info: TrainerInfo, *, client: Any, source: Any = None
    ) -> TensorHubTrainerWeightTransferEngine:
        """Makes the arena, and connects the engines to the same server."""
        if source is None:
            raise InvalidArgument("the backend tensorhub needs a WeightSource")
        arena = None
        if init_info.is_sender:
            layout = [(each.name, each.dtype, each.shape) for each in source.metadata()]
            options = (init_info.options or Options()).copy()
            if init_info.key_file:
                options["security"] = Security(
                    read_public_key(init_info.server_key_file), *read_keys(init_info.key_file)
                )
            given = (init_info.server, init_info.model, init_info.replica, layout)
            arena = SenderArena(lambda: ArenaPublisher(*given, **options), *given[:2], options)
            arena.made()
            client.init_weight_transfer_engine(
                {"server": init_info.server, "model": init_info.model, **(init_info.engine or {})}
            )
        return cls(arena, init_info.version, client=client, source=source, is_sender=init_info.is_sender)

    def send_weights(self) -> None:
        """Publishes the source's tensors as the next version, and has the engines take it.

        An error of the sender is raised when all is gathered: the other ranks, where none is raised, wait for it.
        Nothing of the version is shown then. After `Replaced`, or an eviction, the next call joins anew. If an engine
        fails, the others may have the version, and the next call updates all of them. After `shutdown` it raises
        `InvalidArgument`.
        """
        with gathered_to_the_end(self.source) as gathering:
            if self._is_shut_down:
                raise InvalidArgument("send_weights was called after shutdown: make another engine with trainer_init")
            if self._arena is None:
                self.version = (self.version or 0) + 1
                return
            self.version = self._arena.after(self.version)
            with self._arena.sending(self.version) as arena:
                for name, tensor in gathering:
                    arena.put(name, tensor)
        self._start_update()
        try:
            self.client.update_weights({"version": self.version})
            self.client.finish_weight_update(str(self.version))
        except Exception:
            self._finish_what_was_begun()
            raise

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint: later versions are withdrawn wherever they are held; the next one follows `version`.

        All ranks call it; the sender tells the server. `Refused`: its key has no right `publish`.
        """
        if self._arena is not None:
            self._arena.roll_back_to(version, timeout)
        self.version = version

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
