"""TRL's AsyncGRPOTrainer sends its weights over a hub: `AsyncGRPOTrainer(..., weight_transfer=WeightTransfer(...))`.

The server of vLLM is started with `--weight-transfer-config '{"backend": "tensorhub"}'` and `VLLM_SERVER_DEV_MODE=1`.
Several servers may take their weights from the same trainer: each engine reads from the trainer, or from other engines.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tensorhub import _core
from tensorhub.errors import Disconnected
from tensorhub.integrations.sending import SenderArena, gathered_to_the_end
from tensorhub.torch import ArenaPublisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    import torch
    from typing_extensions import Unpack

    from tensorhub.workers import Options

    _Failed: TypeAlias = dict[str, Disconnected]
    """The engines that have failed, and how."""

__all__ = ["WeightTransfer"]


class WeightTransfer:
    """TRL's `WeightTransferProtocol`, in the trainer's main process.

    `engines`: addresses of the servers of vLLM, http://host:port. `engine`: more fields of
    `tensorhub.integrations.vllm.engine.InitInfo`, for all of them; a `replica` is followed by each one's number
    ("rollout-0", "rollout-1", ...) if there are several. `version`: the last one that was published; the next one is
    one higher. Without it the first one follows the latest that the server knows, also after a restart. `overlap`: the
    engines, which TRL has paused, are asked to take a version when it is begun, and receive it while it is gathered;
    this counts towards their `timeout`. Not the first version, whose layout they learn
    only when it is whole. `timeout`: seconds, of one request.
    """

    def __init__(
        self,
        engines: str | Sequence[str],
        *,
        server: str,
        model: str = "policy",
        replica: str = "trainer-0",
        version: int | None = None,
        engine: dict[str, Any] | None = None,
        timeout: float = 1800.0,
        overlap: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._engines = [engines] if isinstance(engines, str) else list(engines)
        self._init_infos = [{"server": server, "model": model, **(engine or {})} for _ in self._engines]
        if len(self._engines) > 1 and (name := (engine or {}).get("replica")):
            for number, info in enumerate(self._init_infos):  # of one name, the newest would replace the others
                info["replica"] = f"{name}-{number}"
        self._timeout = timeout
        self._overlaps = overlap
        self._has_sent = False
        self._arena = SenderArena(lambda: ArenaPublisher(server, model, replica, **options), server, model, options)
        self._arena.made()
        self._paused: set[str] = set()
        """Engines that have answered `pause`, and not yet a `resume`."""
        self._last = version
        self.version = version or 0
        """The last version that was sent, or tried; it is the engines' weight version as well. Zero: none."""

    def init_weight_transfer(self) -> None:
        """Connects the engines to the hub."""
        bodies = [{"init_info": each} for each in self._init_infos]
        _raise_any(self._ask_each("init_weight_transfer_engine", self._engines, bodies))

    def pause(self) -> None:
        """Freezes what the engines are generating. If one does not answer, the others go on, and the error names it."""
        failed = self._ask("pause?mode=keep")
        self._paused.update(each for each in self._engines if each not in failed)
        if failed:
            self._resume_paused()
        _raise_any(failed)

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Publishes the weights as the next version, and has all engines take it.

        After an error of the weights or of the hub nothing of the version is shown. After `Replaced`, or an eviction,
        the next call joins anew. If engines fail, the error names all of them, the others have the version all the
        same, and the next call asks all engines again. After any error engines that were paused go on.
        """
        try:
            failed = self._publish(iterator)
            _raise_any(failed | self._finish(failed))
        except Exception:
            self._resume_paused()  # the caller does not get to `resume`
            raise

    def resume(self) -> None:
        """Lets the engines go on."""
        failed = self._ask("resume")
        self._paused.intersection_update(failed)
        _raise_any(failed)

    def roll_back_to(self, version: int, timeout: float = _core.join_timeout) -> None:
        """Back to a checkpoint: later versions are withdrawn wherever they are held; the next one follows `version`.

        Engines that are to have the checkpoint itself get it by the next `send_weights`. `Refused`: the trainer's key
        has no right `publish`.
        """
        self._arena.roll_back_to(version, timeout)
        self.version = self._last = version

    def destroy(self) -> None:
        """Leaves the hub; the engines go on with what they have."""
        self._arena.leave()

    def _publish(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> _Failed:
        """Publishes the next version, which the engines take then or meanwhile; tells which of them have failed."""
        running: Future[_Failed] | None = None
        try:
            with gathered_to_the_end(iterator) as gathering:
                self.version = self._last = self._arena.after(self._last)
                with self._arena.sending(self.version) as arena:
                    if self._overlaps and self._has_sent:
                        pool = ThreadPoolExecutor(1)
                        running = pool.submit(self._update)
                        pool.shutdown(wait=False)
                    for name, tensor in gathering:
                        arena.put(name, tensor)
        except Exception:
            if running is not None:  # the engines hear from the hub that the version does not come
                failed = running.result()
                self._ask("finish_weight_update", {}, [each for each in self._engines if each not in failed])
            raise
        self._has_sent = True
        return self._update() if running is None else running.result()

    def _update(self) -> _Failed:
        """Each call goes to the engines that have answered those before: an update that is begun is also finished."""
        failed = self._start()
        body = {"update_info": {"version": self.version}}
        return failed | self._ask("update_weights", body, [each for each in self._engines if each not in failed])

    def _finish(self, failed: _Failed) -> _Failed:
        body = {"weight_version": str(self.version)}
        return self._ask("finish_weight_update", body, [each for each in self._engines if each not in failed])

    def _start(self) -> _Failed:
        """Begins an update. An engine may still have one that nobody has finished, of an earlier trainer perhaps."""
        failed = self._ask("start_weight_update", {})
        refused = [each for each, error in failed.items() if isinstance(error.__cause__, urllib.error.HTTPError)]
        self._ask("finish_weight_update", {}, refused)
        again = self._ask("start_weight_update", {}, refused)
        return {each: error for each, error in failed.items() if each not in refused or each in again}

    def _resume_paused(self) -> None:
        paused = [each for each in self._engines if each in self._paused]
        self._paused.intersection_update(self._ask("resume", None, paused))

    def _ask(self, what: str, body: dict[str, Any] | None = None, engines: Sequence[str] | None = None) -> _Failed:
        """Asks all engines, or some, the same."""
        asked = self._engines if engines is None else engines
        return self._ask_each(what, asked, [body] * len(asked))

    def _ask_each(self, what: str, engines: Sequence[str], bodies: Sequence[dict[str, Any] | None]) -> _Failed:
        """Asks engines at once, since what one has received, another can read from it; waits for all answers."""
        if not engines:
            return {}
        with ThreadPoolExecutor(len(engines)) as pool:
            errors = pool.map(self._error_of, engines, itertools.repeat(what), bodies)
            return {engine: error for engine, error in zip(engines, errors, strict=True) if error is not None}

    def _error_of(self, engine: str, what: str, body: dict[str, Any] | None) -> Disconnected | None:
        try:
            self._ask_one(engine, what, body)
        except Disconnected as e:
            return e
        return None

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


def _raise_any(failed: _Failed) -> None:
    """One error for all engines that have failed."""
    if len(failed) < 2:  # noqa: PLR2004
        for error in failed.values():
            raise error
        return
    sentences = "; ".join(f"{engine}: {error.sentence}" for engine, error in failed.items())
    raise Disconnected(f"{len(failed)} engines failed: {sentences}", peer=", ".join(failed))
