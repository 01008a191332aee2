"""The library's log lines, in the logger "tensorhub" of Python's logging."""

from __future__ import annotations

import logging
import os
import threading

from tensorhub import _core

__all__: list[str] = []

_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_logger = logging.getLogger("tensorhub")
_logger.addHandler(logging.NullHandler())
_starting = threading.Lock()
_started_in = 0
_ends = threading.Event()


def _carry() -> None:
    while not _ends.is_set():
        line = _core.next_log_line(0.25)
        if line is not None:
            _logger.log(_LEVELS[line[0]], "%s", line[1])


def start() -> None:
    """Carries lines from now on, in a daemon thread of Python's; once for each process."""
    global _started_in
    with _starting:
        if _started_in == os.getpid():
            return
        _started_in = os.getpid()
        threading.Thread(target=_carry, name="tensorhub log", daemon=True).start()


def stop() -> None:
    """At the interpreter's end."""
    _ends.set()
