"""What the senders of the integrations have in common: the gathering of all ranks, and an arena that joins anew.

A trainer that was started again has lost count of its versions, and rollouts may still hold some. It asks the server
for the latest one and goes on after it, also where it has gone back to a checkpoint: no number means two things then.
(Rollouts that are asked for a number while the trainer withdraws what was published under it before could get that.)

A number that has failed is not tried again: the next one is higher. What is in the way of a number is withdrawn only if
nobody can have received it, and a sender never goes back below a version that it knows to have been whole.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, TypeVar

from tensorhub import _core
from tensorhub.client import ServerClient
from tensorhub.errors import Error, GroupFailed, LimitExceeded, NotFound, Refused, Replaced, VersionConflict
from tensorhub.workers import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from tensorhub.reports import Model
    from tensorhub.torch import ArenaPublisher
    from tensorhub.workers import Options

__all__ = ["SenderArena", "Share", "gathered_to_the_end"]

_SECONDS_FOR_THE_SERVER = 5.0
_logger = logging.getLogger("tensorhub")

Each = TypeVar("Each")


@contextlib.contextmanager
def gathered_to_the_end(weights: Iterable[Each]) -> Iterator[Iterator[Each]]:
    """Gathers what the `with` block has not taken, also after its error, which goes on when all is gathered.

    Each tensor is gathered by all ranks at once: if one of them left the gathering, the others would wait for it, and
    whoever drives them would not learn why. An error of the gathering itself, and a Ctrl-C, end it at once.
    """
    gathering = (each for each in weights)  # ends with the first error of `weights`
    try:
        yield gathering
    except Exception:
        with contextlib.suppress(Exception):  # the first error says what went wrong
            for _ in gathering:
                pass
        raise
    for _ in gathering:
        pass


class Share:
    """Which tensors one of several senders puts: each goes to the sender that has the fewest bytes so far.

    All ranks gather the same tensors in the same order, and so they need not agree.
    """

    def __init__(self, rank: int, senders: int) -> None:
        self._rank = rank
        self._bytes = [0] * senders

    def takes(self, size: int) -> bool:
        """Whether the next tensor is this sender's."""
        sender = self._bytes.index(min(self._bytes))
        self._bytes[sender] += size
        return sender == self._rank


class SenderArena:
    """An arena; one that was `Replaced`, or evicted, takes no call any more, and the next use makes another.

    Of several `senders` each has one, for its part of each version.
    """

    def __init__(
        self, make: Callable[[], ArenaPublisher], server: str, model: str, options: Options, senders: int = 1
    ) -> None:
        self._make = make
        self._server = server
        self._model = model
        self._options = options
        self._senders = senders
        self._arena: ArenaPublisher | None = None
        self._tried = 0
        self.known = 0
        """The latest version that was whole as far as this sender knows: the server may know less for a while."""
        self.has_lost_count = False
        """A version was refused, or another shard has another one: the server is asked for the next number."""

    def made(self) -> ArenaPublisher:
        """The arena; its options are checked when it is made."""
        if self._arena is None:
            self._arena = self._make()
        return self._arena

    def latest(self) -> int:
        """The latest version of this model that was whole, as far as the server or this sender knows; zero: none.

        A server that has just been started may wait 5 s for workers of an earlier one before it says so.
        """
        model = self._asked()
        self.known = max(self.known, model.latest if model else 0)
        return self.known

    def after(self, version: int | None) -> int:
        """The number after `version`; None, or when the count was lost: after all that is known, and was tried.

        Of several senders one asks the server for all, before any of them begins: what an earlier trainer has begun,
        or committed in some shards alone, is withdrawn then, and would be in the way of the others.
        """
        if version is None or self.has_lost_count:
            if self._senders > 1 and self._tried == 0:
                self._withdraw_unfinished()
            version = max(self.latest(), self._tried)
            self.has_lost_count = False
        return version + 1

    def _withdraw_unfinished(self) -> None:
        """Withdraws what was begun, or committed in some shards alone, after the latest version, if that is certain.

        It is not while a replica lacks shards, as after a restart of the server: with them, it may hold a later one.
        """
        model = self._asked()
        if model is None:
            return
        latest = self.known = max(self.known, model.latest)
        for replica in model.replicas:
            if replica.shards_joined < model.shards:
                _logger.warning(
                    "model '%s': replica '%s' has %d of its %d shards, and may hold a version after %d, so nothing is "
                    "withdrawn; if a version is refused, wait until it has all of them, or call roll_back_to",
                    *(self._model, replica.name, replica.shards_joined, model.shards, latest),
                )
                return
        with contextlib.suppress(Refused, LimitExceeded):  # one that may only read asks, too
            self.roll_back_to(latest)

    @contextlib.contextmanager
    def sending(self, version: int) -> Iterator[ArenaPublisher]:
        """The arena, for one version, which is begun before the `with` block and committed after it.

        After any error nothing of the version is shown, and what was put is forgotten: all has to be put again. After
        `Replaced` the next version gets another arena.
        """
        arena = self.made()
        self._tried = max(self._tried, version)
        try:
            self._taking_its_place(arena, version, arena.begin)
            yield arena
            self._taking_its_place(arena, version, arena.commit)
            if self._senders == 1:
                self.known = version
        except Replaced:
            self.close()
            raise
        except BaseException as e:
            if isinstance(e, GroupFailed):
                self.has_lost_count = True
            try:
                arena.unpublish(0)  # who reads along waits for what does not come
            except Error:  # it keeps what was put
                self.close()
            raise

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Withdraws all later versions, this sender's own among them, wherever they are held.

        If readers of this sender's take up all of `timeout`, the server has a few seconds more.
        """
        until = time.monotonic() + seconds_of(timeout)
        try:
            if self._arena is not None:
                self._arena.unpublish(timeout)
        except Replaced:
            self.close()
        with self._client() as client, contextlib.suppress(NotFound):
            left = max(min(_SECONDS_FOR_THE_SERVER, timeout), until - time.monotonic())
            client.roll_back_to(self._model, version, left)
        self._tried = self.known = version
        self.has_lost_count = False

    def _taking_its_place(self, arena: ArenaPublisher, version: int, call: Callable[[int], Any]) -> None:
        """Calls it; once more, if versions that nobody can have received were in the way and are withdrawn.

        Of those an earlier trainer, or another attempt of this one, has begun all shards or committed some. One of
        several senders leaves them, since it would withdraw what the others have begun, too: its next number is higher.
        """
        try:
            call(version)
        except VersionConflict:
            self.has_lost_count = True
            if self._senders > 1 or self.latest() >= version:
                raise
            arena.roll_back_to(version - 1)
            call(version)

    def _asked(self) -> Model | None:
        """What the server knows of the model."""
        with self._client() as client, contextlib.suppress(NotFound):
            return client.models(self._model)[0]
        return None

    def _client(self) -> ServerClient:
        given = self._options
        return ServerClient(self._server, security=given.get("security"), server_timeout=given.get("server_timeout"))

    def leave(self) -> None:
        """Leaves the hub for good; one that was `Replaced`, or evicted, is not there any more."""
        try:
            if self._arena is not None:
                with contextlib.suppress(Replaced):
                    self._arena.leave()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the hub at once."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
