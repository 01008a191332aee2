"""Transports by name: those that are linked to libraries of their own are modules, and say why they are not there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensorhub as th

if TYPE_CHECKING:
    from collections.abc import Sequence


def has(transport: str) -> bool:
    try:
        __import__(f"tensorhub._{transport}")
    except ImportError:
        return False
    return True


def test_libfabric_moves_a_version(server: th.ReferenceServer) -> None:
    if not has("libfabric"):
        pytest.skip("libfabric: the component is not built here")
    source, target = np.arange(700_000, dtype=np.float32), np.zeros(700_000, dtype=np.float32)
    with (
        th.Publisher(server, "m", "t", transport="libfabric", provider="tcp") as trainer,
        th.Subscriber(server, "m", "r", transport="libfabric") as rollout,
    ):
        trainer.add("w", source)
        rollout.add("w", target)
        with trainer.published(1):
            assert [each.path for each in rollout.update(timeout=20).sources] == ["libfabric"]
        assert np.array_equal(source, target)
        trainer.leave()


def test_a_shared_copy_over_libfabric(server: th.ReferenceServer) -> None:
    if not has("libfabric"):
        pytest.skip("libfabric: the component is not built here")
    source, name = np.arange(700_000, dtype=np.float32), f"test-{os.getpid()}-libfabric"
    with (
        th.Publisher(server, "m", "t", transport="libfabric", provider="tcp") as trainer,
        th.SharedCopy(server, "m", "c", name=name, transport="libfabric") as copy,
    ):
        trainer.add("w", source)
        copy.declare("w", source.shape, "f32")
        with trainer.published(1):
            assert [each.path for each in copy.update(timeout=20).sources] == ["libfabric"]
        with th.AttachedCopy(name).hold() as held:
            assert np.array_equal(np.asarray(held.tensor("w")), source)


def test_verbs_says_that_there_is_no_device(server: th.ReferenceServer) -> None:
    if not has("verbs"):
        pytest.skip("verbs: the component is not built here")
    with pytest.raises(th.TransportFailed, match=r"verbs: .*device"):
        th.Subscriber(server, "m", "r", transport="verbs", rdma_device="no-such-device")


@pytest.mark.parametrize("transport", ["verbs", "libfabric"])
def test_a_module_that_was_not_built_says_so(
    server: th.ReferenceServer, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"tensorhub._{transport}", None)
    with pytest.raises(th.TransportFailed, match=f"'{transport}' cannot be used here: .* built without it"):
        th.Publisher(server, "m", "t", transport=transport)


def test_a_library_that_is_not_there_is_named(server: th.ReferenceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(
            self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            if name == "tensorhub._verbs":
                raise ImportError("libibverbs.so.1: cannot open shared object file")
            return None

    monkeypatch.delitem(sys.modules, "tensorhub._verbs", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(th.TransportFailed, match=r"libibverbs.so.1: cannot open .*: install them"):
        th.Publisher(server, "m", "t", transport="verbs")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"transport": "ucx"}, "transport 'ucx' does not exist: take one of 'auto', 'tcp'"),
        ({"transport": "tcp", "provider": "tcp"}, "'tcp' has no option provider"),
        ({"rdma_device": "mlx5_0"}, "'auto' has no option rdma_device"),
        ({"transport": "verbs", "advertised_host": "10.0.0.1"}, "'verbs' has no option advertised_host"),
        ({"transport": "same_host", "advertised_host": "10.0.0.1"}, "'same_host' has no option advertised_host"),
        ({"transport": "same_host", "listen_host": "10.0.0.1"}, "'same_host' has no option listen_host"),
        ({"transport": "same_host", "listen_port": 5571}, "'same_host' has no option listen_port"),
    ],
)
def test_options_of_another_transport_are_refused(
    server: th.ReferenceServer, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(th.InvalidArgument, match=sentence):
        th.Publisher(server, "m", "t", **options)  # type: ignore[arg-type]
