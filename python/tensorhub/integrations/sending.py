"""What the senders of the integrations have in common: the gathering of all ranks, and an arena that joins anew.

A trainer that was started again has lost count of its versions, and rollouts may still hold some. It asks the server
for the latest one and goes on after it, also where it has gone back to a checkpoint: no number means two things then.
(Rollouts that are asked for a number while the trainer withdraws what was published under it before could get that.)
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

from tensorhub import _core
from tensorhub.client import ServerClient
from tensorhub.errors import Error, GroupFailed, NotFound, Refused, Replaced, VersionConflict
from tensorhub.workers import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from tensorhub.torch import ArenaPublisher
    from tensorhub.workers import Options

__all__ = ["SenderArena", "Share", "gathered_to_the_end"]

_SECONDS_FOR_THE_SERVER = 5.0

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
        self.has_lost_count = False
        """A version was refused since others are ahead of it: the next number has to come from the server."""

    def made(self) -> ArenaPublisher:
        """The arena; its options are checked when it is made."""
        if self._arena is None:
            self._arena = self._make()
        return self._arena

    def latest(self) -> int:
        """The latest version that the server knows of this model; zero: none.

        A server that has just been started may wait 5 s for workers of an earlier one before it says so.
        """
        with self._client() as client, contextlib.suppress(NotFound):
            return max((each.latest for each in client.models(self._model)), default=0)
        return 0

    def after(self, version: int | None) -> int:
        """The number after `version`; None, or when the count was lost: after the latest that the server knows.

        Of several senders one asks the server for all, before any of them begins: what they, or an earlier trainer,
        have begun or committed in some shards alone is withdrawn then, and would be in the way of the others.
        """
        if version is None or self.has_lost_count:
            version = self.latest()
            if self._senders > 1:
                with contextlib.suppress(Refused):  # one that may only read asks, too
                    self.roll_back_to(version)
            self.has_lost_count = False
        return version + 1

    @contextlib.contextmanager
    def sending(self, version: int) -> Iterator[ArenaPublisher]:
        """The arena, for one version, which is begun before the `with` block and committed after it.

        After any error nothing of the version is shown, and what was put is forgotten: all has to be put again. After
        `Replaced` the next version gets another arena.
        """
        arena = self.made()
        try:
            self._taking_its_place(arena, version, arena.begin)
            yield arena
            self._taking_its_place(arena, version, arena.commit)
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
        self.has_lost_count = False

    def _taking_its_place(self, arena: ArenaPublisher, version: int, call: Callable[[int], Any]) -> None:
        """Calls it; once more, if versions that nobody can have received were in the way and are withdrawn.

        Of those an earlier trainer, or another attempt of this one, has begun all shards or committed some. One of
        several senders leaves them: it would withdraw what the others have begun, too.
        """
        try:
            call(version)
        except VersionConflict:
            if self.latest() >= version:
                self.has_lost_count = True
                raise
            if self._senders > 1:
                raise
            arena.roll_back_to(version - 1)
            call(version)

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
