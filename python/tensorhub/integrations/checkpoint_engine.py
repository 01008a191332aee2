"""What the checkpoint engines of verl and of NeMo-RL have in common.

Both gather the trainer's weights tensor by tensor, in all of its ranks, and give every rollout worker the whole model
tensor by tensor. The trainer's first rank, or its first few, put them into an arena; a rollout worker receives the
version beside what it has, from the trainer or from other workers, and then hands it over. No process group is built:
workers may come, go and be replaced between two updates.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tensorhub import _core
from tensorhub.errors import InvalidArgument, Replaced
from tensorhub.integrations.sending import SenderArena, Share, gathered_to_the_end
from tensorhub.machine import machine_name
from tensorhub.torch import ArenaPublisher, Receiver
from tensorhub.workers import replica_of_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import torch
    from typing_extensions import Unpack

    from tensorhub.workers import Options

__all__ = ["HubWeights"]


class HubWeights:
    """Sends or receives whole models, one version after the other.

    `server`: without it nothing works; a trainer can make one by `tensorhub.ReferenceServer`, or run the command
    `tensorhub server`. `replica`: without it each object has a name of its own, "trainer-<host>-..." or
    "rollout-<host>-...". Leave it out where all processes are given the same values, as in verl: the newest of several
    workers with one name replaces the others. Versions count from 1; steps that count from 0 are one less. `senders`:
    how many of a trainer's ranks put a part of the tensors each, so that their machines share the work of serving them;
    they are one replica, which is "trainer-0" without a name.

    The rollouts of a machine that are given the same values have one received copy between them, unless
    `once_per_machine` is false, or `memory` is "cuda": such memory is not shared. Frameworks update them together.
    `machine`, a name of your own, lets those share, too, that differ in their `replica`.
    """

    def __init__(
        self,
        *,
        server: str = "",
        model: str = "policy",
        replica: str = "",
        timeout: float = 600.0,
        once_per_machine: bool = True,
        senders: int = 1,
        machine: str = "",
        **options: Unpack[Options],
    ) -> None:
        if not server:
            raise InvalidArgument("engine_kwargs has no server: give the reference server's address, tcp://host:port")
        if senders < 1:
            raise InvalidArgument(f"senders is {senders}: at least one of the trainer's ranks has to send")
        self._server = server
        self._model = model
        self._reader = replica or replica_of_process("rollout")
        self._sender = replica or ("trainer-0" if senders > 1 else replica_of_process("trainer"))
        self._timeout = timeout
        self._senders = senders
        self._rank = 0
        self._options = options
        shares = once_per_machine and options.get("memory") != "cuda"
        self._machine = machine_name(server, model, options, engine=replica, shared=machine) if shares else ""
        self._arena = SenderArena(self._make_arena, server, model, options, senders)
        self._receiver: Receiver | None = None
        self.version = 0
        """The last version that was sent or received; zero: none."""

    @property
    def has_lost_count(self) -> bool:
        """A version was refused, or another rank has another one: `next_version` asks the server."""
        return self._arena.has_lost_count

    def next_version(self) -> int:
        """The number after `version`; as long as there is none, after the latest that the server knows, or was tried.

        None of the trainer's ranks may send meanwhile: of several `senders`, what an earlier trainer has not finished
        is withdrawn, before this one sends for the first time.
        """
        return self._arena.after(self.version or None)

    def send(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, rank: int, ranks: int) -> None:
        """Publishes the weights as `version`: all ranks of the trainer gather them, and the first `senders` put them.

        After an error nothing of the version is shown; the error is raised when all is gathered, since the other
        ranks, where none is raised, wait for this one. If one of several senders fails, rollouts that wait for the
        version fail (`Unavailable`, `TimedOut`). After `Replaced`, or an eviction, the next `send` joins anew.
        """
        self._rank = rank
        with gathered_to_the_end(weights) as gathering:
            if self._senders > ranks:
                raise InvalidArgument(
                    f"senders is {self._senders}, and the trainer has {ranks} ranks: give at most that"
                )
            if rank < self._senders:
                share = Share(rank, self._senders)
                with self._arena.sending(version) as arena:
                    for name, tensor in gathering:
                        if share.takes(tensor.nbytes):
                            arena.put(name, tensor)
        self.version = version

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint: later versions are withdrawn wherever they are held. One rank of a trainer calls it.

        Rollouts must not be asked for a version that is published again before this has returned: they could get the
        bytes that are withdrawn. `Refused`: the trainer's key has no right `publish`.
        """
        self._arena.roll_back_to(version, timeout)
        self.version = version

    async def receive(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Receives `version`, and then yields its tensors, which stay as they are until the next `receive`.

        One that is kept for longer delays the other rollouts of the machine, which share it.
        A task that is cancelled while it receives gives up what was received before, too: its tensors are kept by
        their users alone, and the next `receive` makes everything anew. So does one that was `Replaced`, or evicted.
        """
        if self._receiver is None:
            self._receiver = Receiver(self._server, self._model, self._reader, machine=self._machine, **self._options)
        receiver = self._receiver
        try:
            await asyncio.to_thread(receiver.receive, version, timeout=self._timeout)
        except (asyncio.CancelledError, Replaced):
            # The thread of a cancelled task cannot be cancelled, and a receiver takes one call at a time: closed, it
            # ends soon. A receiver that was replaced takes no call at all.
            self._receiver = None
            receiver.close()
            raise
        self.version = version
        try:
            for each in receiver.tensors():
                yield each
        finally:
            receiver.let_go()

    def _make_arena(self) -> ArenaPublisher:
        options = self._options.copy()
        if self._senders > 1:
            options["shard"] = (self._rank, self._senders)
        return ArenaPublisher(self._server, self._model, self._sender, **options)

    def close(self) -> None:
        """Leaves the hub; what was handed over stays with its receivers."""
        self._arena.close()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
