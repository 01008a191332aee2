"""NeMo-RL takes its weights from a hub: a checkpoint engine, by configuration alone.

    policy.generation.refit_transport: "tensorhub.integrations.nemo_rl:TensorHubCheckpointEngine"

and the fields of `HubWeights` in the configuration of that name: `server` at least, and a `location` where there are
several datacenters or racks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

from tensorhub.integrations.checkpoint_engine import HubWeights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    import torch

__all__ = ["TensorHubCheckpointEngine"]


class TensorHubCheckpointEngine(CheckpointEngine):
    """One object in each worker of the trainer, whose first ranks send the weights, and of the rollouts."""

    def __init__(self, bucket_size: int, **engine_kwargs: Any) -> None:
        """`bucket_size`: how many bytes of tensors `receive_weight_batches` yields at a time, at least one tensor."""
        self.bucket_size = bucket_size
        self._weights = HubWeights(**engine_kwargs)
        self._rank = 0
        self._ranks = 1
        self._next = 0

    def prepare(self) -> dict[str, Any]:
        """Tells the version that comes next; a worker that has sent and received none asks the server."""
        return {"version": self._weights.next_version()}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Builds no group; all workers take the same number for the next version."""
        self._rank, self._ranks = worker_rank, train_world_size
        self._next = max(each["version"] for each in metadata)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Builds no group."""
        self._next = max(each["version"] for each in metadata)

    def finalize(self) -> None:
        """Keeps everything: other rollouts read the version from here until the next one."""

    async def send_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        """Publishes the weights."""
        self._weights.send(weights, self._next, rank=self._rank, ranks=self._ranks)

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, torch.Tensor]]]:
        """Yields the weights in lists, when all of them are here and verified."""
        batch: list[tuple[str, torch.Tensor]] = []
        size = 0
        async for name, tensor in self._weights.receive(self._next):
            if batch and size + tensor.nbytes > self.bucket_size:
                yield batch
                batch, size = [], 0
            batch.append((name, tensor))
            size += tensor.nbytes
        if batch:
            yield batch

    def get_target_weight_layout(self) -> dict[str, Any] | None:
        """None: what travels is the checkpoint's format."""
        return None
