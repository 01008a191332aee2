"""Files of the format safetensors go over a hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorhub as th
from tensorhub.safetensors import publish_file, save_file


def write(path: Path, header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def example(path: Path) -> dict[str, bytes]:
    random = np.random.default_rng(1)
    tensors = {
        "embedding": ("BF16", [300, 40], random.bytes(24_000)),
        "scale": ("F32", [], random.bytes(4)),
        "nothing": ("I64", [0, 3], b""),
        "head": ("F8_E4M3", [7], random.bytes(7)),
    }
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    write(path, header, data)
    return {name: raw for name, (_, _, raw) in tensors.items()}


def contents(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    data = raw[8 + size :]
    header.pop("__metadata__", None)
    return {name: (each["dtype"], each["shape"], data[slice(*each["data_offsets"])]) for name, each in header.items()}


def test_a_file_goes_over_a_hub(server: th.ReferenceServer, tmp_path: Path) -> None:
    source, copy = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    tensors = example(source)
    with publish_file(server, "policy", source, version=3) as publisher:
        assert publisher.held_version == 3
        report = save_file(server, "policy", copy)
        assert report.version == 3
        assert {name: each[2] for name, each in contents(copy).items()} == tensors
        assert contents(copy) == contents(source)
        assert [each.name for each in publisher.models("policy")[0].replicas if each.shards_joined] == ["file"]
        save_file(server, "policy", copy)  # over the old one
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.safetensors", "model.safetensors"]


def test_a_folder_of_files_is_one_model(server: th.ReferenceServer, tmp_path: Path) -> None:
    folder, copy = tmp_path / "checkpoint", tmp_path / "copy.safetensors"
    folder.mkdir()
    with pytest.raises(th.InvalidArgument, match="has no file"):
        publish_file(server, "policy", folder, version=1)
    tensors = example(folder / "model-2.safetensors")
    write(folder / "model-1.safetensors", {"w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}, b"abc")
    (folder / "config.json").write_text("{}")
    with publish_file(server, "policy", folder, version=1):
        shutil.rmtree(folder)
        save_file(server, "policy", copy)
    saved = {name: each[2] for name, each in contents(copy).items()}
    assert saved == {"w": b"abc", **tensors}
    assert next(iter(saved)) == "w"


def test_a_file_that_is_published_takes_no_memory_for_copies(server: th.ReferenceServer, tmp_path: Path) -> None:
    """Nobody writes to it; with strict accounting, a file larger than what is free could not be mapped."""
    source = tmp_path / "model.safetensors"
    example(source)
    with publish_file(server, "policy", source, version=1):
        _, _, rest = Path("/proc/self/smaps").read_text().partition(str(source))
        flags = rest.partition("VmFlags:")[2].partition("\n")[0].split()
        assert {"wr", "nr"} <= set(flags)


def test_what_cannot_be_published_leaves_the_hub(
    server: th.ReferenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[th.Publisher] = []

    def make(*given: Any, **options: Any) -> th.Publisher:
        made.append(th.Publisher(*given, **options))
        return made[-1]

    monkeypatch.setattr("tensorhub.safetensors.Publisher", make)
    header: dict[str, object] = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    write(tmp_path / "model.safetensors", header, bytes(16))
    with pytest.raises(th.InvalidArgument, match="version 0 cannot be published"):
        publish_file(server, "policy", tmp_path / "model.safetensors", version=0)
    assert [each.is_closed for each in made] == [True]


def test_a_shard_that_is_none_is_the_whole_model(server: th.ReferenceServer, tmp_path: Path) -> None:
    example(tmp_path / "model.safetensors")
    none: dict[str, Any] = {"shard": None}
    with publish_file(server, "policy", tmp_path / "model.safetensors", 1, **none):
        assert save_file(server, "policy", tmp_path / "copy.safetensors", **none).version == 1


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_two_containers_save_at_the_same_time(
    server: th.ReferenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    source = tmp_path / "model.safetensors"
    raw = np.random.default_rng(2).bytes(32 << 20)
    write(source, {"w": {"dtype": "U8", "shape": [len(raw)], "data_offsets": [0, len(raw)]}}, raw)
    with publish_file(server, "policy", source, version=1), ThreadPoolExecutor(2) as both:
        saving = [both.submit(save_file, server, "policy", tmp_path / name) for name in names]
        assert [each.result().version for each in saving] == [1, 1]
    for name in names:
        assert contents(tmp_path / name) == contents(source)
    assert {each.name for each in tmp_path.iterdir()} == {"model.safetensors", *names}


def test_the_package_safetensors_reads_it(server: th.ReferenceServer, tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed here")
    tensors = {"a": np.arange(10, dtype=np.float32), "b": np.ones((3, 4), dtype=np.int16)}
    numpy_files.save_file(tensors, tmp_path / "a.safetensors")
    with publish_file(server, "policy", tmp_path / "a.safetensors", version=1):
        save_file(server, "policy", tmp_path / "b.safetensors")
    got = numpy_files.load_file(tmp_path / "b.safetensors")
    assert all(np.array_equal(got[name], each) for name, each in tensors.items())


def test_an_adapter_follows_its_trainer(server: th.ReferenceServer, tmp_path: Path) -> None:
    """As the recipe for adapters of the README."""
    publisher, last = None, 0
    for step in (1, 2, 3):
        source = tmp_path / f"step-{step}.safetensors"
        write(source, {"lora_A": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes([step]) * 16)
        if publisher is not None:
            publisher.leave(20)
        publisher = publish_file(server, "policy.lora", source, version=step, replica="trainer-0")
        target = tmp_path / f"policy-{step}.safetensors"
        last = save_file(server, "policy.lora", target, at_least=last + 1).version
        assert last == step
        assert target.read_bytes()[-16:] == bytes([step]) * 16
    with pytest.raises(th.TimedOut):
        save_file(server, "policy.lora", tmp_path / "next", at_least=4, timeout=0.2)
    with pytest.raises(TypeError, match="not both"):
        save_file(server, "policy.lora", tmp_path / "next", 3, at_least=3)
    publisher.close()


def test_a_version_that_does_not_come_leaves_no_file(server: th.ReferenceServer, tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    example(source)
    with publish_file(server, "policy", source, version=1), pytest.raises(th.TimedOut):
        save_file(server, "policy", tmp_path / "copy.safetensors", 2, timeout=0.3)
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_system_without_space_is_an_error() -> None:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    small = "mount -t tmpfs -o size=1m tmpfs /mnt"
    tried = [*own_mounts, "sh", "-c", small]
    if not shutil.which("unshare") or subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        pytest.skip("a full file system: this user may not mount one")
    program = """
        import errno, os, sys
        import numpy as np
        import tensorhub as th
        from tensorhub.safetensors import save_file

        weights = [np.ones(500, dtype=np.float32) for _ in range(2000)]  # small ones are unpacked by the CPU
        with th.ReferenceServer() as server, th.Publisher(server, "policy", "trainer-0") as trainer:
            trainer.add_all((str(i), each) for i, each in enumerate(weights))
            trainer.publish(1)
            try:
                save_file(server, "policy", "/mnt/copy.safetensors")
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                sys.exit(len(os.listdir("/mnt")))
            sys.exit("it was saved")
    """
    done = subprocess.run(
        [*own_mounts, "sh", "-c", f'{small} && exec "$0" -c "$1"', sys.executable, textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("header", "data", "sentence"),
    [
        ({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}, 16, "'w' has other bytes"),
        ({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, 12, "cut short: tensor 'w'"),
        ({"w": {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}}, 16, "'w' has other bytes"),
        ({"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}, 16, "cut short: tensor 'w'"),
        ({"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, 4, "'w' has elements of type F4"),
        ({"w": {"dtype": "F32", "shape": [4]}}, 16, "data_offsets"),
        ({"w": 5}, 16, "no file of the format"),
    ],
)
def test_a_broken_file_is_refused_by_name(
    server: th.ReferenceServer, tmp_path: Path, header: dict[str, object], data: int, sentence: str
) -> None:
    path = tmp_path / "broken.safetensors"
    write(path, header, bytes(data))
    with pytest.raises(th.InvalidArgument, match=sentence) as refused:
        publish_file(server, "policy", path, version=1)
    assert str(refused.value).count("broken.safetensors") == 1
    assert str(refused.value).count("[invalid_argument]") == 1


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it ends before its header"),
        (b"\x08" + bytes(6), "it ends before its header"),
        (b"\xff" * 8, "its header is too long"),
        (b"\x08" + bytes(7) + b"no json!", ""),
        (b"\x02" + bytes(7) + b"[]", ""),
    ],
)
def test_something_else_is_refused(server: th.ReferenceServer, tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "else"
    path.write_bytes(raw)
    with pytest.raises(th.InvalidArgument, match=f"no file of the format safetensors: {why}"):
        publish_file(server, "policy", path, version=1)


def test_a_shard_has_to_be_named(server: th.ReferenceServer, tmp_path: Path) -> None:
    publishers = [th.Publisher(server, "policy", "file", shard=(i, 2)) for i in range(2)]
    for each in publishers:
        each.add("w", np.zeros(3, dtype=np.float32))
        each.join()
    with pytest.raises(th.InvalidArgument, match="has 2 shards"):
        save_file(server, "policy", tmp_path / "copy.safetensors")
    for each in publishers:
        each.close()
