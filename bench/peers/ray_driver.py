"""The driver of bench/peers for Ray's object store.

To publish is `ray.put` by the source's actor, to read is `ray.get` by a reader's actor and a copy into its own memory.
Over TCP every actor has a node (a raylet with an object store) of its own, so that objects travel between nodes; on the
same host all share one. This one process gives the orders to all actors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from driver import Driver, Settings, map_memory, serve
from ray.cluster_utils import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray


@ray.remote(num_cpus=0, max_concurrency=1)
class Holder:
    """A source or a reader, with memory of its own."""

    def __init__(self, memory: str, size: int) -> None:
        self._memory: NDArray[np.uint8] = map_memory(memory, size)

    def put(self) -> list[Any]:
        """What is in memory, as an object."""
        return [ray.put(self._memory)]

    def get(self, objects: list[Any]) -> None:
        """The object, into memory."""
        np.copyto(self._memory, ray.get(objects[0]))


class Actors(Driver):
    """A cluster of one node, or of one for each actor."""

    def __init__(self, given: Settings) -> None:
        paths = given.memory.split(",")
        everywhere = {f"place{i}": 1.0 for i in range(len(paths))}
        node = {"num_cpus": 1, "object_store_memory": given.size * 5 // 2, "include_dashboard": False}
        # It is stopped at times; what is spilled to a disk would be measured as if it were in memory; and workers that
        # give way to all other processes of a busy machine (niceness 15, the default) took ten times as long.
        settings = {"health_check_failure_threshold": 100, "health_check_timeout_ms": 60_000}
        settings |= {"automatic_object_spilling_enabled": False, "worker_niceness": 0}
        is_same_host = given.path == "same_host"
        places = everywhere if is_same_host else {"place0": 1.0}
        head = {**node, "resources": places, "_system_config": settings}
        cluster = self._cluster = Cluster(initialize_head=True, head_node_args=head)
        for place in [] if is_same_host else list(everywhere)[1:]:
            cluster.add_node(**node, resources={place: 1.0})
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        self._actors = [
            Holder.options(resources={f"place{i}": 1.0}).remote(path, given.size)  # type: ignore[attr-defined]
            for i, path in enumerate(paths)
        ]
        ray.get([each.__ray_ready__.remote() for each in self._actors])
        self._objects: list[Any] = []
        self._free = self._free_bytes()

    def address(self) -> str:
        """There are no other processes to tell."""
        return "-"

    def publish(self, version: int) -> None:
        """Into the object store of the source's node."""
        self._objects = ray.get(self._actors[0].put.remote())

    def read(self, version: int, readers: int) -> None:
        """That many readers at once."""
        ray.get([each.get.remote(self._objects) for each in self._actors[1 : readers + 1]])

    def release(self) -> None:
        """The last reference goes; returns when the object stores have forgotten the object."""
        self._objects = []
        until = time.monotonic() + 60
        while self._free_bytes() < self._free:
            if time.monotonic() > until:
                raise RuntimeError("the object stores keep an object that nobody refers to")
            time.sleep(0.05)

    @staticmethod
    def _free_bytes() -> float:
        return float(ray.available_resources().get("object_store_memory", 0))

    def close(self) -> None:
        """All of its processes end."""
        ray.shutdown()
        self._cluster.shutdown()


if __name__ == "__main__":
    serve(Actors)
