"""The process that receives for a machine: it has the copies (machine.py), and answers those that ask for versions.

Each asks by one message of JSON, {"protocol": PROTOCOL, "version": 7, "seconds": 60.0}, and gets one:

    {"protocol": PROTOCOL, "copies": "...", "reports": [...]}
    {"protocol": PROTOCOL, "failure": {...}, "alone": false}

perhaps after some {"protocol": PROTOCOL, "over": "..."}, which name copies that are no more. Versions are received
when somebody asks, whoever it is, and not when the owner's own process does: ranks need not ask in step, and one that
comes late finds what is there.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tensorhub.copies import SharedCopy
from tensorhub.errors import (
    Cancelled,
    Disconnected,
    Error,
    GroupFailed,
    LayoutMismatch,
    NotFound,
    Replaced,
    SystemFailed,
    TimedOut,
    Torn,
    told_of,
)
from tensorhub.lifetime import is_ending
from tensorhub.workers import Options, Subscriber, shards_of_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorhub.reports import UpdateReport
    from tensorhub.server import ReferenceServer

__all__ = ["LARGEST_MESSAGE", "PROTOCOL", "NotShared", "Owner", "peer_of"]

PROTOCOL = 1
"""Of the messages. Fields may be added to a report without a new one."""
LARGEST_MESSAGE = 1 << 17
_MOST_SHARDS = 512
"""Of which a message has the reports."""
_BACKLOG = 1024
_MILLISECONDS = 500
"""Between two looks at what nobody tells."""
_PAUSE = 0.02
"""Seconds between two looks at who still holds what an update needs."""
_MOST_NAMED = 20
_SILENCE = 1.0
"""Seconds after which a server that does not answer counts as gone."""
_LATE = 0.1
"""Seconds that a try has to say why it has timed out, before those that wait are told something less exact."""
AnyWorker = TypeVar("AnyWorker", Subscriber, SharedCopy)


class NotShared(Error):
    """This model, or this process, cannot share a copy: each process needs one of its own."""

    @property
    def code(self) -> str:
        """As at `Error`."""
        return "invalid_argument"


@dataclass
class _Asker:
    """A process that is connected."""

    connection: socket.socket
    version: int = 0
    """What it waits for; zero: nothing."""
    until: float = 0.0
    needs_update: bool = False
    """The server does not say that what is here is this version still."""


@dataclass
class _Try:
    """A version is being received, or it is here, and the server is asked whether it still is that version."""

    version: int
    until: float
    is_given_up: bool = False
    is_absent: bool = False
    """Of one that was thought to be here. Set when it has ended, as the next two."""
    answer: dict[str, Any] | None = None
    failure: Error | None = None

    @property
    def has_ended(self) -> bool:
        return self.is_absent or self.answer is not None or self.failure is not None


class _Copies(NamedTuple):
    """Of all shards of the model."""

    name: str = ""
    """What processes attach to: this, a dot, and the number of the shard."""
    shards: tuple[SharedCopy, ...] = ()

    def told(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer to those that ask for what they have."""
        return {"copies": self.name, "reports": reports}


class _Shards:
    """The copies of all shards of the model, which the first call makes.

    One call at a time, but for `version`, `find`, `interrupt` and `close`.
    """

    def __init__(self, server: str | ReferenceServer, model: str, replica: str, options: Options) -> None:
        self._given = (server, model, replica)
        self._options = options
        self._lock = threading.RLock()
        """Its holder may collect garbage, and with that close this."""
        self._workers: list[Subscriber | SharedCopy] = []
        """All that are not closed; guarded by `_lock`, as the next."""
        self._is_closed = False
        self.copies = _Copies()

    @property
    def version(self) -> int:
        """What all copies have; zero: nothing."""
        try:
            held = {each.held_version for each in self.copies.shards}
        except Error:  # they are closed meanwhile
            return 0
        return held.pop() if len(held) == 1 else 0

    def find(self, trying: _Try) -> dict[str, Any] | None:
        """The answer, if the version is here, and was not withdrawn since.

        What is here counts, too, if the server is silent; `TimedOut` if the time is too short to tell.
        """
        copies, version = self.copies, trying.version
        if not copies.shards or self.version != version:
            return None
        _, model, replica = self._given
        seconds = min(_SILENCE, max(0.0, trying.until - time.monotonic()) / 2)
        is_known = False
        try:
            for known in copies.shards[0].models(model, seconds):
                is_known = any(
                    each.version == version and each.name.partition("@")[0] == replica for each in known.replicas
                )
        except (Disconnected, TimedOut):
            if seconds < _SILENCE:
                why = f"the time was up before the server had said whether version {version}, which is here, is valid"
                raise TimedOut(why, model=model, version=version) from None
            is_known = True
        except Cancelled:  # another try is ended: the askers of this one get another look
            raise
        except Error:  # they are closed meanwhile
            pass
        if not is_known or self.copies is not copies:
            return None
        return copies.told([{"version": version, "kept": True}] * len(copies.shards))

    def receive(self, trying: _Try) -> dict[str, Any]:
        """The answer, when the version is here."""
        if not self.copies.shards:
            try:
                self._make(trying)
            except BaseException:
                self._close_workers()
                raise
        copies = self.copies
        if len(copies.shards) > 1 and self.version != trying.version:  # a single one waits by itself
            self._wait_for_room(copies.shards, trying)
        ends = _updated(copies.shards, trying)
        failures = [each for each in ends if isinstance(each, BaseException)]
        if failures:
            # Shards of which some have flipped, a worker whose place is taken, and another layout need new copies.
            if len(failures) < len(ends) or any(isinstance(each, Replaced | LayoutMismatch) for each in failures):
                self._close_workers()
            raise _cause_among(failures)
        reports = [dataclasses.asdict(each) for each in ends if not isinstance(each, BaseException)]
        for each in reports:
            del each["sources"]  # of a large fleet they would be too long
        return copies.told(reports)

    def _wait_for_room(self, copies: tuple[SharedCopy, ...], trying: _Try) -> None:
        """Until nobody holds the memory that any of them needs: the server gives up on an update that only some begin.

        What is free then stays free, since processes can begin to hold only what is live.
        """
        pause = _PAUSE
        while True:
            holders = sorted({each.process for copy in copies for each in copy.attached() if each.holds_previous})
            left = trying.until - time.monotonic()
            if not holders:
                return
            if trying.is_given_up:
                raise Cancelled(f"nobody waits for version {trying.version} any more")
            if left <= 0:
                named, more = ", ".join(map(str, holders[:_MOST_NAMED])), len(holders) - _MOST_NAMED
                raise TimedOut(
                    f"the update needs the memory of the version before the live one, which processes {named}"
                    f"{f' and {more} others' if more > 0 else ''} still hold: they must let go of it",
                    model=self._given[1],
                    version=trying.version,
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, 10 * _PAUSE)

    def interrupt(self) -> None:
        """Ends the call that runs, if it is not between two of its own."""
        with self._lock:
            workers = list(self._workers)
        for each in workers:
            with suppress(Error):  # it may be closed meanwhile
                each._inner.interrupt()

    def close(self) -> None:
        """For good; ends the call that runs."""
        with self._lock:
            self._is_closed = True
        self._close_workers()

    def _make(self, trying: _Try) -> None:
        server, model, replica = self._given
        asker = self._added(Subscriber(server, model, replica, **self._options))
        count = shards_of_model(asker, model, trying.until, lambda: trying.is_given_up)
        if count > _MOST_SHARDS:
            raise NotShared(f"it has {count} shards, of which {_MOST_SHARDS} at most can be shared", model=model)
        name = f"machine-{os.getpid()}-{secrets.token_hex(8)}"  # no other's, whatever a forked child keeps open
        copies = []
        for shard in range(count):
            options = self._options.copy()
            options["shard"] = (shard, count)
            copies.append(self._added(SharedCopy(server, model, replica, name=f"{name}.{shard}", **options)))
            tensors = asker.describe_model(shard, max(0.0, trying.until - time.monotonic()))
            if all(0 in each.shape for each in tensors):
                raise NotShared(f"shard {shard} has no bytes, which cannot be shared", model=model)
            for each in tensors:
                copies[-1].declare(each.name, each.shape, each.dtype)
        asker.close()
        self.copies = _Copies(name, tuple(copies))

    def _added(self, worker: AnyWorker) -> AnyWorker:
        with self._lock:
            self._workers.append(worker)
            if not self._is_closed:
                return worker
        worker.close()
        raise Cancelled("the process that receives for this machine ends")

    def _close_workers(self) -> None:
        self.copies = _Copies()
        with self._lock:
            workers, self._workers = self._workers, []
        for each in workers:
            with suppress(Cancelled):  # the interpreter ends, and has closed it
                each.close()


class Owner:
    """Receives what is asked for at `listener`, in threads of its own, until it is closed.

    Of several versions the lowest comes first, and one that nobody waits for any more is given up: a process that waits
    for a version of the future does not keep others from what is there.
    """

    def __init__(
        self, listener: socket.socket, server: str | ReferenceServer, model: str, replica: str, options: Options
    ) -> None:
        self._process = os.getpid()
        self._model = model
        self._listener = listener
        self._shards = _Shards(server, model, replica, options)
        self._wake_up, self._woken = socket.socketpair()
        self._askers: dict[int, _Asker] = {}
        """By descriptor."""
        self._trying: _Try | None = None
        self._finding: _Try | None = None
        """Beside it: of what is here already."""
        self._shown = ""
        """The name of the copies that askers may be attached to."""
        self._is_closed = False
        for each in (listener, self._wake_up, self._woken):
            each.setblocking(False)
        listener.listen(_BACKLOG)
        self._thread = threading.Thread(target=self._serve, name="tensorhub machine", daemon=True)
        self._thread.start()

    @property
    def is_serving(self) -> bool:
        """Askers get answers."""
        return self._thread.is_alive() and not self._is_closed

    def end(self) -> None:
        """Begins to close it. Waits for no thread: one that collects garbage may have what they wait for."""
        if self._process != os.getpid():
            return
        self._is_closed = True
        self._shards.close()
        self._wake()

    def close(self) -> None:
        """Ends it at once; waiting askers are disconnected, and the name is free."""
        self.end()
        if threading.current_thread() is not self._thread:  # where an object is collected
            self._thread.join(10)

    def forget(self) -> None:
        """Closes all sockets. In a forked child they would keep the name taken when the parent ends."""
        for each in (self._listener, self._wake_up, self._woken, *(each.connection for each in self._askers.values())):
            each.close()

    def _serve(self) -> None:
        try:
            while not self._is_closed:
                self._hear()
                self._answer()
                self._choose()
        finally:
            self._is_closed = True
            self.forget()
            self._shards.close()

    def _hear(self) -> None:
        poll = select.poll()
        for each in (self._listener.fileno(), self._woken.fileno(), *self._askers):
            poll.register(each, select.POLLIN)
        is_given_up = self._trying is not None and self._trying.is_given_up
        first = min((each.until for each in self._askers.values() if each.version), default=math.inf) + _LATE
        soonest = max(1.0, 1000 * (first - time.monotonic()))
        for descriptor, _ in poll.poll(min(soonest, _MILLISECONDS / 10 if is_given_up else _MILLISECONDS)):
            if descriptor == self._woken.fileno():
                self._woken.recv(4096)
            elif descriptor == self._listener.fileno():
                self._accept()
            elif not _hears(self._askers[descriptor]):
                self._drop(self._askers[descriptor])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # out of descriptors, perhaps: it waits in the backlog
            time.sleep(0.05)
            return
        if peer_of(connection)[1] != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        self._askers[connection.fileno()] = _Asker(connection)

    def _drop(self, asker: _Asker) -> None:
        del self._askers[asker.connection.fileno()]
        asker.connection.close()

    def _choose(self) -> None:
        """Begins to receive what is asked for, or gives up what runs for something else."""
        here = self._shards.version
        if self._trying is not None and self._trying.version == here:  # it is about to end
            here = 0
        waiting = [each for each in self._askers.values() if each.version]
        finding = [each for each in waiting if each.version == here and not each.needs_update]
        if finding and self._finding is None:
            until = max(each.until for each in finding)
            self._finding = self._begun(self._find, _Try(here, until))
        version = min((each.version for each in waiting if each not in finding), default=0)
        if self._trying is not None:
            if self._trying.version != version:
                self._trying.is_given_up = True
                self._shards.interrupt()  # again at each look: the call may be between two of its own
        elif version:
            until = max(each.until for each in waiting if each.version == version)
            self._trying = self._begun(self._receive, _Try(version, until))

    def _begun(self, call: Callable[[_Try], None], trying: _Try) -> _Try:
        """In a thread of its own."""

        def run() -> None:
            try:
                call(trying)
            except Error as e:
                trying.failure = e
            except BaseException as e:  # noqa: BLE001 (waiting askers must hear of it, whatever it is)
                trying.failure = SystemFailed(f"{type(e).__name__}: {e}", version=trying.version)
            self._wake()

        threading.Thread(target=run, name="tensorhub machine try", daemon=True).start()
        return trying

    def _receive(self, trying: _Try) -> None:
        trying.answer = self._shards.receive(trying)

    def _find(self, trying: _Try) -> None:
        trying.answer = self._shards.find(trying)
        trying.is_absent = trying.answer is None

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake_up.send(b"\0")

    def _answer(self) -> None:
        """Tells askers how the try has ended that they wait for, or, when their time is over, why they have nothing."""
        found, ended = self._finding, self._trying
        if found is not None and found.has_ended:
            self._finding = None
            self._tell_end(found)
        if ended is not None and ended.has_ended:
            self._trying = None
            if self._shards.copies.name != self._shown:
                over, self._shown = self._shown, self._shards.copies.name
                for asker in list(self._askers.values()) if over else ():
                    self._send(asker, {"over": over})
            self._tell_end(ended)
        for asker in list(self._askers.values()):
            if asker.version and time.monotonic() > asker.until + _LATE:
                failure = TimedOut(self._why_not(asker), model=self._model, version=asker.version)
                self._end(asker, {"failure": told_of(failure)})

    def _tell_end(self, ended: _Try) -> None:
        if ended.failure is not None:
            self._is_closed |= is_ending()
            if self._is_closed or ended.is_given_up or isinstance(ended.failure, Cancelled):
                return  # what has failed was closed, or those that wait get another try
        told = ended.answer or {"failure": told_of(ended.failure), "alone": isinstance(ended.failure, NotShared)}
        for each in [each for each in self._askers.values() if each.version == ended.version]:
            if isinstance(ended.failure, NotFound | TimedOut) and each.until > ended.until:
                continue  # it came later, and has time for another try
            if ended.is_absent:
                each.needs_update = True
            else:
                self._end(each, told)

    def _why_not(self, asker: _Asker) -> str:
        if self._trying is None:
            return "the time was up before the version was received for this machine"
        if self._trying.version == asker.version:
            return "the time was up while the version was being received for this machine; it still is"
        now = self._trying.version
        return f"the time was up while version {now} was being received for this machine, which others ask for"

    def _end(self, asker: _Asker, told: dict[str, Any]) -> None:
        asker.version = 0
        self._send(asker, told)

    def _send(self, asker: _Asker, told: dict[str, Any]) -> None:
        try:
            asker.connection.send(json.dumps({"protocol": PROTOCOL, **told}).encode())
        except OSError:
            self._drop(asker)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", told)
    return process, user


def _updated(copies: tuple[SharedCopy, ...], trying: _Try) -> list[UpdateReport | BaseException]:
    """How each has ended. Shards of one replica are updated at the same time."""
    ends: list[UpdateReport | BaseException] = [Cancelled("this shard's thread has ended") for _ in copies]

    def update(shard: int, copy: SharedCopy) -> None:
        try:
            ends[shard] = copy.update(trying.version, timeout=max(0.0, trying.until - time.monotonic()))
        except BaseException as e:  # noqa: BLE001 (the caller raises it)
            ends[shard] = e

    threads = [threading.Thread(target=update, args=each, daemon=True) for each in enumerate(copies)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return ends


def _cause_among(failures: list[BaseException]) -> BaseException:
    """The failure of which the others may be consequences: a shard that waits for the others fails with them."""
    return min(failures, key=lambda each: 2 * isinstance(each, GroupFailed | Torn) + isinstance(each, TimedOut))


def _hears(asker: _Asker) -> bool:
    """Whether it has asked; else it has ended, or is none of this library's processes."""
    try:
        asked = json.loads(asker.connection.recv(LARGEST_MESSAGE))
        if asked["protocol"] != PROTOCOL:
            asker.connection.send(json.dumps({"protocol": PROTOCOL}).encode())  # it says what is wrong
            return True
        version, seconds = int(asked["version"]), float(asked["seconds"])
    except BlockingIOError:
        return True
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return False
    if version < 1 or math.isnan(seconds):
        return False
    asker.version, asker.until, asker.needs_update = version, time.monotonic() + seconds, False
    return True
