"""Tensors of torch that a worker writes, of which torch is told: it would not know.

What autograd has saved of a tensor before it was written is refused by `backward` then, as after any other operation in
place; it would be taken for the new weights' own otherwise, and the gradients be wrong.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["WrittenTensors"]


class WrittenTensors:
    """Those of one worker. Other arrays than torch's are left out."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def add(self, tensor: object) -> None:
        """Keeps it, if it is of torch and counts its versions."""
        torch: Any = sys.modules.get("torch")
        tensor_type = getattr(torch, "Tensor", None)
        if tensor_type is not None and isinstance(tensor, tensor_type) and not tensor.is_inference():
            self._tensors.append(tensor)

    def tell_torch(self) -> None:
        """They were written."""
        increment = getattr(sys.modules["torch"].autograd.graph, "increment_version", None)
        if increment is None:  # an old torch
            return
        try:
            increment(self._tensors)
        except TypeError:  # one that takes no list
            for each in self._tensors:
                increment(each)
