"""Equal engines: one loads the checkpoint's format, the others take the weights as it uses them.

As a program, one engine: a role of `InitInfo.runtime`, the server's address, the folder of the configuration. For each
version that it reads it answers with the tokens it says then, or with the error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import models
from checks import Trainer, check

import tensorhub as th

GROUP = {"model": "policy", "timeout": 5.0}


class Process:
    """A process with an engine."""

    def __init__(self, role: str, server: str, folder: str, packs: bool = False) -> None:
        # In this process, so that `use_plain_kernels` reaches it.
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PACKS": "1" if packs else ""}
        self.process = subprocess.Popen(
            [sys.executable, __file__, role, server, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, version: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{version}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError("the engine's process has ended")

    def update(self, version: int) -> Any:
        self.ask(version)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def use_plain_kernels() -> None:
    """Those of the CPU otherwise keep weights in forms of their own, outside of parameters and buffers."""
    import vllm._custom_ops as ops
    from vllm.model_executor.layers import utils

    ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *_: False


def serve(role: str, server: str, folder: str) -> None:
    if not os.environ["PACKS"]:
        use_plain_kernels()
    from engine import Engine

    engine = Engine(folder, dtype="float32", skip_tokenizer_init=True)
    engine.llm.init_weight_transfer_engine({"init_info": {"server": server, "runtime": role, **GROUP}})
    print("answer", json.dumps(engine.tokens(models.PROMPT)), flush=True)
    for line in sys.stdin:
        try:
            started = time.monotonic()
            engine.update(int(line))
            seconds = time.monotonic() - started
            answer: Any = {"tokens": engine.tokens(models.PROMPT), "seconds": seconds}
        except Exception as e:  # noqa: BLE001
            answer = {"error": str(e), "tokens": engine.tokens(models.PROMPT)}
        print("answer", json.dumps(answer), flush=True)


def run(folder: str) -> None:
    server = th.ReferenceServer()
    trainer = Trainer(server.address, folder)
    want = {seed: models.tokens_of(folder, seed) for seed in (1, 2, 3)}
    engines = {role: Process(role, server.address, folder) for role in ("show", "staged", "in_place")}
    for role, engine in engines.items():
        check(f"{role}: dummy weights say something else", engine.answer() != want[1])
    for version, seed in enumerate(want, start=1):
        trainer.publish(seed, version)
        for engine in engines.values():
            engine.ask(version)
        for role, engine in engines.items():
            answer = engine.answer()
            check(f"version {version}, {role}: the tokens are transformers'", answer["tokens"] == want[seed])
            print(f"       {role}: {answer.get('seconds', 0):.3f} s {answer.get('error', '')}", flush=True)
    (group,) = th.Subscriber(server, "-", "-").models("policy.runtime")
    check("all three are sources of the weights in use", len(group.replicas) >= len(engines))
    engines["show"].end()
    for role in ("staged", "in_place"):
        answer = engines[role].update(4)
        error = answer.get("error", "")
        check(f"nobody shows version 4, {role}: it fails, and says so", "timed_out" in error and "(exactly 4)" in error)
        print(f"       {error[:200]}", flush=True)
        check(f"{role}: it goes on with the weights it has", answer["tokens"] == want[3])
        engines[role].end()
    packed = Process("staged", server.address, folder, packs=True)
    packed.answer()
    error = packed.update(3).get("error", "")
    check("an engine that packs its weights is refused, with the layer's name", "packed form" in error)
    print(f"       {error[:200]}", flush=True)
    packed.end()
    trainer.kill()


if __name__ == "__main__":
    serve(*sys.argv[1:])
