"""One received copy for all processes of a machine: one receives, the others map the same memory for reading.

The wire and the memory are paid once per machine. Only processes of the same user, and of the same network namespace,
can attach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorhub import _core
from tensorhub.lifetime import Closable
from tensorhub.reports import AttachedProcess, TensorSpec, UpdateReport
from tensorhub.workers import Options, TensorView, _dtype_name, _given, _selector, _shard_of, _update_report, _Worker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import SupportsIndex

    from typing_extensions import Unpack

    from tensorhub.server import ReferenceServer

__all__ = ["AttachedCopy", "HeldCopy", "SharedCopy"]


class SharedCopy(_Worker):
    """The process that receives: a rollout with two memories, of which one is live, and which others may attach to.

    >>> copy = SharedCopy(server, model="policy", replica="host-7", name="policy")
    >>> copy.declare("wq", (4096, 4096), "bf16")
    >>> copy.update(at_least=3)

    What a process holds does not change while it holds it: `update` first waits until nobody holds the version before
    the live one, whose memory it needs. A process that ends, in whatever way, holds nothing any more.
    """

    _inner: _core.SharedCopy

    def __init__(
        self,
        server: str | ReferenceServer,
        model: str,
        replica: str,
        *,
        name: str,
        **options: Unpack[Options],
    ) -> None:
        self._inner = _core.SharedCopy(_given(server, model, replica, options), name)
        super().__init__(server, model, replica, _shard_of(options))

    def declare(self, name: str, shape: Iterable[int], dtype: object) -> None:
        """Tells of one tensor, as `ArenaPublisher.declare` does."""
        self._inner.declare(name, list(shape), _dtype_name(dtype))

    def update(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
        prefer_local: bool = False,
    ) -> UpdateReport:
        """Receives a version, and makes it live: the latest, `version`, or one that is `at_least` so high.

        `TimedOut`, with the processes in its text, if some still hold the memory that it needs. On failure what is
        live stays as it is.
        """
        which = _selector(version, at_least)
        return _update_report(self._inner.update(*which, timeout, prefer_local))

    def newer(self) -> int | None:
        """The newest version that the server has told of, if it is newer than what is live. Never waits."""
        return self._inner.newer() or None

    def wait(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
    ) -> int:
        """Waits until such a version can be read, and returns its number; reads nothing."""
        return self._inner.wait(*_selector(version, at_least), timeout)

    def attached(self) -> list[AttachedProcess]:
        """The processes that are attached now."""
        return [AttachedProcess(*each) for each in self._inner.attached()]

    def statistics(self) -> list[dict[str, Any]]:
        """What it has done since it was made, for each of its two memories."""
        return self._inner.statistics()


class HeldCopy(Closable):
    """A version whose bytes stay as they are until this is closed, and no view of its tensors is left.

    >>> with attached.hold() as held:
    ...     wq = numpy.asarray(held.tensor("wq"))
    """

    _inner: _core.HeldCopy
    _closes = 0

    def __init__(self, core: _core.HeldCopy) -> None:
        self._inner = core
        super().__init__()

    def close(self) -> None:
        """Lets go of it, unless there are views of its tensors: the last of these does."""
        self._inner.close()

    @property
    def version(self) -> int:
        """Its number."""
        return self._inner.version

    def tensor(self, name: str) -> TensorView:
        """A read-only view of the owner's memory, for `numpy.asarray` or `from_dlpack`; nothing is copied."""
        return self._inner.tensor(name)


class AttachedCopy(Closable):
    """What the other processes of the machine have: the weights of a `SharedCopy`, mapped for reading.

    >>> weights = AttachedCopy("policy")
    >>> held = weights.hold(at_least=3)
    """

    _inner: _core.AttachedCopy

    def __init__(self, name: str, timeout: float = 5.0) -> None:
        self._inner = _core.AttachedCopy(name, timeout)
        self._name = name
        super().__init__()

    def __repr__(self) -> str:
        if self._is_of_a_parent:
            return f"AttachedCopy({self._name!r}, made before fork())"
        return f"AttachedCopy({self._name!r}, {'closed' if self.is_closed else f'version {self.live_version}'})"

    def close(self) -> None:
        """Attaches no more. What is held stays."""
        self._inner.close()

    def tensors(self) -> list[TensorSpec]:
        """Names, types and shapes, in the owner's order."""
        return [TensorSpec(*each) for each in self._inner.tensors()]

    def hold(
        self,
        version: SupportsIndex | None = None,
        *,
        at_least: SupportsIndex | None = None,
        timeout: float = _core.update_timeout,
    ) -> HeldCopy:
        """Begins to hold what is live, as soon as it is what is asked for.

        `Unavailable` for a `version` that is live no more; `Disconnected` if the owner has ended: attach anew then.
        """
        return HeldCopy(self._inner.hold(*_selector(version, at_least), timeout))

    @property
    def live_version(self) -> int:
        """The version that is live, as last told; zero: none yet."""
        return self._inner.live_version
