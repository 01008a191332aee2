"""The command `tensorhub`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorhub as th
from tensorhub.command import main


def test_a_server_serves_until_it_is_told_to_stop(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("server", "worker"):
        assert main(["keys", str(tmp_path), name]) == 0
    (tmp_path / "allow").write_text(f"{th.read_public_key(str(tmp_path / 'worker.public'))} trainers\n")
    command = [sys.executable, "-m", "tensorhub", "server", "--address", "tcp://127.0.0.1:0"]
    keys = ["--keys", str(tmp_path / "server.secret"), "--allow", str(tmp_path / "allow")]
    with subprocess.Popen(command + keys, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        security = th.Security(
            th.read_public_key(str(tmp_path / "server.public")), *th.read_keys(str(tmp_path / "worker.secret"))
        )
        with th.Publisher(address, "policy", "trainer-0", security=security) as trainer:
            trainer.add("w", np.zeros(1000, dtype=np.float32))
            trainer.publish(3)
            worker = ["--keys", str(tmp_path / "worker.secret"), "--server-key", str(tmp_path / "server.public")]
            assert main(["models", address, *worker]) == 0
            assert main(["stuck", address, *worker]) == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    out = capsys.readouterr().out
    assert "model policy: 1 shards, 0.0 MB, latest version 3, available: 3\n" in out
    assert "  replica trainer-0: 1 of 1 shards joined, version 3, 0 readers\n" in out


@pytest.mark.parametrize("half", ["--keys", "--server-key"])
def test_a_client_with_half_of_its_keys_is_refused(half: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["models", "tcp://127.0.0.1:9", half, "some.file"])
    assert refused.value.code == 2
    assert "--keys and --server-key belong together" in capsys.readouterr().err


def test_failures_are_a_sentence_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "tcp://127.0.0.1:9", "--timeout", "0.2"]) == 1
    assert "disconnected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--address", "tcp://0.0.0.0:0"], "say --insecure"),
        (["--keys", "server.secret"], "--keys and --allow belong together"),
        (["--keys", "server.secret", "--allow", "allow", "--insecure"], "not both"),
    ],
)
def test_a_server_that_anybody_could_use_is_refused(
    given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["server", *given])
    assert refused.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_server_without_keys_listens_everywhere_if_it_is_told_so() -> None:
    command = [sys.executable, "-m", "tensorhub", "server", "--address", "tcp://0.0.0.0:0", "--insecure"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("tcp://")
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
