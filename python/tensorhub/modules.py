"""Modules that a worker was told of: whether their tensors are still those that it reads or writes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensorhub.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Module"]

_ANOTHER = "a new Parameter or layer, load_state_dict(assign=True) or a parametrization makes one"
_WHAT_TO_DO = "make a new worker after such a change, or copy into the tensors that were added"


@runtime_checkable
class Module(Protocol):
    """What is used of a torch.nn.Module."""

    def state_dict(self, *, keep_vars: bool = ...) -> Mapping[str, Any]:
        """Names and tensors; with `keep_vars` the parameters themselves."""


class WatchedModule:
    """A module, and the tensors that it had when a worker was told of it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        found = module.state_dict(keep_vars=True)
        self._count = len(found)
        self._added = _tensors_of(found)
        again = module.state_dict(keep_vars=True)
        for name, tensor in self._added.items():
            if not _is_same(tensor, again.get(name)):
                raise InvalidArgument(
                    f"tensor '{name}' is another one each time its module is asked (a hook of state_dict makes "
                    f"copies, perhaps): give the tensors themselves, such as named_parameters()"
                )

    def to_add(self) -> list[tuple[str, Any]]:
        """Names and tensors; tied ones once, by their first name."""
        first_names: dict[int, tuple[str, Any]] = {}
        for name, tensor in self._added.items():
            first_names.setdefault(id(tensor), (name, tensor))
        return list(first_names.values())

    def check(self) -> None:
        """Throws `InvalidArgument` if the module does not have the tensors any more that were added."""
        found = self._module.state_dict(keep_vars=True)
        if len(found) == self._count and all(map(operator.is_, self._added.values(), map(found.get, self._added))):
            return
        now = _tensors_of(found)
        for name, tensor in self._added.items():
            if name not in now:
                raise InvalidArgument(f"tensor '{name}' is not in its module any more: {_WHAT_TO_DO}")
            if not _is_same(tensor, now[name]):
                raise InvalidArgument(
                    f"tensor '{name}' is another one in its module now than when it was added ({_ANOTHER}): "
                    f"{_WHAT_TO_DO}"
                )
        for name in now.keys() - self._added.keys():
            raise InvalidArgument(f"tensor '{name}' is new in its module, and was not added: {_WHAT_TO_DO}")


def _tensors_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without what get_extra_state() makes anew at each call."""
    return {name: tensor for name, tensor in found.items() if name.rpartition(".")[2] != "_extra_state"}


def _is_same(added: Any, now: Any) -> bool:
    """The same tensor, which the worker itself finds out if it has moved, or one that shows the same memory alike."""
    return added is now or (hasattr(added, "data_ptr") and hasattr(now, "data_ptr") and _place(added) == _place(now))


def _place(tensor: Any) -> tuple[object, ...]:
    try:
        return tensor.data_ptr(), str(tensor.dtype), tuple(tensor.shape), tensor.is_contiguous()
    except RuntimeError:  # of torch: it is sparse, or has no memory
        return (id(tensor),)
