"""vLLM takes its weights from a hub: weight transfer backend "tensorhub", for `WeightTransferConfig(backend=...)`.

The entry point `vllm.general_plugins` of this package registers it in every process of vLLM; nothing is patched. In the
trainer, `register()` is called once before `WeightTransferTrainerFactory.trainer_init`.
"""

from __future__ import annotations

import importlib
import logging

from tensorhub.errors import InvalidArgument

__all__ = ["register"]

_NAME = "tensorhub"
_FACTORIES = "vllm.distributed.weight_transfer.factory"
_registered: set[str] = set()
"""Halves that this module has registered in this process."""


def register() -> None:
    """Registers both halves; may run twice. Raises `InvalidArgument` if another plugin has taken the name.

    An older vLLM, which has no weight transfer or only its engines' half, starts without what it does not have.
    """
    try:
        factories = importlib.import_module(_FACTORIES)
    except ImportError:
        factories = None
    for factory, module, name in (
        ("WeightTransferEngineFactory", "engine", "TensorHubWeightTransferEngine"),
        ("WeightTransferTrainerFactory", "trainer", "TensorHubTrainerWeightTransferEngine"),
    ):
        registry = getattr(factories, factory, None)
        if registry is None:
            logging.getLogger(__name__).info("this vLLM has no %s: backend '%s' is left out there", factory, _NAME)
            continue
        if module in _registered:
            continue
        if _NAME in registry._registry:
            raise InvalidArgument(
                f"another plugin has registered the weight transfer backend '{_NAME}' ({registry.__name__}) before "
                f"this one: uninstall it, or leave it out of VLLM_PLUGINS"
            )
        registry.register_engine(_NAME, f"{__name__}.{module}", name)
        _registered.add(module)
