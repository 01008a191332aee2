"""The receiving half, one object in each worker process of vLLM.

What travels is the checkpoint's format: the names and shapes of the model's repository, which the model's own loaders
fuse, slice and quantize. Every worker receives the whole model; on one machine the bytes are read from memory to
memory. A version is received completely, verified, beside the weights in use: an update that fails before has changed
nothing, and the engine goes on with what it has.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from tensorhub.errors import InvalidArgument
from tensorhub.server import read_keys, read_public_key
from tensorhub.torch import Receiver
from tensorhub.workers import Location, Options, Security

__all__ = ["InitInfo", "TensorHubWeightTransferEngine", "UpdateInfo"]


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Where the weights are. Only the first two have no sensible default."""

    server: str
    model: str
    replica: str = ""
    """Of this engine, which appends each worker's ranks; the default is host and process."""
    datacenter: str = ""
    rack: str = ""
    transport: str = "auto"
    key_file: str = ""
    """A `.secret` file on this worker's machine, for a server with keys."""
    server_key_file: str = ""
    timeout: float = 120.0
    """Seconds, of one update."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What to take: the version number, which is the engine's weight version as well."""

    version: int


class TensorHubWeightTransferEngine(WeightTransferEngine):
    """Backend "tensorhub" of vLLM's weight transfer."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update: ClassVar[bool] = False

    _receiver: Receiver | None = None
    _timeout = 0.0
    _is_loading = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connects to the server; the first update reads the model's layout."""
        self.shutdown()
        parallel = self.parallel_config
        replica = init_info.replica or f"{socket.gethostname()}-{os.getpid()}"
        rank = f"dp{parallel.data_parallel_index}-rank{parallel.rank}"
        options = Options(
            transport=init_info.transport,
            location=Location(datacenter=init_info.datacenter, rack=init_info.rack),
        )
        if init_info.key_file:
            options["security"] = Security(read_public_key(init_info.server_key_file), *read_keys(init_info.key_file))
        self._timeout = init_info.timeout
        self._receiver = Receiver(init_info.server, init_info.model, f"{replica}-{rank}", **options)

    def start_weight_update(self) -> None:
        """Changes nothing yet: the weights are touched when a whole version is here."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives the version and loads it. The base's method waits for an accelerator, too, which need not be."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Receives the version beside the weights in use, and then loads it into the model."""
        self._connected().receive(update_info.version, timeout=self._timeout)
        self.load_received()

    def load_received(self) -> None:
        """Loads the version that was received last into the model."""
        receiver = self._connected()
        initialize_layerwise_reload(self.model)
        self._is_loading = True
        self.model.load_weights(receiver.tensors())

    def finish_weight_update(self) -> None:
        """Lets the model process what was loaded, and copies it to where it is used."""
        if not self._is_loading:
            return
        self._is_loading = False
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            self._pack_tied_heads()

    def shutdown(self) -> None:
        """Leaves the hub."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _connected(self) -> Receiver:
        if self._receiver is None:
            raise InvalidArgument("the weight transfer engine was not initialized: call init_weight_transfer_engine")
        return self._receiver

    def _pack_tied_heads(self) -> None:
        """On the CPU a head keeps a packed copy of its weights, which reloading does not renew if they are tied."""
        owners: dict[int, Any] = {}
        for module in self.model.modules():
            weight = getattr(module, "weight", None)
            if weight is None or not hasattr(module, "quant_method"):
                continue
            if id(weight) in owners:
                module.quant_method.process_weights_after_loading(module)
            owners[id(weight)] = module
