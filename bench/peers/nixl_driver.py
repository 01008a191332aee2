"""The driver of bench/peers for NIXL, with its backend UCX.

Over TCP a reader asks by a notification, and the source posts one WRITE into the reader's memory (a READ took twice as
long). On the same host the reader posts one READ. There are no progress threads, which poll all the time: with them a
WRITE took two to four times as long on two cores. The source's own thread polls while a version is published.
"""

from __future__ import annotations

import base64
import threading
import time

from driver import Driver, Settings, map_memory, serve
from nixl_cu12._api import nixl_agent, nixl_agent_config

PAUSE = 100e-6  # between two looks of who has nothing to do


class Nixl(Driver):
    """One agent."""

    def __init__(self, given: Settings) -> None:
        self._memory = map_memory(given.memory, given.size)
        self._region = (int(self._memory.ctypes.data), given.size, 0)
        self._agent = nixl_agent(given.role + given.index, nixl_agent_config(enable_prog_thread=False))
        self._agent.register_memory([(*self._region, "")], "DRAM")
        self._is_same_host = given.path == "same_host"
        self._published = threading.Event()
        if given.is_source:
            threading.Thread(target=self._serve, daemon=True).start()
        else:
            self._source, self._transfer = self._prepare("READ", given.source)

    def address(self) -> str:
        """The agent's metadata, and where the bytes are."""
        return f"{base64.b64encode(self._agent.get_agent_metadata()).decode()}/{self._region[0]}"

    def publish(self, version: int) -> None:
        """The memory is registered; from now on the source looks for requests."""
        self._published.set()

    def read(self, version: int, readers: int) -> None:
        """All of it."""
        if self._is_same_host:
            self._finish(version)
            return
        self._agent.send_notif(self._source, self.address().encode())
        while not self._agent.get_new_notifs():
            time.sleep(PAUSE)

    def release(self) -> None:
        """Nobody looks for requests any more."""
        self._published.clear()

    def _prepare(self, operation: str, address: str) -> tuple[str, object]:
        metadata, _, there = address.rpartition("/")
        name = self._agent.add_remote_agent(base64.b64decode(metadata))
        name = name.decode() if isinstance(name, bytes) else str(name)
        ours = self._agent.get_xfer_descs([self._region], "DRAM")
        theirs = self._agent.get_xfer_descs([(int(there), *self._region[1:])], "DRAM")
        return name, self._agent.initialize_xfer(operation, ours, theirs, name, b"done")

    def _finish(self, version: int) -> None:
        state = self._agent.transfer(self._transfer)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._transfer)
        if state != "DONE":
            raise RuntimeError(f"reading version {version} failed: {state}")

    def _serve(self) -> None:
        transfers: dict[str, object] = {}
        running: list[object] = []
        while True:
            self._published.wait()
            for messages in self._agent.get_new_notifs().values():
                for message in messages if not self._is_same_host else []:
                    address = message.decode()
                    if address not in transfers:
                        _, transfers[address] = self._prepare("WRITE", address)
                    self._agent.transfer(transfers[address])
                    running.append(transfers[address])
            running = [each for each in running if self._agent.check_xfer_state(each) == "PROC"]
            if not running:
                time.sleep(PAUSE)


if __name__ == "__main__":
    serve(Nixl)
