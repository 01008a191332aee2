"""When objects end: by `close`, by a `with` block, or with the interpreter. A forked child has none of them."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from tensorhub import _core, log

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Closable", "InWithBlock"]

_alive: weakref.WeakSet[Closable] = weakref.WeakSet()


class _CanClose(Protocol):
    def close(self) -> None: ...


class InWithBlock:
    """Is closed at the end of a `with` block, by the `close` of its class."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _CanClose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Closable(InWithBlock):
    """Has something below that ends when it is closed, or when the interpreter ends."""

    _inner: Any
    _closes: ClassVar[int] = 1
    """Its turn when the interpreter ends: updates, then their workers, then servers."""

    def __init__(self) -> None:
        self._process = os.getpid()
        log.start()
        _alive.add(self)

    def close(self) -> None:
        """Ends this object at once, and its calls in other threads soon; readers that still read are cut off.

        A worker that leaves its model for good, and has time to, calls `leave`.
        """
        self._inner.close()

    @property
    def _is_of_a_parent(self) -> bool:
        return self._process != os.getpid()

    @property
    def is_closed(self) -> bool:
        """No call is possible any more."""
        return bool(self._inner.is_closed)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be copied, or sent to another process: make one there, from what made this one"
        )

    def _interrupt(self) -> None:
        self._inner.interrupt()


def _in_child() -> None:
    _alive.clear()  # they cannot be closed there
    _core.forget_calls()


os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _close_all() -> None:
    # Calls in daemon threads come back before the interpreter ends their threads by force; from the next one on these
    # threads sleep, until the process ends.
    _core.let_interpreter_end()
    for _ in range(100):
        for each in list(_alive):
            if not each.is_closed:
                each._interrupt()
        if _core.wait_for_no_calls(0.05):
            break
    for each in sorted(_alive, key=lambda one: one._closes):
        each.close()
    log.stop()
