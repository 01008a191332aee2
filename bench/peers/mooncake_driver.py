"""The driver of bench/peers for Mooncake's transfer engine: each reader reads the source's memory in one call."""

from __future__ import annotations

from driver import Driver, Settings, map_memory, serve
from mooncake.engine import TransferEngine


class Mooncake(Driver):
    """One engine, without a metadata server."""

    def __init__(self, given: Settings) -> None:
        self._memory = map_memory(given.memory, given.size)
        self._at = int(self._memory.ctypes.data)
        self._engine = TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("the engine does not start")
        if self._engine.register_memory(self._at, given.size) != 0:
            raise RuntimeError("the engine does not take the memory")
        self._size = given.size
        self._name, _, at = given.source.rpartition("/")
        self._theirs = int(at or 0)

    def address(self) -> str:
        """The name of its segment, and where the bytes are."""
        return f"127.0.0.1:{self._engine.get_rpc_port()}/{self._at}"

    def publish(self, version: int) -> None:
        """Nothing to do: the memory is registered."""

    def read(self, version: int, readers: int) -> None:
        """All of it."""
        if self._engine.transfer_sync_read(self._name, self._at, self._theirs, self._size) != 0:
            raise RuntimeError(f"reading version {version} failed")

    def release(self) -> None:
        """Nothing to do."""


if __name__ == "__main__":
    serve(Mooncake)
