"""What type checkers know of the package, as its users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorhub as th

pytest.importorskip("mypy", reason="mypy is not installed here")

OF_A_USER = """
import numpy as np
import tensorhub as th
from typing_extensions import Buffer, assert_type

def taken(rollout: th.Subscriber, held: th.HeldCopy) -> list[Buffer]:
    assert_type(rollout.tensor("w"), th.TensorView)
    assert_type(held.tensor("w"), th.TensorView)
    for view in (rollout.tensor("w"), held.tensor("w")):
        np.from_dlpack(view)
        np.asarray(view)
        memoryview(view)
    return [rollout.tensor("w"), held.tensor("w")]
"""


def test_views_speak_dlpack(tmp_path: Path) -> None:
    file = tmp_path / "of_a_user.py"
    file.write_text(OF_A_USER)
    package = str(Path(th.__file__).parent.parent)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", str(file)]
    done = subprocess.run(command, env={**os.environ, "MYPYPATH": package}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
