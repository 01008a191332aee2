"""The exceptions of this package: one class for each kind of error, all of them `tensorhub.Error`."""

from __future__ import annotations

from typing import Any

from tensorhub import _core

__all__ = [
    "Busy",
    "Cancelled",
    "ContractBroken",
    "Corrupt",
    "Disconnected",
    "Error",
    "GroupFailed",
    "InvalidArgument",
    "LayoutMismatch",
    "LimitExceeded",
    "NotFound",
    "PolicyMismatch",
    "ProtocolMismatch",
    "Refused",
    "Replaced",
    "SourceLost",
    "StillPublished",
    "SystemFailed",
    "TimedOut",
    "Torn",
    "TransportFailed",
    "Unavailable",
    "VersionConflict",
]


class Error(Exception):
    """What every call raises. `str(e)` is a sentence that says what to do; the fields are its facts.

    A field that is unknown, or does not apply, is None (or an empty text). Errors can be pickled.
    """

    def __init__(
        self,
        sentence: str,
        *,
        model: str = "",
        replica: str = "",
        shard: int | None = None,
        version: int | None = None,
        peer: str = "",
        chunk: int | None = None,
    ) -> None:
        self.sentence = sentence
        self.model = model
        self.replica = replica
        self.shard = shard
        self.version = version
        self.peer = peer
        self.chunk = chunk
        super().__init__(self._text())

    @property
    def code(self) -> str:
        """The error's name in the C++ interface and in logs, such as "timed_out"."""
        return _NAMES.get(type(self), "system_failed")

    @property
    def retryable(self) -> bool:
        """The same call may succeed later, although the caller changes nothing."""
        return self.code in _RETRYABLE

    def _fields(self) -> dict[str, Any]:
        names = ("model", "replica", "shard", "version", "peer", "chunk")
        return {name: getattr(self, name) for name in names}

    def _text(self) -> str:
        known = [f"{name} {value}" for name, value in self._fields().items() if value not in ("", None)]
        return f"{self.sentence} [{'; '.join([self.code, ', '.join(known)]) if known else self.code}]"

    def __str__(self) -> str:
        return self._text()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.sentence, self._fields())


def _rebuild(kind: type[Error], sentence: str, fields: dict[str, Any]) -> Error:
    return kind(sentence, **fields)


class InvalidArgument(Error, ValueError):
    """The call itself is wrong: a tensor that has moved, a duplicate name, an option that does not exist."""


class LimitExceeded(Error, ValueError):
    """A size is over its bound."""


class LayoutMismatch(Error, ValueError):
    """The tensors differ from those of the model's first worker. The sentence names the first difference."""


class PolicyMismatch(Error):
    """This worker's policies differ from the server's, or one there breaks its rules."""


class ProtocolMismatch(Error):
    """The other side uses another protocol, or is no TensorHub process."""


class VersionConflict(Error, ValueError):
    """The version is not higher than the last one, or was published with other bytes."""


class NotFound(Error, LookupError):
    """There is no such model or version, and waiting cannot help."""


class Unavailable(Error):
    """The version existed, and no worker holds it any more."""


class TimedOut(Error, TimeoutError):
    """A deadline has passed. The sentence says what the call waited for."""


class Busy(Error):
    """Another call of the same worker is running."""


class Torn(Error):
    """This replica's update in place failed half-way: its bytes are of no version. The next update repairs it."""


class GroupFailed(Error):
    """Another shard of the replica failed, disagreed or did not call. All shards repeat the call."""


class ContractBroken(Error):
    """A source changed bytes while they were published."""


class Corrupt(Error):
    """Bytes do not match their digest."""


class SourceLost(Error, ConnectionError):
    """The connection to the source broke."""


class Disconnected(Error, ConnectionError):
    """No reference server answers, or it had declared this worker dead, which joins again by itself."""


class Replaced(Error):
    """A newer process has this worker's place, or an operator has evicted it: construct a new one."""


class Cancelled(Error):
    """The caller has cancelled the call."""


class TransportFailed(Error):
    """Memory could not be registered, or a connection not be made."""


class SystemFailed(Error):
    """The operating system refused something: memory, a thread, a file."""


class Refused(Error, PermissionError):
    """The other side rejects this process: its key is unknown or revoked."""


class StillPublished(Error):
    """The worker's own version is published: call `unpublish()` first."""


def told_of(error: Error | None) -> dict[str, Any]:
    """An error as a message of JSON has it, for `error_told` in another process."""
    return {} if error is None else {"code": error.code, "sentence": error.sentence, **error._fields()}


def error_told(told: dict[str, Any]) -> Error:
    """The exception that `told_of` has told of."""
    fields = dict(told)
    return _CLASSES.get(fields.pop("code"), SystemFailed)(fields.pop("sentence"), **fields)


_CLASSES: dict[str, type[Error]] = {
    "invalid_argument": InvalidArgument,
    "limit_exceeded": LimitExceeded,
    "layout_mismatch": LayoutMismatch,
    "policy_mismatch": PolicyMismatch,
    "protocol_mismatch": ProtocolMismatch,
    "version_conflict": VersionConflict,
    "not_found": NotFound,
    "unavailable": Unavailable,
    "timed_out": TimedOut,
    "busy": Busy,
    "torn": Torn,
    "group_failed": GroupFailed,
    "contract_broken": ContractBroken,
    "corrupt": Corrupt,
    "source_lost": SourceLost,
    "disconnected": Disconnected,
    "replaced": Replaced,
    "cancelled": Cancelled,
    "transport_failed": TransportFailed,
    "system_failed": SystemFailed,
    "refused": Refused,
    "still_published": StillPublished,
}
_NAMES = {kind: name for name, kind in _CLASSES.items()}
_RETRYABLE = {_core.error_name(code) for code in range(1, len(_CLASSES) + 1) if _core.is_retryable(code)}


def error_of(
    code: int,
    sentence: str,
    model: str,
    replica: str,
    shard: int | None,
    version: int | None,
    peer: str,
    chunk: int | None,
) -> Error:
    """The exception of an error of the compiled library, which calls this."""
    kind = _CLASSES.get(_core.error_name(code), SystemFailed)
    return kind(
        sentence,
        model=model,
        replica=replica,
        shard=shard,
        version=version,
        peer=peer,
        chunk=chunk,
    )
