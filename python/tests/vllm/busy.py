"""Updates while requests run: an asynchronous engine, whose clients never stop asking. The last does not pause it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import models
from checks import Trainer, check

import tensorhub as th

CLIENTS = 3


class Clients:
    """Each asks again as soon as it is answered."""

    def __init__(self, engine: Any, sampling: Any) -> None:
        self._engine, self._sampling = engine, sampling
        self._serial = 0
        self._running = True
        self.answers: list[list[int]] = []
        self._tasks = [asyncio.create_task(self._go_on()) for _ in range(CLIENTS)]

    async def ask(self) -> list[int]:
        self._serial += 1
        tokens: list[int] = []
        prompt = {"prompt_token_ids": models.PROMPT}
        async for each in self._engine.generate(prompt, self._sampling, f"request-{self._serial}"):
            tokens = list(each.outputs[0].token_ids)
        return tokens

    async def _go_on(self) -> None:
        while self._running:
            self.answers.append(await self.ask())

    async def end(self) -> None:
        self._running = False
        await asyncio.gather(*self._tasks)


async def update(engine: Any, version: int, *, pauses: bool) -> float:
    """Requests in flight wait, and go on with the new weights; or they run between the calls."""
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    started = time.monotonic()
    if pauses:
        await engine.pause_generation(mode="keep")
    await engine.start_weight_update()
    await engine.update_weights(WeightTransferUpdateRequest(update_info={"version": version}))
    if not pauses:
        await asyncio.sleep(0.5)
    await engine.finish_weight_update(str(version))
    if pauses:
        await engine.resume_generation()
    else:
        await engine.reset_prefix_cache(reset_running_requests=True)
    return time.monotonic() - started


async def talk(folder: str, server: th.ReferenceServer, trainer: Trainer) -> None:
    from vllm import SamplingParams
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=folder,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=2 * CLIENTS,
            weight_transfer_config=WeightTransferConfig(backend="tensorhub"),
            dtype="float32",
            skip_tokenizer_init=True,
        )
    )
    try:
        init = {"server": server.address, "model": "policy", "timeout": 20.0}
        await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init))
        sampling = SamplingParams(temperature=0, max_tokens=models.NEW_TOKENS, ignore_eos=True, detokenize=False)
        clients = Clients(engine, sampling)
        for version, seed in enumerate([1, 2, 3, 1], start=1):
            await asyncio.to_thread(trainer.publish, seed, version)
            before = len(clients.answers)
            while len(clients.answers) < before + CLIENTS:
                await asyncio.sleep(0.01)
            seconds = await update(engine, version, pauses=version < 4)
            print(
                f"       update to version {version} took {seconds:.3f} s, with {CLIENTS} requests in flight",
                flush=True,
            )
            want = models.tokens_of(folder, seed)
            check(f"version {version}: a new request gets transformers' tokens", await clients.ask() == want)
            check(f"version {version}: the engine names it", await engine.get_weight_version() == str(version))
        await clients.end()
        full = [each for each in clients.answers if len(each) == models.NEW_TOKENS]
        check(f"all {len(clients.answers)} requests of the clients were answered in full", full == clients.answers)
    finally:
        engine.shutdown()


def run(folder: str) -> None:
    server = th.ReferenceServer()
    trainer = Trainer(server.address, folder)
    asyncio.run(talk(folder, server, trainer))
    trainer.kill()
