"""What the ranks of one engine of vLLM agree on: two processes of torch.distributed, over gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not installed here", allow_module_level=True)

PROGRAM = """
import os
import sys
import torch
import tensorhub as th
from tensorhub.integrations.vllm.ranks import fail_together

rank, failing = int(sys.argv[1]), [int(each) for each in sys.argv[3:]]
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
failure = th.TimedOut("no version came") if rank in failing else None
try:
    fail_together(failure, 7, rank, 2, [torch.distributed.group.WORLD])
    print("loads")
except th.Error as e:
    print(e.code, e.sentence)
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)  # torch has threads that may abort at its end
"""


@pytest.mark.parametrize("failing", [[], [0], [1], [0, 1]])
def test_ranks_load_a_version_together_or_not_at_all(tmp_path: Path, failing: list[int]) -> None:
    arguments = [str(tmp_path / "store"), *map(str, failing)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), *arguments], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [each.communicate(timeout=120)[0].strip() for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    for rank, line in enumerate(said):
        if not failing:
            assert line == "loads"
        elif rank in failing:
            assert line == "timed_out no version came"
        else:
            assert line.startswith(f"group_failed rank {failing[0]} of this engine has not received version 7")
