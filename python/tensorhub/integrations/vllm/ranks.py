"""What the ranks of one engine agree on before they touch their weights: all of them load a version, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensorhub.errors import GroupFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fail_together"]


def fail_together(failure: Exception | None, version: int, rank: int, ranks: int, groups: Iterable[Any]) -> None:
    """Every rank calls it, with its own failure to receive `version`, or None. Returns in all of them, or in none.

    `groups`: of torch.distributed, in host memory; through one after the other each rank reaches all `ranks`.
    """
    failed = torch.zeros(ranks, dtype=torch.int32)
    failed[rank] = failure is not None
    for group in groups:
        torch.distributed.all_reduce(failed, op=torch.distributed.ReduceOp.MAX, group=group)
    if failure is not None:
        raise failure
    others = [str(each) for each, has_failed in enumerate(failed.tolist()) if has_failed]
    if others:
        raise GroupFailed(
            f"rank {', '.join(others)} of this engine has not received version {version}, and its own error says why: "
            f"nothing was loaded in any rank, and the weights in use are what they were; update again",
            version=version,
        )
