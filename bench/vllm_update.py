#!/usr/bin/env python3
"""What an update of vLLM's weights costs over loading the same weights from memory.

SmolLM2-135M (270 MB of bfloat16) on the CPU: in turn an update that comes from a trainer in another process (start,
receive, load, finish), and the loading of what was received, once more, without the hub. Needs what
python/tests/vllm/run installs, and runs with its interpreter; FOLDER is the model that it has unpacked (hf):

    build/vllm/venv/bin/python bench/vllm_update.py FOLDER [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the worker is in this process
sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "tests" / "vllm"))

from checks import Trainer
from engine import Engine

import tensorhub


def load_again(worker: Any) -> float:
    """Seconds to load what the worker has received last."""
    engine = worker.weight_transfer_engine
    started = time.perf_counter()
    engine.load_received()
    engine.finish_weight_update()
    return time.perf_counter() - started


def main(folder: str, rounds: int = 7) -> None:
    """Prints medians, and the ratio; the goal is 1.3."""
    server = tensorhub.ReferenceServer()
    trainer = Trainer(server.address, folder)
    engine = Engine(folder, dtype="bfloat16")
    engine.llm.init_weight_transfer_engine({"init_info": {"server": server.address, "model": "policy"}})
    updates, loads = [], []
    for version in range(1, rounds + 3):
        trainer.publish(version, version)  # other weights each time
        started = time.perf_counter()
        engine.update(version)
        updates.append(time.perf_counter() - started)
        loads += engine.llm.collective_rpc(load_again)
    trainer.kill()
    update, load = statistics.median(updates[2:]), statistics.median(loads[2:])
    print(f"update {update * 1e3:.1f} ms  load from memory {load * 1e3:.1f} ms  ratio {update / load:.3f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
