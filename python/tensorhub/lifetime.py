"""When objects end: by `close`, by a `with` block, or with the interpreter. A forked child has none of them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from tensorhub import _core, log
from tensorhub.errors import Cancelled

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Closable", "InWithBlock", "is_ending"]

_alive: weakref.WeakSet[Closable] = weakref.WeakSet()
_ending: int | None = None
"""The thread in which the interpreter ends."""


def is_ending() -> bool:
    """The interpreter ends: what is in the compiled library is closed, or soon will be."""
    return _ending is not None


def _refuse_at_end(what: str) -> NoReturn:
    if threading.get_ident() != _ending:
        time.sleep(0.05)  # a thread that repeats its call leaves the interpreter to others
    raise Cancelled(f"the interpreter ends, and {what}")


class _Ended:
    """What is below an object once the interpreter ends.

    A daemon thread goes on after that, until the interpreter ends it by force, wherever it is. In Python that may be
    anywhere; within the compiled library the process would end with it. So no call reaches that any more.
    """

    is_closed = True

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    def __getattr__(self, call: str) -> NoReturn:
        _refuse_at_end(f"has closed this {self._kind}")


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

    def __new__(cls, *_arguments: object, **_options: object) -> Self:
        """While the interpreter ends, only its own thread makes any."""
        if _ending not in (None, threading.get_ident()):
            _refuse_at_end(f"makes no {cls.__name__} any more")
        return super().__new__(cls)

    def __init__(self) -> None:
        self._process = os.getpid()
        log.start()
        _alive.add(self)
        if _ending not in (None, threading.get_ident()):  # since `__new__`
            made, self._inner = self._inner, _Ended(type(self).__name__)
            made.close()
            _refuse_at_end(f"makes no {type(self).__name__} any more")

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


def _in_child() -> None:
    global _ending
    _ending = None
    _alive.clear()  # they cannot be closed there
    _core.forget_calls()


os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _close_all() -> None:
    global _ending
    _ending = threading.get_ident()
    _core.let_interpreter_end()
    while True:
        try:
            alive = sorted(_alive, key=lambda one: one._closes)
            break
        except RuntimeError:  # another thread has just made one
            pass
    closing = []
    for each in alive:
        closing.append(each._inner)
        each._inner = _Ended(type(each).__name__)
    # Calls in other threads come back, so that their threads are in Python, or end.
    for _ in range(100):
        for inner in closing:
            if not inner.is_closed:
                inner.interrupt()
        if _core.wait_for_no_calls(0.05):
            break
    for inner in closing:
        inner.close()
    log.stop()
