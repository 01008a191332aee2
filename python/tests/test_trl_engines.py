"""TRL's weight transfer with engines that fail, over stand-ins that keep vLLM's rules for updates."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

import tensorhub as th

GONE = "http://127.0.0.1:9"


class Engine(ThreadingHTTPServer):
    """An update is started once, and then updated and finished; one that has failed is over."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Routes)
        self.refuses: list[str] = []
        self.updated = 0
        self.told: list[Any] = []
        self.is_updating = self.is_paused = False
        self.asked = threading.Event()
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, what: str) -> int:
        is_fine = what not in self.refuses
        if not is_fine:
            self.refuses.remove(what)
        if what == "update_weights":
            self.asked.set()
        if what in ("pause", "resume"):
            self.is_paused = what == "pause"
        elif what == "start_weight_update":
            is_fine = is_fine and not self.is_updating
            self.is_updating = True
        elif what in ("update_weights", "finish_weight_update"):
            is_fine = is_fine and self.is_updating
            self.is_updating = is_fine and what == "update_weights"
            self.updated += is_fine and what == "update_weights"
        return 200 if is_fine else 500


class Routes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        engine = self.server
        assert isinstance(engine, Engine)
        engine.told.append(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null"))
        self.send_response(engine.answer(self.path[1:].partition("?")[0]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made = [Engine(), Engine(), Engine()]
    yield made
    for each in made:
        each.shutdown()
        each.server_close()


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Of some engines, with an arena that takes everything, also where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    fresh = ["tensorhub.torch", "tensorhub.integrations.trl"]
    for each in fresh:
        monkeypatch.delitem(sys.modules, each, raising=False)
    module = importlib.import_module(fresh[1])
    monkeypatch.setattr(module, "ArenaPublisher", MagicMock())
    yield lambda urls, **given: module.WeightTransfer(urls, server="tcp://127.0.0.1:5570", version=0, **given)
    for each in fresh:
        sys.modules.pop(each, None)  # the next test may have the real ones


def step(transfer: Any) -> None:
    """Of TRL's trainer."""
    transfer.pause()
    transfer.send_weights([])
    transfer.resume()


@pytest.mark.parametrize("what", ["start_weight_update", "update_weights", "finish_weight_update"])
def test_an_engine_that_refuses_an_update_holds_up_nobody(
    transfer: Callable[..., Any], engines: list[Engine], what: str
) -> None:
    sender = transfer([each.url for each in engines])
    engines[1].refuses = [what, what]  # the start is tried again
    with pytest.raises(th.Disconnected, match=f"refused {what}: 500") as failed:
        step(sender)
    assert failed.value.peer == engines[1].url
    assert [each.updated for each in engines] == [1, what == "finish_weight_update", 1]
    assert not any(each.is_paused for each in engines)
    engines[1].refuses = []
    step(sender)
    assert [each.updated for each in engines] == [2, 2 if what == "finish_weight_update" else 1, 2]
    assert not any(each.is_paused or each.is_updating for each in engines)


def test_an_engine_that_is_not_there_keeps_no_other_from_the_hub(
    transfer: Callable[..., Any], engines: list[Engine]
) -> None:
    with pytest.raises(th.Disconnected, match="does not answer init_weight_transfer_engine"):
        transfer([GONE, *(each.url for each in engines)]).init_weight_transfer()
    told = [{"init_info": {"server": "tcp://127.0.0.1:5570", "model": "policy"}}]
    assert [each.told for each in engines] == [told, told, told]


def test_all_engines_that_fail_are_named(transfer: Callable[..., Any], engines: list[Engine]) -> None:
    sender = transfer([GONE, *(each.url for each in engines)])
    engines[0].refuses = ["update_weights"]
    with pytest.raises(th.Disconnected) as failed:
        sender.send_weights([])
    assert failed.value.peer == f"{GONE}, {engines[0].url}"
    assert "does not answer start_weight_update" in str(failed.value)
    assert "refused update_weights" in str(failed.value)
    assert [each.updated for each in engines] == [0, 1, 1]


def test_engines_go_on_if_one_cannot_be_paused(transfer: Callable[..., Any], engines: list[Engine]) -> None:
    sender = transfer([GONE, *(each.url for each in engines)])
    with pytest.raises(th.Disconnected, match="does not answer pause") as failed:
        step(sender)
    assert failed.value.peer == GONE
    assert not any(each.is_paused for each in engines)


def test_engines_go_on_if_the_weights_cannot_be_gathered(transfer: Callable[..., Any], engines: list[Engine]) -> None:
    sender = transfer([each.url for each in engines])
    sender.pause()
    assert all(each.is_paused for each in engines)
    with pytest.raises(RuntimeError, match="a rank has failed"):
        sender.send_weights(MagicMock(__iter__=MagicMock(side_effect=RuntimeError("a rank has failed"))))
    assert not any(each.is_paused for each in engines)


def test_an_update_that_an_earlier_trainer_has_not_finished_is_over(
    transfer: Callable[..., Any], engines: list[Engine]
) -> None:
    engines[2].is_updating = True
    step(transfer([each.url for each in engines]))
    assert [each.updated for each in engines] == [1, 1, 1]
    assert not any(each.is_updating for each in engines)


def test_engines_are_asked_for_what_is_still_gathered(transfer: Callable[..., Any], engines: list[Engine]) -> None:
    sender = transfer([GONE, *(each.url for each in engines)], overlap=True)
    with pytest.raises(th.Disconnected):
        sender.send_weights([])  # the first version is gathered before
    for each in engines:
        each.asked.clear()

    def gathered() -> Iterator[tuple[str, object]]:
        yield "w", None
        assert all(each.asked.wait(20) for each in engines)
        yield "v", None

    with pytest.raises(th.Disconnected, match="does not answer start_weight_update") as failed:
        sender.send_weights(gathered())
    assert failed.value.peer == GONE
    assert [each.updated for each in engines] == [2, 2, 2]
    assert not any(each.is_updating for each in engines)


def test_updates_of_what_cannot_be_gathered_are_over(transfer: Callable[..., Any], engines: list[Engine]) -> None:
    sender = transfer([each.url for each in engines], overlap=True)
    step(sender)  # the first version is gathered before
    for each in engines:
        each.asked.clear()

    def gathered() -> Iterator[tuple[str, object]]:
        assert all(each.asked.wait(20) for each in engines)
        raise RuntimeError("a rank has failed")
        yield

    sender.pause()
    with pytest.raises(RuntimeError, match="a rank has failed"):
        sender.send_weights(gathered())
    assert not any(each.is_updating or each.is_paused for each in engines)
    step(sender)
    assert [each.updated for each in engines] == [3, 3, 3]
