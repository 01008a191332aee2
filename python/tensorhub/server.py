"""The reference server, which knows who holds which version; and keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorhub import _core
from tensorhub.lifetime import Closable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ReferenceServer", "make_keys", "read_allow_list", "read_keys", "read_public_key", "write_keys"]


class ReferenceServer(Closable):
    """Knows which workers hold which version in place. It holds no weights, and may die at any time.

    It listens as soon as it is made. Without keys it admits everybody that reaches it: the default address is reached
    from this machine only.
    """

    _inner: _core.ReferenceServer
    _closes = 2

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:0",
        *,
        public_key: str = "",
        secret_key: str = "",
        allowed: Mapping[str, str] | None = None,
        worker_timeout: float | None = None,
        group_timeout: float | None = None,
        late_shard_timeout: float | None = None,
        recovery_grace: float | None = None,
    ) -> None:
        """`address`: port 0 takes any free one. `allowed`: the public keys that are admitted.

        Each has a name and rules, as in a line of an allow-list: "rollouts replicas=rollout-* may=read,serve".
        """
        self._inner = _core.ReferenceServer(
            {
                "address": address,
                "public_key": public_key,
                "secret_key": secret_key,
                "allowed": dict(allowed or {}),
                "worker_timeout": worker_timeout,
                "group_timeout": group_timeout,
                "late_shard_timeout": late_shard_timeout,
                "recovery_grace": recovery_grace,
            }
        )
        super().__init__()

    @property
    def address(self) -> str:
        """Where workers connect, with the port that was taken."""
        return self._inner.address

    def allow(self, public_key: str, rules: str = "") -> None:
        """Admits workers with this key from now on, or changes what they may do; `rules`: as in `allowed`."""
        self._inner.allow(public_key, rules)

    def revoke(self, public_key: str) -> bool:
        """Refuses this key from now on. False: it was not admitted."""
        return self._inner.revoke(public_key)

    def statistics(self) -> dict[str, Any]:
        """Numbers of workers, models, reads and messages."""
        return self._inner.statistics()

    def close(self) -> None:
        """Stops serving. Transfers that run go on."""
        self._inner.close()

    def __repr__(self) -> str:
        if self._is_of_a_parent:
            return "ReferenceServer(made before fork())"
        return "ReferenceServer(closed)" if self._inner.is_closed else f"ReferenceServer({self.address})"


def make_keys() -> tuple[str, str]:
    """A new public and secret key."""
    return _core.make_keys()


def write_keys(folder: str | os.PathLike[str], name: str, public_key: str, secret_key: str) -> None:
    """Writes `<folder>/<name>.secret`, which only the owner may read, and `<name>.public`. Overwrites nothing."""
    _core.write_keys(os.fspath(folder), name, public_key, secret_key)


def read_keys(file: str | os.PathLike[str]) -> tuple[str, str]:
    """The public and the secret key in a `.secret` file."""
    return _core.read_keys(os.fspath(file))


def read_public_key(file: str | os.PathLike[str]) -> str:
    """The key in a `.public` file."""
    return _core.read_public_key(os.fspath(file))


def read_allow_list(file: str | os.PathLike[str]) -> dict[str, str]:
    """Public keys, names and rules: a line for each."""
    return _core.read_allow_list(os.fspath(file))
