"""A real engine of vLLM takes its weights from a hub, and says what transformers says, token by token.

Arguments: a scenario (`plain`, `tied`, `tensor_parallel`, `busy`, `equal`, `refused`, `smollm2`), and a folder to work
in. It starts from dummy weights: an update that arrives and is not used, or is used in part, gives other tokens.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import models
from checks import FAILED, Trainer, check

import tensorhub as th


class Engine:
    """An engine of vLLM."""

    def __init__(self, folder: str, **options: Any) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import WeightTransferConfig

        started = time.monotonic()
        self.llm = LLM(
            model=folder,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=4,
            weight_transfer_config=WeightTransferConfig(backend="tensorhub"),
            **options,
        )
        self.sampling = SamplingParams(temperature=0, max_tokens=models.NEW_TOKENS, ignore_eos=True, detokenize=False)
        print(f"       the engine is up after {time.monotonic() - started:.1f} s", flush=True)

    def tokens(self, prompt: list[int]) -> list[int]:
        (done,) = self.llm.generate([{"prompt_token_ids": prompt}], self.sampling, use_tqdm=False)
        return list(done.outputs[0].token_ids)

    def update(self, version: int) -> None:
        started = time.monotonic()
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"version": version}})
        self.llm.finish_weight_update(str(version))
        self.llm.reset_prefix_cache()
        print(f"       update to version {version} took {time.monotonic() - started:.3f} s", flush=True)


def run(folder: str, seeds: list[int], prompt: list[int], **options: Any) -> None:
    server = th.ReferenceServer()
    trainer = Trainer(server.address, folder)
    engine = Engine(folder, **options)
    engine.llm.init_weight_transfer_engine({"init_info": {"server": server.address, "model": "policy", "timeout": 5.0}})
    want = {seed: models.tokens_of(folder, seed, prompt) for seed in set(seeds)}
    check("dummy weights say something else", engine.tokens(prompt) != want[seeds[0]])
    for version, seed in enumerate(seeds, start=1):
        trainer.publish(seed, version)
        engine.update(version)
        check(f"version {version}: the tokens are transformers'", engine.tokens(prompt) == want[seed])
        check(f"version {version}: the engine names it", engine.llm.get_weight_version() == str(version))

    trainer.kill()
    try:
        engine.update(len(seeds) + 1)
        check("an update that nobody publishes fails", False)
    except Exception as e:  # noqa: BLE001
        check("an update that nobody publishes fails, and says so", "timed_out" in str(e) or "version" in str(e))
    check("the trainer was killed: the engine goes on with its weights", engine.tokens(prompt) == want[seeds[-1]])

    # With several ranks vLLM 0.32 leaves the others' answers to a failed call where its next call finds them.
    with contextlib.suppress(Exception):
        engine.llm.collective_rpc("check_health")
    trainer = Trainer(server.address, folder)
    trainer.publish(seeds[0], len(seeds) + 2)
    engine.update(len(seeds) + 2)
    check("another trainer goes on", engine.tokens(prompt) == want[seeds[0]])
    trainer.kill()
    replicas = [each.name for each in th.Subscriber(server, "-", "-").models("policy")[0].replicas]
    print(f"       the hub knows {', '.join(replicas)}", flush=True)


def main(scenario: str, work: str) -> int:
    folder = f"{work}/{scenario}"
    if scenario == "smollm2":
        folder = f"{work}/hf"
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        prompt = tokenizer("The capital of France is")["input_ids"]
        run(folder, [0, 0], prompt, dtype="bfloat16")
        print(f"       it says {tokenizer.decode(models.tokens_of(folder, 0, prompt))!r}")
    elif scenario == "busy":
        import busy

        models.write_config(folder, tied=False)
        busy.run(folder)
    elif scenario == "equal":
        import equal

        models.write_config(folder, tied=True)
        equal.run(folder)
    elif scenario == "refused":
        import refused

        models.write_config(folder, tied=False)
        refused.run(folder)
    else:
        models.write_config(folder, tied=scenario == "tied")
        options: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}
        if scenario == "tensor_parallel":
            options |= {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        run(folder, [1, 2, 3], models.PROMPT, **options)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
