"""verl takes its weights from a hub: checkpoint engine "tensorhub", by configuration alone.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: tensorhub
      custom_backend_module: tensorhub.integrations.verl
      engine_kwargs: {tensorhub: {server: "tcp://10.0.0.1:5570", location: {datacenter: "a"}}}

All ranks and rollouts get the same values. With a server on another machine they listen at the address from which they
reach it; `listen_host` names another one.

One class serves the rollouts of vLLM, SGLang and TensorRT-LLM, all of which verl feeds tensor by tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from tensorhub.integrations.checkpoint_engine import HubWeights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    import torch

__all__ = ["TensorHubCheckpointEngine"]


@CheckpointEngineRegistry.register("tensorhub")
class TensorHubCheckpointEngine(CheckpointEngine):
    """One object in each worker of the trainer, the first of which is the master, and of the rollouts.

    `engine_kwargs`: fields of `HubWeights`.
    """

    wire_format = "named_tensors"

    def __init__(self, bucket_size: int, is_master: bool = False, **engine_kwargs: Any) -> None:
        """`bucket_size` is not needed: the whole model lies in host memory."""
        self.bucket_size = bucket_size
        self.is_master = is_master
        self._weights = HubWeights(**engine_kwargs)
        self._next = 0
        self._rank = 0
        self._ranks = 1

    def prepare(self) -> dict[str, Any]:
        """Tells the version that comes next; of a trainer that was restarted the master asks the server."""
        asks = self.is_master or self._weights.has_lost_count
        return {"version": self._weights.next_version() if asks else self._weights.version + 1}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Gives all workers the number of the next version; a worker that has just come knows of none."""
        version = max(each["version"] for each in metadata)
        actors = {
            "version": [version] * actor_wg_world_size,
            "rank": list(range(actor_wg_world_size)),
            "ranks": [actor_wg_world_size] * actor_wg_world_size,
        }
        return actors, {"version": [version] * rollout_world_size}

    def init_process_group(self, version: int, rank: int = 0, ranks: int = 1) -> None:
        """Builds no group. `rank` and `ranks`: of the trainer."""
        self._next, self._rank, self._ranks = version, rank, ranks

    def finalize(self) -> None:
        """Keeps everything: other rollouts read the version from here until the next one."""

    async def send_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publishes the weights."""
        self._weights.send(weights, self._version(global_steps), rank=self._rank, ranks=self._ranks)
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields the weights, when all of them are here and verified."""
        async for each in self._weights.receive(self._version(global_steps)):
            yield each

    def _version(self, global_steps: int | None) -> int:
        """One more than the step, but higher if a trainer has begun again at an earlier step."""
        return self._next if global_steps is None else max(self._next, global_steps + 1)
