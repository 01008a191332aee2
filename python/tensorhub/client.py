"""Questions to a reference server, and orders to it, from a process that is no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from tensorhub import _core
from tensorhub.lifetime import Closable
from tensorhub.reports import DrainReport, Model, Replica, Stuck
from tensorhub.server import ReferenceServer
from tensorhub.workers import Security, _fields_of, _number, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ServerClient"]


class ServerClient(Closable):
    """Asks a reference server, and gives it orders, without tensors and without a transport.

    A call that fails at its time-out may have been carried out.
    """

    _inner: _core.ServerClient

    def __init__(
        self,
        server: str | ReferenceServer,
        *,
        security: Security | None = None,
        server_timeout: float | None = None,
    ) -> None:
        """`server`: one address, or several with commas between, of servers that may take over from each other.

        With bars between such lists, each of them serves a share of the models, by their names.
        """
        self._server = server.address if isinstance(server, ReferenceServer) else server
        given: dict[str, object] = {"server": self._server, "server_timeout": server_timeout}
        given.update(_fields_of("security", Security, security))
        self._inner = _core.ServerClient(given)
        super().__init__()

    def __repr__(self) -> str:
        return f"ServerClient({'closed' if self.is_closed else self._server})"

    def models(self, model: str = "", timeout: float = _core.join_timeout) -> list[Model]:
        """What the server knows of a model, or of all of them.

        A server that has just begun answers for one model only when its workers are back (5 s at most); in the list
        of all a model may lack some of them.
        """
        return [
            Model(**{**told, "replicas": tuple(Replica(**each) for each in told["replicas"])})
            for told in self._inner.models(model, timeout)
        ]

    def why(self, model: str, replica: str, shard: int = 0, timeout: float = _core.join_timeout) -> str:
        """How the server has chosen a worker's sources: a line for each decision, the latest last."""
        return self._inner.why(model, replica, shard, timeout)

    def stuck(self, model: str = "", older_than: float = 1.0, timeout: float = _core.join_timeout) -> list[Stuck]:
        """What in a model, or in all, has waited for longer than `older_than`, and for what; the oldest first."""
        return [Stuck(**told) for told in self._inner.stuck(model, older_than, timeout)]

    def wait_held(
        self, model: str, version: SupportsIndex, replicas: Iterable[str], timeout: float = _core.update_timeout
    ) -> tuple[str, ...]:
        """Waits until all replicas of these names hold `version` or a newer one, as `Publisher.wait_held`."""
        names = names_of("replicas", "replicas", replicas)
        return tuple(self._inner.wait_held(model, _number(version), names, timeout))

    def retain(self, model: str, versions: int, timeout: float = _core.join_timeout) -> None:
        """The latest `versions` of the model are not to be lost: their last reliable holder hands them over."""
        self._inner.retain(model, versions, timeout)

    def pin(self, model: str, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Retains one version until it is released."""
        self._inner.pin(model, _number(version), timeout)

    def release(self, model: str, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Ends a `pin`."""
        self._inner.release(model, _number(version), timeout)

    def roll_back_to(self, model: str, version: SupportsIndex, timeout: float = _core.join_timeout) -> None:
        """Withdraws every later version, as `Publisher.roll_back_to`; while no trainer publishes."""
        self._inner.roll_back_to(model, _number(version), timeout)

    def evict(self, model: str, replica: str, timeout: float = _core.join_timeout) -> int:
        """Declares the replica's workers dead, and returns their number. A process that is started anew may join."""
        return self._inner.evict(model, replica, timeout)

    def drain(self, model: str, replica: str, timeout: float = _core.drain_timeout) -> DrainReport:
        """Takes the replica out of service: its readers are moved, nobody is sent there until `resume`.

        Returns when nobody reads from it any more, or at the time-out, with the readers that are left.
        """
        return DrainReport(**self._inner.drain(model, replica, timeout))

    def resume(self, model: str, replica: str, timeout: float = _core.join_timeout) -> None:
        """The end of `drain`."""
        self._inner.resume(model, replica, timeout)
