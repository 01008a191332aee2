"""Loads versions of the checkpoint's format into a worker's model: completely, or with an error that names tensors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from tensorhub.errors import InvalidArgument, LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

__all__ = ["CheckpointLoader"]

_NAMED = 5
"""Tensors that an error names, of those that it is about."""


class CheckpointLoader:
    """Loads version after version into one model, and refuses one whose tensors are not those of the one before."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """Types and shapes of the last version that was loaded completely, by name; empty: none was."""
        self._known_version = 0

    def check(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises `LayoutMismatch` if the tensors are not those of the last version. Touches nothing."""
        if not self._known:
            return
        given, known = _described(tensors), self._known
        changes = [
            ("missing", [name for name in known if name not in given]),
            ("unknown", [f"{name} ({given[name]})" for name in given if name not in known]),
            (
                "different",
                [_difference(name, known[name], given[name]) for name in known if _differ(name, known, given)],
            ),
        ]
        found = "; ".join(f"{what}: {_first_of(names)}" for what, names in changes if names)
        if found:
            raise LayoutMismatch(
                f"the version's tensors are not those of version {self._known_version}, which this engine has loaded "
                f"({found}), and nothing of it was loaded: publish all tensors as before, or start the engine again if "
                f"the change is meant",
                version=version,
            )

    def load(
        self,
        model: Any,
        config: Any,
        version: int,
        tensors: list[tuple[str, torch.Tensor]],
        *,
        is_partial: bool = False,
    ) -> None:
        """Loads a version. Raises `LayoutMismatch` if the model has weights that did not get any.

        After any error the weights in use are of no version. `is_partial`: some weights need not get any.
        """
        names = {name for name, _ in model.named_parameters()}  # of tied ones, whose memory is one, the first
        initialize_layerwise_reload(model)
        at = _Position(tensors)
        try:
            loaded = model.load_weights(iter(at))
        except Exception as e:
            raise InvalidArgument(_cannot_be_loaded(e, at, _is_whole_again(model, config)), version=version) from e
        # As vLLM's own loader: it knows what a checkpoint has to have only of models that are not quantized.
        may_lack = is_partial or loaded is None or config.quantization is not None
        missing = [] if may_lack else list(_without_weights(model, names - set(loaded)))
        finalize_layerwise_reload(model, config)
        if missing:
            raise LayoutMismatch(
                f"the model has weights that the version has not ({_first_of(missing)}), and those in use are of no "
                f"version now: publish all tensors of the model, or initialize the engine with `partial` if the others "
                f"are to stay as they are",
                version=version,
            )
        self._known, self._known_version = _described(tensors), version


class _Position:
    """Gives tensors, and knows which one it has given last."""

    def __init__(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self._tensors = tensors
        self.last = "none"

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors:
            self.last = f"{name} ({_description(tensor)})"
            yield name, tensor


def _without_weights(model: Any, unnamed: set[str]) -> Iterator[str]:
    """Parameters that got no element, and fused ones that got a part; before the reload is finalized.

    `unnamed`: those that the model has not named as loaded.
    """
    for prefix, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load():  # it had all its elements, and was processed
            continue
        sizes = {name: each.numel() for name, each in layer.named_parameters(recurse=False) if each.numel()}
        arrived = {name for name, _ in info.loaded_weights}
        full = {name: f"{prefix}.{name}" if prefix else name for name in sizes}
        yield from (full[name] for name in sizes if name not in arrived and full[name] in unnamed)
        # Layers that are padded need not get all elements, but those of fused tensors are not.
        if hasattr(layer, "output_sizes") and arrived >= sizes.keys() and info.load_numel < sum(sizes.values()):
            yield from (f"a part of {name}" for name in full.values())


def _is_whole_again(model: Any, config: Any) -> bool:
    """Gives up a reload that has failed: layers that were not processed get their old tensors back."""
    try:
        for layer in model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0
        finalize_layerwise_reload(model, config)
    except Exception:  # noqa: BLE001 (the first error says what went wrong)
        return False
    return True


def _cannot_be_loaded(error: Exception, at: _Position, is_whole: bool) -> str:
    remedy = "publish a version that it can load" if is_whole else "start the engine again, which cannot go on"
    return (
        f"vLLM could not load the version, at tensor {at.last}: {type(error).__name__}: "
        f"{textwrap.shorten(str(error), 300, placeholder=' ...')}; the weights in use are of no version now: {remedy}"
    )


def _described(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    return {name: _description(tensor) for name, tensor in tensors}


def _description(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _differ(name: str, known: dict[str, str], given: dict[str, str]) -> bool:
    return name in given and given[name] != known[name]


def _difference(name: str, known: str, given: str) -> str:
    return f"{name} ({given}, before it {known})"


def _first_of(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
