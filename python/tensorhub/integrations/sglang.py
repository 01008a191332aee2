"""SGLang takes its weights from a hub, by its custom weight loader.

The entry point `sglang.srt.plugins` of this package makes the loader known in every process of SGLang, by its own hooks
(`SGLANG_PLUGINS` restricts which are loaded). Without it, `--custom-weight-loader tensorhub.integrations.sglang.load`
does the same, but an update that fails then ends SGLang, as every loader that raises an exception does.

The trainer publishes (`tensorhub.torch.ArenaPublisher`). Within an update session it posts what `request` gives to
`update_weights_from_tensor`, with `load_format="tensorhub.integrations.sglang.load"`: some bytes that say where the
weights are. Of an engine one rank on each machine then reads the whole version, from there or from other machines, and
every rank loads it as from a checkpoint. A version that does not come leaves the weights in use as they are.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch

from tensorhub.errors import Error, InvalidArgument, Replaced
from tensorhub.machine import machine_name
from tensorhub.torch import Receiver
from tensorhub.workers import replica_of_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["load", "register", "request"]

_NAME = "tensorhub"
_LOADER = f"{__name__}.load"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_LARGEST_REQUEST = 4096
_receivers: dict[tuple[str, str, bool, str], Receiver] = {}


def register() -> None:
    """Makes `load` one of the loaders that a request may name. SGLang calls it once in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    HookRegistry.register(f"{_UPDATER}.__init__", _with_loader, HookType.BEFORE)
    HookRegistry.register(f"{_UPDATER}.update_weights_from_tensor", _answering, HookType.AROUND)


def _with_loader(*args: Any, custom_weight_loaders: Iterable[str] = (), **others: Any) -> tuple[Any, dict[str, Any]]:
    """The arguments of SGLang's WeightUpdater, and our loader among them."""
    known = [each for each in custom_weight_loaders or () if each != _LOADER]
    return args, {**others, "custom_weight_loaders": [*known, _LOADER]}


def _answering(update: Callable[..., Any], *args: Any, **others: Any) -> Any:
    """Answers that an update has failed: its exception would end this process, and the other ranks would wait."""
    try:
        return update(*args, **others)
    except Error as failure:
        return False, str(failure)


def request(
    server: str,
    model: str,
    version: int,
    timeout: float = 120.0,
    *,
    once_per_machine: bool = True,
    machine: str = "",
) -> list[tuple[str, torch.Tensor]]:
    """What `load` is to be given, as named tensors. Without `once_per_machine` each rank has a copy of its own.

    The ranks of one engine share what they receive; with `machine`, a name of your own, those of several engines do.
    """
    told = {"server": server, "model": model, "version": version, "timeout": timeout}
    text = json.dumps({**told, "once_per_machine": once_per_machine, "machine": machine})
    return [(_NAME, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))]


def _read(text: bytes) -> tuple[tuple[str, str, bool, str], int, float]:
    """What names the receiver, the version and the time-out of a request."""
    try:
        told = json.loads(text)
        shares = bool(told.get("once_per_machine", True))  # trainers of an earlier release do not say it
        key = (str(told["server"]), str(told["model"]), shares, str(told.get("machine", "")))
        return key, int(told["version"]), float(told["timeout"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidArgument(
            f"the request of the weight loader cannot be read ({type(e).__name__}: {e}): give what sglang.request of "
            f"this package makes"
        ) from e


def _engine() -> str:
    """Names the engine that this rank belongs to: one process of it has started the ranks that it has here."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}/{os.getppid()}"


def load(model: Any, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Called by SGLang in every rank: receives the version that the request names, and loads it into the model."""
    asked = dict(named_tensors)
    if list(asked) != [_NAME] or asked[_NAME].numel() > _LARGEST_REQUEST:
        raise InvalidArgument(
            f"the weight loader was given {len(asked)} tensors: it takes what sglang.request of this package gives"
        )
    key, version, timeout = _read(bytes(asked[_NAME].cpu().tolist()))
    receiver = _receivers.get(key)
    if receiver is None:
        server, policy, once_per_machine, shared = key
        machine = machine_name(server, policy, {}, engine=_engine(), shared=shared) if once_per_machine else ""
        receiver = _receivers[key] = Receiver(server, policy, replica_of_process("rollout"), machine=machine)
    try:
        receiver.receive(version, timeout=timeout)
    except Replaced:  # or evicted: the next request joins anew
        _receivers.pop(key).close()
        raise
    try:
        model.load_weights(receiver.tensors())
    finally:
        receiver.let_go()
