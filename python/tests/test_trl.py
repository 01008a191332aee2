"""TRL's weight transfer, driven as its trainer drives it, against servers that answer vLLM's routes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import tensorhub as th  # noqa: E402
from tensorhub.integrations.trl import WeightTransfer  # noqa: E402
from tensorhub.torch import Receiver  # noqa: E402


class Engine(ThreadingHTTPServer):
    """What a server of vLLM does at these routes, without a model."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Routes)
        self.calls: list[tuple[str, Any]] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.receiver: Receiver | None = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Routes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        engine = self.server
        assert isinstance(engine, Engine)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        engine.calls.append((self.path, body))
        if self.path == "/init_weight_transfer_engine":
            info = body["init_info"]
            engine.receiver = Receiver(info["server"], info["model"], f"engine-{engine.server_port}")
        elif self.path == "/update_weights" and engine.receiver is not None:
            engine.receiver.receive(body["update_info"]["version"])
            engine.weights = {name: tensor.clone() for name, tensor in engine.receiver.tensors()}
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[th.ReferenceServer]:
    """One that does not wait long for the workers of an earlier one before it says that it knows no version."""
    with th.ReferenceServer(recovery_grace=0.1) as made:
        yield made


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made = [Engine(), Engine()]
    yield made
    for each in made:
        each.shutdown()
        if each.receiver is not None:
            each.receiver.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_trainer_updates_its_engines(server: th.ReferenceServer, engines: list[Engine], overlap: bool) -> None:
    transfer = WeightTransfer([each.url for each in engines], server=server.address, overlap=overlap)
    transfer.init_weight_transfer()
    for version in (1, 2):
        source = {"a": torch.full((30, 5), float(version)), "b": torch.ones(2, dtype=torch.bfloat16)}
        transfer.pause()
        transfer.send_weights(iter(source.items()))
        transfer.resume()
        for engine in engines:
            assert all(torch.equal(engine.weights[name], tensor) for name, tensor in source.items())
    assert transfer.version == 2
    transfer.destroy()
    update = [
        ("/pause?mode=keep", None),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"version": 2}}),
        ("/finish_weight_update", {"weight_version": "2"}),
        ("/resume", None),
    ]
    assert engines[1].calls[-5:] == update
    assert engines[1].calls[0] == (
        "/init_weight_transfer_engine",
        {"init_info": {"server": server.address, "model": "policy"}},
    )


@pytest.mark.parametrize("count", [1, 2])
def test_several_engines_have_names_of_their_own(server: th.ReferenceServer, engines: list[Engine], count: int) -> None:
    given = {"replica": "rollout", "rack": "r1"}
    transfer = WeightTransfer([each.url for each in engines[:count]], server=server.address, engine=given)
    transfer.init_weight_transfer()
    told = [each.calls[0][1]["init_info"] for each in engines[:count]]
    assert [each["replica"] for each in told] == (["rollout"] if count == 1 else ["rollout-0", "rollout-1"])
    assert all(each["rack"] == "r1" for each in told)
    assert given["replica"] == "rollout"
    transfer.destroy()


def test_an_engine_that_is_not_there_is_named(server: th.ReferenceServer) -> None:
    transfer = WeightTransfer("http://127.0.0.1:9", server=server.address)
    with pytest.raises(th.Disconnected, match="does not answer pause") as failed:
        transfer.pause()
    assert failed.value.peer == "http://127.0.0.1:9"
    transfer.destroy()
