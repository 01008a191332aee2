"""What the Python drivers of bench/peers have in common; driver.hpp says what compare.py says to them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass
class Settings:
    """The command line."""

    path: str
    role: str
    index: str
    memory: str
    size: int
    control: str
    source: str

    @property
    def is_source(self) -> bool:
        """Whether this process has the version."""
        return self.role == "source"


class Driver(Protocol):
    """A source or a reader."""

    def address(self) -> str:
        """What readers are told of a source, in one word."""

    def publish(self, version: int) -> None:
        """The bytes in memory are this version."""

    def read(self, version: int, readers: int) -> None:
        """Returns when the version is in this reader's memory. `readers` read at once."""

    def release(self) -> None:
        """The bytes will change."""

    def close(self) -> None:
        """The process ends. Libraries that wait for their threads would wait for their peers."""
        os._exit(0)


def map_memory(path: str, size: int) -> NDArray[np.uint8]:
    """A file that other drivers map as well; every page is touched."""
    descriptor = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(descriptor)
    set_ptracer, any_process = 0x59616D61, -1  # readers that are no children of this process may read
    ctypes.CDLL(None).prctl(set_ptracer, ctypes.c_ulong(any_process), 0, 0, 0)
    return np.frombuffer(mapped, dtype=np.uint8)


def serve(make: Callable[[Settings], Driver]) -> None:
    """Says the driver's address, and obeys until there are no more lines. What libraries print goes to the log."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    path, role, index, memory, size, control, source = [*sys.argv[1:], ""][:7]
    given = Settings(path, role, index, memory, int(size), control, source)
    driver = make(given)
    print("ready", driver.address(), file=answers)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "publish":
            driver.publish(int(rest[0]))
            print("published", file=answers)
        elif word == "read":
            driver.read(int(rest[0]), int(rest[1]))
            print("done", time.monotonic(), file=answers)
        else:
            driver.release()
            print("released", file=answers)
    driver.close()
