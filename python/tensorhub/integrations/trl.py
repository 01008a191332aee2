"""TRL's AsyncGRPOTrainer sends its weights over a hub: `AsyncGRPOTrainer(..., weight_transfer=WeightTransfer(...))`.

The server of vLLM is started with `--weight-transfer-config '{"backend": "tensorhub"}'` and `VLLM_SERVER_DEV_MODE=1`.
Several servers may take their weights from the same trainer: each engine reads from the trainer, or from other engines.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tensorhub.errors import Disconnected
from tensorhub.integrations.sending import SenderArena, gathered_to_the_end
from tensorhub.torch import ArenaPublisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from typing_extensions import Unpack

    from tensorhub.workers import Options

__all__ = ["WeightTransfer"]


class WeightTransfer:
    """TRL's `WeightTransferProtocol`, in the trainer's main process.

    `engines`: addresses of the servers of vLLM, http://host:port. `engine`: more fields of
    `tensorhub.integrations.vllm.engine.InitInfo`, for all of them; a `replica` is followed by each one's number
    ("rollout-0", "rollout-1", ...) if there are several. `version`: the last one that was published, of a trainer that
    continues; the next one is one higher. `timeout`: seconds, of one request.
    """

    def __init__(
        self,
        engines: str | Sequence[str],
        *,
        server: str,
        model: str = "policy",
        replica: str = "trainer-0",
        version: int = 0,
        engine: dict[str, Any] | None = None,
        timeout: float = 1800.0,
        **options: Unpack[Options],
    ) -> None:
        self._engines = [engines] if isinstance(engines, str) else list(engines)
        self._init_infos = [{"server": server, "model": model, **(engine or {})} for _ in self._engines]
        if len(self._engines) > 1 and (name := (engine or {}).get("replica")):
            for number, info in enumerate(self._init_infos):  # of one name, the newest would replace the others
                info["replica"] = f"{name}-{number}"
        self._timeout = timeout
        self._arena = SenderArena(lambda: ArenaPublisher(server, model, replica, **options))
        self._arena.made()
        self.version = version
        """The last version that was sent, or tried; it is the engines' weight version as well."""

    def init_weight_transfer(self) -> None:
        """Connects the engines to the hub."""
        self._ask_each("init_weight_transfer_engine", [{"init_info": each} for each in self._init_infos])

    def pause(self) -> None:
        """Freezes what the engines are generating."""
        self._ask("pause?mode=keep")

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Publishes the weights as the next version, and has all engines take it.

        After an error nothing of the version is shown. After `Replaced`, or an eviction, the next call joins anew.
        """
        with gathered_to_the_end(iterator) as gathering, self._arena.joining_anew() as arena:
            for name, tensor in gathering:
                arena.put(name, tensor)
            self.version += 1
            arena.commit(self.version)
        self._ask("start_weight_update", {})
        self._ask("update_weights", {"update_info": {"version": self.version}})
        self._ask("finish_weight_update", {"weight_version": str(self.version)})

    def resume(self) -> None:
        """Lets the engines go on."""
        self._ask("resume")

    def destroy(self) -> None:
        """Leaves the hub; the engines go on with what they have."""
        self._arena.leave()

    def _ask(self, what: str, body: dict[str, Any] | None = None) -> None:
        self._ask_each(what, [body] * len(self._engines))

    def _ask_each(self, what: str, bodies: Sequence[dict[str, Any] | None]) -> None:
        """Asks all engines at once: what one has received, another can read from it."""
        with ThreadPoolExecutor(len(self._engines)) as pool:
            for _ in pool.map(self._ask_one, self._engines, itertools.repeat(what), bodies):
                pass

    def _ask_one(self, engine: str, what: str, body: dict[str, Any] | None) -> None:
        request = urllib.request.Request(  # noqa: S310 (the caller names the engines)
            f"{engine.rstrip('/')}/{what}",
            data=json.dumps(body).encode() if body is not None else b"",
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout):  # noqa: S310
                pass
        except urllib.error.HTTPError as e:
            text = e.read(1000).decode(errors="replace")
            raise Disconnected(f"the engine refused {what}: {e.code} {text}", peer=engine) from e
        except OSError as e:
            raise Disconnected(f"the engine does not answer {what}: {e}", peer=engine) from e
