"""One received copy for several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

import tensorhub as th


class Scene:
    """A trainer with version 1, and a copy that has it."""

    def __init__(self, server: th.ReferenceServer) -> None:
        self.name = f"test-{os.getpid()}-{os.urandom(4).hex()}"
        self.weights = np.arange(300_000, dtype=np.float32)
        self.trainer = th.Publisher(server, "policy", "trainer-0")
        self.trainer.add("w", self.weights)
        self.trainer.publish(1)
        self.copy = th.SharedCopy(server, "policy", "host-0", name=self.name)
        self.copy.declare("w", (300_000,), "f32")
        self.copy.update()

    def publish(self, version: int) -> None:
        self.trainer.unpublish()
        self.weights += 1
        self.trainer.publish(version)


@pytest.fixture
def scene(server: th.ReferenceServer) -> Iterator[Scene]:
    made = Scene(server)
    yield made
    made.copy.close()
    made.trainer.close()


def test_another_process_reads_the_same_memory(scene: Scene) -> None:
    program = textwrap.dedent("""
        import sys
        import numpy as np
        import tensorhub as th
        weights = th.AttachedCopy(sys.argv[1])
        with weights.hold() as held:
            view = np.asarray(held.tensor("w"))
            print(held.version, view.dtype, view.shape, view.flags.writeable, float(view.sum(dtype=np.float64)))
    """)
    out = subprocess.run(
        [sys.executable, "-c", program, scene.name], capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.split() == ["1", "float32", "(300000,)", "False", str(float(scene.weights.sum(dtype=np.float64)))]


def test_what_is_held_does_not_change_and_delays_the_update_after_the_next(scene: Scene) -> None:
    weights = th.AttachedCopy(scene.name)
    assert weights.tensors() == [th.TensorSpec("w", "f32", (300_000,))]
    assert weights.live_version == 1
    first = scene.weights.copy()
    held = weights.hold(timeout=20)
    view = np.asarray(held.tensor("w"))
    scene.publish(2)
    assert scene.copy.update(2, timeout=20).version == 2
    assert scene.copy.update(2).kept
    scene.publish(3)
    with pytest.raises(th.TimedOut, match=f"which processes {os.getpid()} still hold: they must let go of it"):
        scene.copy.update(3, timeout=0.2)
    assert scene.copy.attached() == [th.AttachedProcess(os.getpid(), holds_live=False, holds_previous=True)]
    held.close()
    with pytest.raises(th.TimedOut):  # the view keeps it
        scene.copy.update(3, timeout=0.2)
    assert (view == first).all()
    del view
    assert scene.copy.update(3, timeout=20).version == 3
    with weights.hold(at_least=3) as newest:
        assert (np.asarray(newest.tensor("w")) == scene.weights).all()
    with pytest.raises(th.Unavailable):
        weights.hold(2, timeout=20)
    with pytest.raises(th.TimedOut):
        weights.hold(at_least=4, timeout=0.3)
    with pytest.raises(th.InvalidArgument, match="no tensor 'x'"):
        weights.hold().tensor("x")


@pytest.mark.parametrize("kept", ["held", "view"])
def test_a_forked_process_lets_go_of_nothing(scene: Scene, kept: str) -> None:
    """Its parent still reads: what ends in the child must not end the parent's hold."""
    program = textwrap.dedent("""
        import os, sys
        import numpy as np
        import tensorhub as th
        held = th.AttachedCopy(sys.argv[1]).hold(timeout=20)
        if sys.argv[2] == "view":
            view = np.asarray(held.tensor("w"))
            held.close()
        child = os.fork()
        if child == 0:
            if sys.argv[2] == "view":
                del view
            else:
                del held
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, scene.name, kept], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "0\n"
        scene.publish(2)
        assert scene.copy.update(2, timeout=20).version == 2
        scene.publish(3)
        with pytest.raises(th.TimedOut, match=f"which processes {reader.pid} still hold"):
            scene.copy.update(3, timeout=0.2)
        reader.stdin.close()
    assert scene.copy.update(3, timeout=20).version == 3


def test_the_owner_ends(scene: Scene) -> None:
    weights = th.AttachedCopy(scene.name)
    held = weights.hold()
    scene.copy.close()
    assert (np.asarray(held.tensor("w")) == scene.weights).all()
    with pytest.raises(th.Disconnected):
        weights.hold()
    with pytest.raises(th.Disconnected, match="start it first"):
        th.AttachedCopy(scene.name)
    weights.close()
    with pytest.raises(th.InvalidArgument, match="was closed"):
        weights.hold()
