"""The library's log lines, in the logger "tensorhub" of Python's logging."""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from tensorhub import _core

__all__: list[str] = []

_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_logger = logging.getLogger("tensorhub")
_logger.addHandler(logging.NullHandler())
_starting = threading.Lock()
_carrier: threading.Thread | None = None


def _carry() -> None:
    while (line := _core.next_log_line()) is not None:
        level, text = _LEVELS[line[0]], line[1]
        # What a handler or a filter of the program raises, SystemExit too, must not end the lines behind this one.
        try:
            _logger.log(level, "%s", text)
        except BaseException:  # noqa: BLE001
            _report(level, text)


def _report(level: int, text: str) -> None:
    """Prints the exception being handled as logging does: on stderr, unless `logging.raiseExceptions` is false."""
    with contextlib.suppress(BaseException):  # the program may have replaced stderr by an object that raises, too
        lost = {"name": _logger.name, "levelno": level, "msg": "%s", "args": (text,)}
        logging.Handler().handleError(logging.makeLogRecord(lost))


def start() -> None:
    """Carries lines from now on, in a daemon thread of Python's; once for each process."""
    global _carrier
    with _starting:
        if _carrier is None:
            _carrier = threading.Thread(target=_carry, name="tensorhub log", daemon=True)
            _carrier.start()


def stop() -> None:
    """At the interpreter's end, before it would end the thread by force."""
    _core.end_log()
    if _carrier is not None:
        _carrier.join(5)


def _in_child() -> None:
    global _carrier, _starting
    _starting = threading.Lock()
    _carrier = None
    _core.begin_log_anew()


os.register_at_fork(after_in_child=_in_child)
