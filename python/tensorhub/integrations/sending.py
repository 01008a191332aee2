"""What the senders of the integrations have in common: the gathering of all ranks, and an arena that joins anew."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from tensorhub.errors import Error, Replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tensorhub.torch import ArenaPublisher

__all__ = ["SenderArena", "gathered_to_the_end"]

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


class SenderArena:
    """An arena; one that was `Replaced`, or evicted, takes no call any more, and the next use makes another."""

    def __init__(self, make: Callable[[], ArenaPublisher]) -> None:
        self._make = make
        self._arena: ArenaPublisher | None = None

    def made(self) -> ArenaPublisher:
        """The arena; its options are checked when it is made."""
        if self._arena is None:
            self._arena = self._make()
        return self._arena

    @contextlib.contextmanager
    def joining_anew(self) -> Iterator[ArenaPublisher]:
        """The arena, for one version. After `Replaced` inside the block, the next call gets another one.

        After any error nothing of the version is shown, and what was put is forgotten: all has to be put again.
        """
        arena = self.made()
        try:
            yield arena
        except Replaced:
            self.close()
            raise
        except BaseException:
            try:
                arena.unpublish(0)  # who reads along waits for what does not come
            except Error:  # it keeps what was put
                self.close()
            raise

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
