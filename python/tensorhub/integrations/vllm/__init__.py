"""vLLM takes its weights from a hub: weight transfer backend "tensorhub", for `WeightTransferConfig(backend=...)`.

The entry point `vllm.general_plugins` of this package registers it in every process of vLLM; nothing is patched. In the
trainer, `register()` is called once before `WeightTransferTrainerFactory.trainer_init`.
"""

from __future__ import annotations

__all__ = ["register"]

_NAME = "tensorhub"


def register() -> None:
    """Registers both halves; may run twice."""
    from vllm.distributed.weight_transfer import factory  # noqa: PLC0415

    for registry, module, name in (
        (factory.WeightTransferEngineFactory, "engine", "TensorHubWeightTransferEngine"),
        (factory.WeightTransferTrainerFactory, "trainer", "TensorHubTrainerWeightTransferEngine"),
    ):
        if _NAME not in registry._registry:
            registry.register_engine(_NAME, f"{__name__}.{module}", name)
