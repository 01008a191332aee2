"""The process that receives for a machine: it has the copies (machine.py), and answers those that ask for versions.

Each asks by one message of JSON, {"version": 7, "seconds": 60.0}, and gets one: {"copies": "...", "reports": [...]}, or
{"failure": {...}}. Versions are received when somebody asks, whoever it is, and not when the owner's own process does:
ranks need not ask in step, and one that comes late finds what is there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tensorhub.copies import SharedCopy
from tensorhub.errors import Cancelled, Error, GroupFailed, LayoutMismatch, Replaced, SystemFailed, TimedOut, told_of
from tensorhub.reports import UpdateReport
from tensorhub.workers import Options, Subscriber, shards_of_model

if TYPE_CHECKING:
    from tensorhub.server import ReferenceServer

__all__ = ["LARGEST_MESSAGE", "Owner", "peer_of"]

LARGEST_MESSAGE = 1 << 17
_BACKLOG = 1024
_MILLISECONDS = 500
"""Between two looks at what nobody tells."""
AnyWorker = TypeVar("AnyWorker", Subscriber, SharedCopy)


@dataclass
class _Asker:
    """A process that is connected."""

    connection: socket.socket
    version: int = 0
    """What it waits for; zero: nothing."""
    until: float = 0.0


@dataclass
class _Try:
    """A version is being received."""

    version: int
    until: float
    is_given_up: bool = False
    answer: dict[str, Any] | None = None
    """Set once it has ended."""
    failure: Error | None = None


class _Shards:
    """The copies of all shards of the model, which the first call makes.

    One call at a time, but for `interrupt` and `close`.
    """

    def __init__(self, server: str | ReferenceServer, model: str, replica: str, options: Options) -> None:
        self._given = (server, model, replica)
        self._options = options
        self._lock = threading.Lock()
        self._workers: list[Subscriber | SharedCopy] = []
        """All that are not closed; guarded by `_lock`, as the next."""
        self._is_closed = False
        self._copies: list[SharedCopy] = []
        self.name = ""
        """What processes attach to: this, a dot, and the number of the shard."""

    def receive(self, trying: _Try) -> list[UpdateReport]:
        """A report for each shard."""
        if not self._copies:
            try:
                self._make(trying)
            except BaseException:
                self._close_workers()
                raise
        copies = self._copies
        if len(copies) > 1 and self._has(trying.version):
            return [_kept(trying.version) for _ in copies]
        ends = _updated(copies, trying)
        failures = [each for each in ends if isinstance(each, BaseException)]
        if failures:
            # Shards of which some have flipped, a worker whose place is taken, and another layout need new copies.
            if len(failures) < len(ends) or any(isinstance(each, Replaced | LayoutMismatch) for each in failures):
                self._close_workers()
            raise min(failures, key=lambda each: isinstance(each, GroupFailed))
        return [each for each in ends if not isinstance(each, BaseException)]

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
        name = f"machine-{os.getpid()}-{secrets.token_hex(8)}"  # no other's, whatever a forked child keeps open
        copies = []
        for shard in range(count):
            options = self._options.copy()
            options["shard"] = (shard, count)
            copies.append(self._added(SharedCopy(server, model, replica, name=f"{name}.{shard}", **options)))
            for each in asker.describe_model(shard, max(0.0, trying.until - time.monotonic())):
                copies[-1].declare(each.name, each.shape, each.dtype)
        asker.close()
        self.name, self._copies = name, copies

    def _has(self, version: int) -> bool:
        """All copies have it, and the server says so, too: it may have been withdrawn."""
        if any(each.held_version != version for each in self._copies):
            return False
        _, model, replica = self._given
        with suppress(Error):
            for known in self._copies[0].models(model, 1.0):
                return any(
                    each.version == version and each.name.partition("@")[0] == replica for each in known.replicas
                )
        return False

    def _added(self, worker: AnyWorker) -> AnyWorker:
        with self._lock:
            if not self._is_closed:
                self._workers.append(worker)
                return worker
        worker.close()
        raise Cancelled("the process that receives for this machine ends")

    def _close_workers(self) -> None:
        self._copies = []
        with self._lock:
            workers, self._workers = self._workers, []
        for each in workers:
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
        self._listener = listener
        self._shards = _Shards(server, model, replica, options)
        self._wake_up, self._woken = socket.socketpair()
        self._askers: dict[int, _Asker] = {}
        """By descriptor."""
        self._trying: _Try | None = None
        self._is_closed = False
        for each in (listener, self._wake_up, self._woken):
            each.setblocking(False)
        listener.listen(_BACKLOG)
        self._thread = threading.Thread(target=self._serve, name="tensorhub machine", daemon=True)
        self._thread.start()

    @property
    def is_serving(self) -> bool:
        """Those who ask get answers."""
        return self._thread.is_alive() and not self._is_closed

    def close(self) -> None:
        """Ends it at once; those who wait for an answer are disconnected, and the name is free."""
        if self._process != os.getpid():
            return
        self._is_closed = True
        self._shards.close()
        self._wake()
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
        for descriptor, _ in poll.poll(_MILLISECONDS / 10 if is_given_up else _MILLISECONDS):
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
        version = min((each.version for each in self._askers.values() if each.version), default=0)
        if self._trying is not None:
            if self._trying.version != version:
                self._trying.is_given_up = True
                self._shards.interrupt()  # again at each look: the call may be between two of its own
        elif version:
            self._trying = _Try(version, max(each.until for each in self._askers.values() if each.version == version))
            threading.Thread(target=self._try, args=(self._trying,), name="tensorhub machine try", daemon=True).start()

    def _try(self, trying: _Try) -> None:
        """In a thread of its own."""
        try:
            reports = [dataclasses.asdict(each) for each in self._shards.receive(trying)]
            for each in reports:
                del each["sources"]  # of a large fleet they would be too long
            trying.answer = {"copies": self._shards.name, "reports": reports}
        except Error as e:
            trying.failure = e
        except BaseException as e:  # noqa: BLE001 (those who wait must hear of it, whatever it is)
            trying.failure = SystemFailed(f"{type(e).__name__}: {e}", version=trying.version)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake_up.send(b"\0")

    def _answer(self) -> None:
        """Tells those who wait for it how a try has ended."""
        ended = self._trying
        if ended is None or (ended.answer is None and ended.failure is None):
            return
        self._trying = None
        if isinstance(ended.failure, Cancelled):
            self._is_closed |= not ended.is_given_up  # else the interpreter ends
            return
        text = json.dumps(ended.answer or {"failure": told_of(ended.failure)}).encode()
        for each in [each for each in self._askers.values() if each.version == ended.version]:
            if isinstance(ended.failure, TimedOut) and each.until > ended.until:
                continue  # it came later, and has time for another try
            each.version = 0
            try:
                each.connection.send(text)
            except OSError:
                self._drop(each)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", told)
    return process, user


def _kept(version: int) -> UpdateReport:
    """Of a version that is here already."""
    return UpdateReport(
        version=version,
        kept=True,
        lost=False,
        bytes=0,
        unchanged_bytes=0,
        seconds=0.0,
        wait_seconds=0.0,
        pull_seconds=0.0,
        sources=(),
    )


def _updated(copies: list[SharedCopy], trying: _Try) -> list[UpdateReport | BaseException]:
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


def _hears(asker: _Asker) -> bool:
    """Whether it has asked; else it has ended, or is none of this library's processes."""
    try:
        asked = json.loads(asker.connection.recv(LARGEST_MESSAGE))
        asker.version, asker.until = int(asked["version"]), time.monotonic() + float(asked["seconds"])
    except BlockingIOError:
        return True
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return True
