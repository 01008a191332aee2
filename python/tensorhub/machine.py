"""One received copy of a whole model for all processes of a machine that give it the same name.

>>> weights = MachineCopy(server, "policy", "rollout-0", name="policy")     # in each of them alike
>>> weights.receive(7)                                                      # it is read once, and lies there once
>>> wq = numpy.asarray(dict(weights.tensors())["wq"])

The first of them that takes the name becomes the owner, and receives (machine_owner.py) into `SharedCopy` objects, one
for each shard of the hub's model. All of them, the owner's own process included, ask it for versions over a socket, and
attach to what it has. The kernel takes the name back when the owner ends, in whatever way, and the next process that
receives takes it. Nothing of this lies in a file. A name is one of the user, and of the namespaces of users and of
networks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import os
import secrets
import socket
import time
import weakref
from typing import TYPE_CHECKING, Any

from tensorhub import _core
from tensorhub.copies import AttachedCopy, HeldCopy
from tensorhub.errors import (
    Cancelled,
    Disconnected,
    InvalidArgument,
    NotFound,
    ProtocolMismatch,
    Refused,
    SystemFailed,
    TimedOut,
    Unavailable,
    error_told,
)
from tensorhub.lifetime import InWithBlock
from tensorhub.machine_owner import LARGEST_MESSAGE, PROTOCOL, NotShared, Owner, peer_of
from tensorhub.reports import UpdateReport
from tensorhub.workers import Options, Subscriber, TensorView, _number, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import SupportsIndex

    from typing_extensions import Unpack

    from tensorhub.server import ReferenceServer

__all__ = ["MachineCopy", "NotShared", "machine_name"]

_logger = logging.getLogger("tensorhub")
_LONGEST_NAME = 64
_PAUSE = 0.02
_GRACE = 0.5
_LONGEST_WAIT = 1e6
"""Seconds; a socket does not take many more."""
_PATIENCE = 2.0
"""Seconds within which an owner accepts a connection, and a copy lets a process attach and hold what is live."""
_members: weakref.WeakSet[MachineCopy] = weakref.WeakSet()


def machine_name(server: str, model: str, options: Mapping[str, object], *, engine: str, shared: str = "") -> str:
    """A name for the ranks of `engine`; with `shared`, a user's own name, for those of all engines that are given it.

    They take this model from this server with the same options, but for the port where they listen. Engines whose
    options differ do not share: whichever of them receives does so with its own options.
    """
    whose = ("shared", shared) if shared else ("engine", engine)
    told = {name: value for name, value in options.items() if name not in ("listen_port", "security")}
    security = options.get("security")
    told["key"] = security.get("public_key") if isinstance(security, dict) else getattr(security, "public_key", "")
    text = repr((server, model, whose, sorted(told.items())))
    return f"{model.encode()[:16].decode(errors='ignore')}-{hashlib.blake2s(text.encode(), digest_size=8).hexdigest()}"


class MachineCopy(InWithBlock):
    """A whole model, received once for a machine; this process has it mapped for reading.

    Processes that share a name take the same model from the same server; what else they are given matters only in the
    one that receives. Not thread-safe, but for `close`.
    """

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        *,
        name: str,
        **options: Unpack[Options],
    ) -> None:
        if options.get("shard") is not None:
            raise InvalidArgument("a machine's copy is of all shards: it has no option shard")
        if options.get("memory") == "cuda":
            raise InvalidArgument("a machine's copy lies in memory that is not pinned: leave memory='cuda' out")
        if not 0 < len(name.encode()) <= _LONGEST_NAME or "\0" in name:
            raise InvalidArgument(f"name {name!r} of a machine's copy: 1 to {_LONGEST_NAME} bytes are expected")
        Subscriber(server, model, replica, **options).close()  # refuses wrong options here, and not in one process only
        self._given = (server, model, replica, options)
        self._model = model
        self._name = name
        self._alone = ""
        """In place of the name, where a process has taken it that does not serve this one."""
        self._process = os.getpid()
        self._is_closed = False
        self._owner: Owner | None = None
        self._connection: socket.socket | None = None
        self._owner_process = 0
        """At the other end of it."""
        self._copies = ""
        """The name of what `_attached` is attached to."""
        self._attached: list[AttachedCopy] = []
        self._held: list[HeldCopy] = []
        self.version = 0
        """The version that `tensors` gives; zero: none yet."""
        _members.add(self)

    def receive(self, version: SupportsIndex, *, timeout: float = _core.update_timeout) -> list[UpdateReport]:
        """Receives a version, or attaches to it where it is here already; a report for each shard.

        The reports are those of the process that has received it, without sources. What was held before is let go.
        After an error the version before is what `tensors` gives, for as long as its owner has it. `Disconnected` if
        the owner ends meanwhile: call it again, and one of those that do becomes the next owner. `NotShared` if the
        model has shards that cannot be shared, or this process cannot: receive into memory of its own instead.
        """
        number, deadline = _number(version), time.monotonic() + seconds_of(timeout)
        if not number:
            raise InvalidArgument("version is 0: versions are from 1 to 2**64 - 1")
        self._check_is_usable()
        self.let_go()
        try:
            told = self._received(number, deadline)
        finally:
            if self._is_closed:  # in another thread, too early to see what is held and attached by now
                self.close()
        self._check_is_usable()
        self.version = number
        return [_report_told(each) for each in told["reports"]]

    def _received(self, version: int, deadline: float) -> dict[str, Any]:
        """The owner's answer, when the version is held."""
        while True:
            told = self._ask(version, deadline)
            try:
                self._attach(str(told["copies"]), len(told["reports"]))
                if not self._attached or len(self._attached) != len(told["reports"]):
                    owner = f"process {self._owner_process}"
                    why = f"{owner} has named no copies, or not one for each shard, so it ends: receive again"
                    raise Disconnected(why, model=self._model, version=version)
                self._held = self._hold(version)
            except Refused as e:  # in a user namespace where this user has no number of its own
                raise NotShared(e.sentence, model=self._model, version=version) from None
            except (Disconnected, TimedOut, Unavailable) as e:  # the owner has ended, or gone on to another version
                if isinstance(e, Disconnected):
                    self._attach("", 0)
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)
            else:
                return told

    def tensors(self) -> Iterator[tuple[str, TensorView]]:
        """Names and read-only views of the version received last, in the trainer's order.

        They keep it held, and so delay the update after the next one. `Unavailable` if it was let go, and the owner has
        another one by now.
        """
        self._check_is_usable()
        if not self.version:
            raise NotFound("no version was received, or its owner has ended since: call receive", model=self._model)
        held = self._held = self._held or self._hold(self.version)
        for attached, each in zip(self._attached, held, strict=True):
            for tensor in attached.tensors():
                yield tensor.name, each.tensor(tensor.name)

    def let_go(self) -> None:
        """Holds nothing any more, but for views that are still used: call it as soon as the weights are loaded."""
        held, self._held = self._held, []
        for each in held:
            each.close()

    def close(self) -> None:
        """Ends it at once, and its call in another thread soon. Others hear of it if this was the owner."""
        self._is_closed = True
        if self._process != os.getpid():
            return
        self.let_go()
        self._disconnect()
        self._attach("", 0)
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    def _check_is_usable(self) -> None:
        if self._process != os.getpid():
            raise InvalidArgument(f"the machine's copy '{self._name}' was made before fork(): make one in this process")
        if self._is_closed:
            raise Cancelled(f"the machine's copy '{self._name}' was closed", model=self._model)

    # ---- the owner

    def _ask(self, version: int, deadline: float) -> dict[str, Any]:
        """The owner's answer that it has the version."""
        connection = self._send_ask(version, deadline)
        owner = f"process {self._owner_process}, which receives for this machine as '{self._name}',"
        try:
            while True:
                connection.settimeout(min(max(0.0, deadline - time.monotonic()) + _GRACE, _LONGEST_WAIT))
                answer = connection.recv(LARGEST_MESSAGE)
                told = self._read(answer, owner) if answer else {}
                if "over" not in told:
                    break
                if told["over"] == self._copies:  # the owner needs their memory for others
                    self._attach("", 0)
        except TimeoutError:
            self._disconnect()  # and so waits for nothing
            why = f"{owner} has not answered: it hangs, is stopped, or runs code that keeps its other threads waiting"
            raise TimedOut(why, model=self._model, version=version) from None
        except OSError:
            answer = b""
        except BaseException:
            self._disconnect()
            raise
        if not answer:
            self._disconnect()
            self._attach("", 0)  # the next owner needs as much memory
            self._check_is_usable()
            why = f"{owner} has ended before it had the version: receive again, and one that does takes its place"
            raise Disconnected(why, model=self._model, version=version)
        if "failure" in told:
            failure = error_told(told["failure"])
            raise NotShared(failure.sentence, model=self._model) if told.get("alone") else failure
        return told

    def _read(self, answer: bytes, owner: str) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads(answer)
            protocol = told["protocol"]
        except (KeyError, RecursionError, TypeError, ValueError):
            protocol = "another"
        if protocol == PROTOCOL:
            return told
        raise ProtocolMismatch(
            f"{owner} has protocol {protocol} of these copies, and this process has {PROTOCOL}: run one release of "
            f"tensorhub in all processes that share a copy, or give them different names",
            model=self._model,
        )

    def _send_ask(self, version: int, deadline: float) -> socket.socket:
        while True:
            connection = self._connection or self._connect(deadline)
            left = max(0.0, deadline - time.monotonic())
            seconds = left - min(0.05 * left, _GRACE)  # so that it has time to say why not
            try:
                connection.send(json.dumps({"protocol": PROTOCOL, "version": version, "seconds": seconds}).encode())
            except OSError:
                self._disconnect()
                self._attach("", 0)  # its owner has ended since the last call
            else:
                return connection

    def _connect(self, deadline: float) -> socket.socket:
        """To the owner; to this process, if nobody else is."""
        started = time.monotonic()
        patience = min(_PATIENCE, (deadline - started) / 2)
        while True:
            self._check_is_usable()
            self._become_owner_if_there_is_none()
            connection = self._connection = self._new_socket()
            connection.settimeout(0)
            try:
                connection.connect(self._address)
                process, user = peer_of(connection)
            except OSError as e:  # it has just ended, or too many connect at once
                self._disconnect()
                if time.monotonic() >= deadline:
                    why = f"the process that receives for this machine as '{self._name}' accepts no connection: {e}"
                    raise TimedOut(why, model=self._model) from None
                if not self._alone and time.monotonic() - started > patience:
                    self._go_alone(f"a process has the name of this machine's copy '{self._name}', and does not answer")
                time.sleep(_PAUSE)
                continue
            if user == os.geteuid():
                self._owner_process = process
                return connection
            self._disconnect()
            self._go_alone(f"process {process} of user {user} has the name of this machine's copy '{self._name}'")

    def _go_alone(self, why: str) -> None:
        self._alone = f"{os.getpid()}-{secrets.token_hex(8)}"
        warn_of_own_memory(self._model, why)

    def _new_socket(self) -> socket.socket:
        try:
            return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as e:
            raise SystemFailed(f"no socket for the machine's copy '{self._name}': {e}", model=self._model) from None

    def _become_owner_if_there_is_none(self) -> None:
        if self._owner is not None and self._owner.is_serving:
            return
        listener = self._new_socket()
        server, model, replica, options = self._given
        try:
            listener.bind(self._address)
            owner = self._owner = Owner(listener, server, model, replica, options)
        except (OSError, RuntimeError) as e:  # of its thread
            listener.close()
            if isinstance(e, OSError) and e.errno == errno.EADDRINUSE:
                return
            raise SystemFailed(f"no owner of the machine's copy '{self._name}': {e}", model=self._model) from None
        weakref.finalize(self, owner.end).atexit = False
        if self._is_closed:  # in another thread, which has not seen it
            owner.close()

    @property
    def _address(self) -> str:
        try:
            namespace = os.stat("/proc/self/ns/user").st_ino  # in another one this user has another number, or none
        except OSError:
            namespace = 0
        return f"\0tensorhub-machine/{namespace}/{os.geteuid()}/{self._alone or self._name}"

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
            connection.close()

    def forget(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if self._connection is not None:
            self._connection.close()
        if self._owner is not None:
            self._owner.forget()

    # ---- its copies

    def _attach(self, copies: str, count: int) -> None:
        """To copies of this name, one for each shard, and to no others any more."""
        if copies != self._copies:
            attached, self._attached, self._copies, self.version = self._attached, [], "", 0
            for each in attached:
                each.close()
            self._attached = [AttachedCopy(f"{copies}.{i}", _PATIENCE) for i in range(count if copies else 0)]
            self._copies = copies

    def _hold(self, version: int) -> list[HeldCopy]:
        """The version, of all shards or of none."""
        with contextlib.ExitStack() as unfinished:
            held = []
            for each in self._attached:
                held.append(each.hold(version, timeout=_PATIENCE))
                unfinished.callback(held[-1].close)
            unfinished.pop_all()
            return held


def warn_of_own_memory(model: str, why: str) -> None:
    """Where a copy cannot be shared."""
    _logger.warning("model '%s': %s: this process receives for itself, in memory of its own", model, why)


def _report_told(told: dict[str, Any]) -> UpdateReport:
    """By an owner whose release may have other fields."""
    names = {each.name for each in dataclasses.fields(UpdateReport)} & told.keys()
    return UpdateReport(**{name: told[name] for name in names})


def _in_child() -> None:
    for each in list(_members):
        each.forget()


os.register_at_fork(after_in_child=_in_child)
