"""Weights as an engine uses them: fused, sliced and quantized, from one engine to others that are equal to it.

The checkpoint's format is taken apart by every engine again; what comes out of that is the same in all engines of one
configuration. One of them shows it, in place; the others read it straight into their own weights, and show it on.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from tensorhub.errors import InvalidArgument, Replaced
from tensorhub.workers import Options, Publisher, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

__all__ = ["Mode", "ShownWeights", "TakenWeights", "runtime_tensors"]

Mode = Literal["", "show", "staged", "in_place"]
"""What an engine does with weights as they are used.

* "": nothing; it loads the checkpoint's format.
* `show`: it loads the checkpoint's format, and shows what has become of it.
* `staged`: it takes them from an equal engine, beside its own, and copies them over when the version is complete.
* `in_place`: it takes them straight into its own; after an error they are no version (`tensorhub.Torn`).
"""

AnyWorker = TypeVar("AnyWorker", Publisher, Subscriber)


def runtime_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a module, each memory once, as contiguous views. Raises `InvalidArgument`."""
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.numel() == 0:
            raise InvalidArgument(
                f"layer '{name}' keeps its weights in a packed form of the CPU's, where nobody else can read them: "
                f"runtime weights are for engines on GPUs; leave `runtime` out"
            )
    out: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        memory = (tensor.data_ptr(), tensor.nbytes)
        if tensor.numel() == 0 or memory in seen:
            continue
        seen.add(memory)
        out[name] = _as_it_lies(name, tensor.detach())
    return out


def _as_it_lies(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous view: some kernels want their weights transposed."""
    axes = sorted(range(tensor.ndim), key=lambda axis: (-tensor.stride()[axis], -tensor.shape[axis]))
    view = tensor.permute(axes)
    if not view.is_contiguous():
        raise InvalidArgument(f"tensor '{name}' is a part of a larger one, with gaps: it cannot be read in place")
    return view


class _WeightsInUse(Generic[AnyWorker]):
    """The weights in use of one worker process of an engine, and its worker of the hub."""

    def __init__(self, make: Callable[[Options], AnyWorker]) -> None:
        self._make: Callable[[Options], AnyWorker] = make
        self._worker: AnyWorker | None = None
        self._places: dict[str, tuple[object, ...]] = {}

    def close(self) -> None:
        """Leaves the hub at once."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @contextlib.contextmanager
    def _joining_anew(self) -> Iterator[None]:
        """A worker that was `Replaced`, or evicted, takes no call any more: the next one makes another."""
        try:
            yield
        except Replaced:
            self.close()
            raise

    def _of(self, module: torch.nn.Module) -> AnyWorker:
        """The worker; another one if the engine has given its weights other memory, or another form, since."""
        tensors = runtime_tensors(module)
        places: dict[str, tuple[object, ...]] = {
            name: (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            for name, tensor in tensors.items()
        }
        if self._worker is None or places != self._places:
            self.close()
            on_gpus = any(tensor.device.type == "cuda" for tensor in tensors.values())
            self._worker = self._make(Options(memory="cuda" if on_gpus else "host"))
            self._worker.add_all(tensors)
            self._places = places
        return self._worker


class ShownWeights(_WeightsInUse[Publisher]):
    """For equal engines to take."""

    def hide(self) -> None:
        """Before the engine writes them itself: returns when nobody reads them any more."""
        if self._worker is not None:
            with self._joining_anew():
                self._worker.unpublish()

    def show(self, module: torch.nn.Module, version: int) -> None:
        """They are `version` from now on, until `hide`."""
        with self._joining_anew():
            self._of(module).publish(version)


class TakenWeights(_WeightsInUse[Subscriber]):
    """From an equal engine."""

    def take(self, module: torch.nn.Module, version: int, timeout: float) -> None:
        """Takes `version` as soon as an equal engine shows it. The layouts are compared by name, shape and type."""
        with self._joining_anew():
            self._of(module).update(version, timeout=timeout)
