"""Questions and orders of a process that is no worker."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tensorhub as th


def publisher(server: th.ReferenceServer, replica: str = "trainer-0") -> th.Publisher:
    out = th.Publisher(server, "policy", replica)
    out.add("w", np.ones(100_000, dtype=np.float32))
    return out


def subscriber(server: th.ReferenceServer, replica: str) -> th.Subscriber:
    out = th.Subscriber(server, "policy", replica)
    out.add("w", np.zeros(100_000, dtype=np.float32))
    return out


def test_questions_and_retention(server: th.ReferenceServer) -> None:
    with publisher(server) as trainer, th.ServerClient(server) as client:
        trainer.publish(5)
        (model,) = client.models("policy")
        assert (model.name, model.latest, model.available) == ("policy", 5, (5,))
        assert client.stuck() == []
        client.pin("policy", 5)
        client.release("policy", 5)
        client.retain("policy", 2)
        trainer.unpublish()  # it is retained: it goes into host memory
        assert trainer.offloaded_bytes > 0
        client.retain("policy", 0)
        with pytest.raises(th.NotFound):
            client.pin("nobody's", 1)
        client.roll_back_to("policy", 4)
        assert client.models("policy")[0].available == ()


def test_versions_of_a_wrong_kind_are_named(server: th.ReferenceServer) -> None:
    with th.ServerClient(server) as client:
        for call in (client.pin, client.release, client.roll_back_to):
            with pytest.raises(TypeError, match="version is '7', of type str: give a whole number"):
                call("policy", "7")  # type: ignore[arg-type]
            with pytest.raises(th.InvalidArgument, match="version is -7: versions are from 1"):
                call("policy", -7)
        with pytest.raises(TypeError, match="model: str, replica: str, timeout: float"):
            client.evict("policy", 7)  # type: ignore[arg-type]


def test_a_configuration_file_may_give_keys() -> None:
    public, secret = th.make_keys()
    own_public, own_secret = th.make_keys()
    keys = {"server_key": public, "public_key": own_public, "secret_key": own_secret}
    with (
        th.ReferenceServer(public_key=public, secret_key=secret, allowed={own_public: "operators"}) as guarded,
        th.ServerClient(guarded, security=keys) as client,  # type: ignore[arg-type]
    ):
        assert client.models() == []
    with pytest.raises(TypeError, match=r"option security is 'x': give a tensorhub\.Security"):
        th.ServerClient("tcp://127.0.0.1:9", security="x")  # type: ignore[arg-type]


def test_a_drained_replica_is_read_from_no_more(server: th.ReferenceServer) -> None:
    with publisher(server) as trainer, th.ServerClient(server) as client:
        with subscriber(server, "rollout-0") as first, subscriber(server, "rollout-1") as second:
            trainer.publish(1)
            first.update()
            assert client.drain("policy", "trainer-0") == th.DrainReport(workers=1, readers=0)
            assert [each.name for each in second.update().sources] == ["rollout-0/0"]
            assert "rollout-0" in client.why("policy", "rollout-1")
            client.resume("policy", "trainer-0")
        with pytest.raises(th.NotFound):
            client.drain("policy", "nobody")


def test_an_evicted_replica_has_to_be_made_anew(server: th.ReferenceServer) -> None:
    with publisher(server) as trainer, th.ServerClient(server) as client:
        trainer.publish(1)
        assert client.evict("policy", "trainer-0") == 1
        with pytest.raises(th.Replaced):
            trainer.retain(1, timeout=20)
        with publisher(server) as again:
            again.publish(2)


def test_a_call_ends_when_the_client_is_closed() -> None:
    client = th.ServerClient("tcp://127.0.0.1:9")
    failures: list[th.Error] = []

    def ask() -> None:
        try:
            client.models(timeout=60)
        except th.Error as e:
            failures.append(e)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    client.close()
    asking.join(20)
    assert not asking.is_alive()
    assert len(failures) == 1
