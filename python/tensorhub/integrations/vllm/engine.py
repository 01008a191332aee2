"""The receiving half, one object in each worker process of vLLM.

What travels is the checkpoint's format: the names and shapes of the model's repository, which the model's own loaders
fuse, slice and quantize. The workers that an engine has on a machine have the whole model once between them, which one
of them receives (machine.py). A version is received completely, verified, beside the weights in use: an update that
fails before has changed nothing, and the engine goes on with what it has. With `InitInfo.runtime`, engines that are
equal take the weights as they are used from one of them instead (runtime.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from tensorhub.errors import InvalidArgument, Replaced
from tensorhub.integrations.vllm.loading import CheckpointLoader
from tensorhub.integrations.vllm.ranks import fail_together
from tensorhub.integrations.vllm.runtime import Mode, ShownWeights, TakenWeights
from tensorhub.machine import machine_name
from tensorhub.server import read_keys, read_public_key
from tensorhub.torch import Receiver
from tensorhub.workers import Location, Options, Publisher, Security, Subscriber, replica_of_process

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InitInfo", "TensorHubWeightTransferEngine", "UpdateInfo"]


def _groups_of_an_engine() -> list[Any]:
    """Groups of vLLM through which its ranks hear of each other; other data-parallel ranks are other engines."""
    from vllm.distributed import parallel_state  # noqa: PLC0415 (not there before the engine is)

    names = ("get_tp_group", "get_pp_group", "get_pcp_group")
    groups = [getattr(parallel_state, name)() for name in names if hasattr(parallel_state, name)]
    return [each for each in groups if each.world_size > 1]


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Where the weights are. Only the first two have no sensible default."""

    server: str
    model: str
    replica: str = ""
    """Of this engine, which appends each worker's ranks; the default is a name of each worker's own,
    "rollout-<host>-...". With `runtime`, where the workers are shards of one replica, an engine of several ranks needs
    one."""
    datacenter: str = ""
    rack: str = ""
    transport: str = "auto"
    listen_host: str = ""
    """This and `advertised_host` are those of `tensorhub.workers.Options`."""
    listen_port: int = 0
    """Of the engine's first worker; the others have the next ports, by data-parallel index and rank. With `runtime`
    "show" each has a second one for what it shows, so that N workers take 2 N ports. Engines on one machine need ranges
    of their own. Zero: any free ports."""
    advertised_host: str = ""
    key_file: str = ""
    """A `.secret` file on this worker's machine, for a server with keys."""
    server_key_file: str = ""
    timeout: float = 120.0
    """Seconds, of one update."""
    runtime: Mode = ""
    """Of a group of equal engines one says "show", the others "staged" or "in_place" (runtime.py)."""
    group: str = "runtime"
    """A name for the group: engines with the same model, parallelism, quantization and version of vLLM."""
    once_per_machine: bool = True
    """The engine's workers on a machine have one received copy between them, those of its data-parallel ranks, too. If
    false, each has its own, in twice the model's size of host memory."""
    machine: str = ""
    """A name of your own: the workers of all engines of a machine that are given it share one received copy, if they
    have the same server, model, place, addresses and key. One that holds a version then delays the others."""
    partial: bool = False
    """Versions have a part of the model's weights (not a frozen vision tower, say); the others stay as they are."""


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
    _make_receiver: Callable[[], Receiver] | None = None
    """Of an engine that was initialized, and takes the checkpoint's format."""
    _shown: ShownWeights | None = None
    _taken: TakenWeights | None = None
    _timeout = 0.0
    _is_partial = False

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._loader = CheckpointLoader()

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connects to the server; the first update reads the model's layout."""
        self.shutdown()
        replica = init_info.replica or replica_of_process("rollout")
        options = Options(
            transport=init_info.transport,
            location=Location(datacenter=init_info.datacenter, rack=init_info.rack),
            listen_host=init_info.listen_host,
            listen_port=self._port(init_info),
            advertised_host=init_info.advertised_host,
        )
        if init_info.key_file:
            options["security"] = Security(read_public_key(init_info.server_key_file), *read_keys(init_info.key_file))
        self._timeout = init_info.timeout
        self._is_partial = init_info.partial
        if init_info.runtime and not init_info.replica and self.parallel_config.world_size > 1:
            raise InvalidArgument("the ranks of an engine with `runtime` are shards of one replica: give its name")
        if init_info.runtime:
            self._join_group(init_info, replica, options)
        if self._taken is None:
            parallel = self.parallel_config
            rank = f"dp{parallel.data_parallel_index}-rank{parallel.rank}"
            given = (init_info.server, init_info.model, f"{replica}-{rank}")
            machine = self._machine(init_info, options) if init_info.once_per_machine else ""
            self._make_receiver = lambda: Receiver(*given, machine=machine, **options)
            self._receiver = self._make_receiver()

    def start_weight_update(self) -> None:
        """Changes nothing yet: the weights are touched when a whole version is here."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives the version and loads it. The base's method waits for an accelerator, too, which need not be."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Receives the version beside the weights in use, and then loads it into the model.

        Requests may run before and after it, and none of them sees a model that is loaded in part. If one rank of the
        engine has not received it, none loads it: each of them raises an error.
        """
        if self._taken is not None:
            self._taken.take(self.model, update_info.version, self._timeout)
            self._pack_tied_heads()
            return
        failure: Exception | None = None
        try:
            self._receive(update_info.version)
        except Exception as e:  # noqa: BLE001 (the other ranks must hear of it, whatever it is)
            failure = e
        parallel = self.parallel_config
        try:
            if parallel.world_size > 1:
                groups = [each.cpu_group for each in _groups_of_an_engine()]
                fail_together(failure, update_info.version, parallel.rank, parallel.world_size, groups)
            elif failure is not None:
                raise failure
            self.load_received()
        finally:
            if self._receiver is not None:
                self._receiver.let_go()

    def _receive(self, version: int) -> None:
        receiver = self._connected()
        try:
            receiver.receive(version, timeout=self._timeout)
        except Replaced:  # or evicted: the next update joins anew
            self._receiver = None
            receiver.close()
            raise

    def load_received(self) -> None:
        """Loads the version that was received last into the model.

        One whose tensors are not those of the last one is refused before anything is touched.
        """
        receiver = self._connected()
        version, tensors = receiver.version, list(receiver.tensors())
        self._loader.check(version, tensors)
        if self._shown is not None:
            self._shown.hide()
        self._loader.load(self.model, self.model_config, version, tensors, is_partial=self._is_partial)
        self._pack_tied_heads()
        if self._shown is not None:
            self._shown.show(self.model, version)

    def finish_weight_update(self) -> None:
        """Does nothing: between two calls vLLM may run a step, and the model has to be whole in it."""

    def shutdown(self) -> None:
        """Leaves the hub."""
        for each in (self._receiver, self._shown, self._taken):
            if each is not None:
                each.close()
        self._receiver = self._shown = self._taken = self._make_receiver = None

    def _join_group(self, init_info: InitInfo, replica: str, options: Options) -> None:
        """Equal ranks of equal engines are one shard of the group's model."""
        parallel = self.parallel_config
        # Experts that are spread over data-parallel ranks differ in each of them.
        spreads_experts = parallel.enable_expert_parallel and parallel.data_parallel_size > 1
        rank, ranks = parallel.rank, parallel.world_size
        if spreads_experts:
            rank += parallel.data_parallel_index * ranks
            ranks *= parallel.data_parallel_size
        else:
            replica = f"{replica}-dp{parallel.data_parallel_index}"
        connect = (init_info.server, f"{init_info.model}.{init_info.group}", replica)

        def all_of(memory: Options) -> Options:
            whole = options.copy()
            whole.update(memory)
            whole["shard"] = (rank, ranks)
            if init_info.runtime == "show" and init_info.listen_port:
                whole["listen_port"] = self._port(init_info) + 1  # beside the receiver's
            return whole

        match init_info.runtime:
            case "show":
                self._shown = ShownWeights(lambda memory: Publisher(*connect, **all_of(memory)))
            case "staged" | "in_place" as mode:
                self._taken = TakenWeights(lambda memory: Subscriber(*connect, mode=mode, **all_of(memory)))
            case other:
                raise InvalidArgument(f"runtime '{other}' does not exist: take 'show', 'staged' or 'in_place'")

    def _machine(self, init_info: InitInfo, options: Options) -> str:
        """The name by which workers share. Ray's data-parallel ranks have vLLM's name of the engine, and their own."""
        engine = init_info.replica or str(self.vllm_config.instance_id).partition("_dp")[0]
        return machine_name(init_info.server, init_info.model, options, engine=engine, shared=init_info.machine)

    def _port(self, init_info: InitInfo) -> int:
        """Of this worker: those of one machine cannot share one. One that shows its weights has the next one, too."""
        if not init_info.listen_port:
            return 0
        parallel = self.parallel_config
        number: int = parallel.data_parallel_index * parallel.world_size + parallel.rank
        return init_info.listen_port + number * (2 if init_info.runtime == "show" else 1)

    def _connected(self) -> Receiver:
        if self._receiver is None:
            if self._make_receiver is None:
                raise InvalidArgument(
                    "the weight transfer engine was not initialized: call init_weight_transfer_engine"
                )
            self._receiver = self._make_receiver()
        return self._receiver

    def _pack_tied_heads(self) -> None:
        """On the CPU a head keeps a packed copy of its weights, which reloading does not renew if they are tied."""
        if self.device.type != "cpu":
            return
        owners: dict[int, Any] = {}
        for module in self.model.modules():
            weight = getattr(module, "weight", None)
            if weight is None or not hasattr(module, "quant_method"):
                continue
            if id(weight) in owners:
                module.quant_method.process_weights_after_loading(module)
            owners[id(weight)] = module
