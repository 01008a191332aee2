"""The trainer of examples/grpo, with rollouts that are actors of Ray: they come, are killed and replaced as it trains.

Ray starts the actors and carries orders and episodes, a few kilobytes each; the weights go from the trainer's memory
into the actors' by TensorHub. `run --help` says how to call it.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import learner
import ray
import rollout
import task
import torch
from ray.exceptions import RayActorError

import tensorhub as th

if TYPE_CHECKING:
    from collections.abc import Callable


def digest(model: torch.nn.Module) -> str:
    """Of all weights."""
    out = hashlib.sha256()
    for each in model.parameters():
        out.update(each.detach().numpy().tobytes())
    return out.hexdigest()


@ray.remote(num_cpus=1)
class Rollout:
    """An actor that generates with the newest weights there are."""

    def __init__(self, name: str, seed: int, server: str) -> None:
        torch.set_num_threads(1)
        self._model = task.make_model(seed=0)
        self._generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self._weights = th.Subscriber(server, model="policy", replica=name, spot=True)
        self._weights.add_all(self._model.named_parameters())
        self._updates = 0
        self._held = 0

    def generate(self) -> tuple[int, rollout.Episodes]:
        """How many updates there were until now, and what the newest weights say."""
        if not self._held or self._weights.newer():
            self._held = self._weights.update().version
            self._updates += 1
        return self._updates, rollout.generate(self._model, self._held, self._generator)

    def finish(self, version: int) -> str:
        """Comes to this version, and leaves. Returns the digest of its weights."""
        if self._held != version:
            self._weights.update(version)
        found = digest(self._model)
        self._weights.leave(grace=5)
        return found


@dataclass
class Line:
    """What the table says of an actor."""

    name: str
    actor: Any
    joined: int = 0  # the version that it generated with first
    updates: int = 0
    killed: int = 0  # the trainer's version then
    replaced_by: str = ""

    @property
    def end(self) -> str:
        """How it ended."""
        return f"killed at version {self.killed}, replaced by {self.replaced_by}" if self.killed else "ran to the end"


class Crew:
    """The actors: who is there, and what each has been asked for."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._asked: dict[Any, Line] = {}
        self.lines: list[Line] = []

    def add(self) -> Line:
        """A new actor, which Ray starts in the background."""
        name = f"rollout-{len(self.lines)}"
        line = Line(name, Rollout.remote(name, len(self.lines) + 1, self._server))  # type: ignore[attr-defined]
        self.lines.append(line)
        self._ask(line)
        return line

    def replace_one(self, version: int) -> None:
        """Kills the actor that has been there for longest, and starts another."""
        line = self.alive[0]
        ray.kill(line.actor)
        line.killed = version
        line.replaced_by = self.add().name

    def episodes(self) -> list[rollout.Episodes]:
        """Of all actors that are ready; waits for one."""
        if not ray.wait(list(self._asked), timeout=120)[0]:
            raise TimeoutError("no actor has answered for two minutes")
        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        out = []
        for each in ready:
            line = self._asked.pop(each)
            try:
                line.updates, generated = ray.get(each)
            except RayActorError:
                if not line.killed:
                    raise
                continue
            line.joined = line.joined or generated.version
            if not line.killed:
                self._ask(line)
            out.append(generated)
        return out

    def _ask(self, line: Line) -> None:
        self._asked[line.actor.generate.remote()] = line

    @property
    def alive(self) -> list[Line]:
        """Those that were not killed, the oldest first."""
        return [each for each in self.lines if not each.killed]

    @property
    def is_whole(self) -> bool:
        """All that are alive have generated."""
        return all(each.joined for each in self.alive)


class Trainer:
    """Learns from the crew's episodes. Each step is a version."""

    def __init__(self, server: th.ReferenceServer, crew: Crew) -> None:
        torch.set_num_threads(1)
        self.model, self._optimizer = learner.make()
        self._crew = crew
        self.weights = th.Publisher(server, model="policy", replica="trainer")
        self.weights.add_all(self.model.named_parameters())
        self.version = 1
        self.weights.publish(self.version)
        self.rewards: list[float] = []
        self.stalled_ms: list[float] = []  # for the weights to get away
        self.cut_off = 0  # versions whose readers did not end by themselves

    def step(self) -> None:
        """One step, with the episodes that are ready."""
        episodes = self._crew.episodes()
        if not episodes:  # of a killed actor
            return
        self.rewards.append(learner.learn(self.model, self._optimizer, episodes))
        before = time.monotonic()
        self.cut_off += self.weights.unpublish().forced
        self.stalled_ms.append((time.monotonic() - before) * 1e3)
        self._optimizer.step()
        self.version += 1
        self.weights.publish(self.version)

    def run_until(self, condition: Callable[[], bool]) -> int:
        """Returns the versions made meanwhile."""
        first = self.version
        while not condition():
            self.step()
        return self.version - first

    def run(self, steps: int) -> None:
        """So many steps."""
        last = self.version + steps
        self.run_until(lambda: self.version >= last)


def exchange_actors(trainer: Trainer, crew: Crew, steps: int) -> bool:
    """An actor is added, and others are killed and replaced. Returns whether the trainer went on meanwhile."""
    goes_on = True
    trainer.run_until(lambda: crew.is_whole)
    for event in ("replace", "add", "replace", "replace"):
        trainer.run(steps)
        begun = trainer.version
        if event == "add":
            crew.add()
        else:
            crew.replace_one(begun)
        made = trainer.run_until(lambda: crew.is_whole)
        print(f"version {begun}: {event}; the trainer made {made} versions until the new actor was there", flush=True)
        goes_on = goes_on and made > 0
    trainer.run(steps)
    return goes_on


def main() -> int:
    """Starts Ray, a server, the actors and the trainer, and says how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2, help="actors at the beginning (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="the trainer's, between two events (%(default)s)")
    given = parser.parse_args()
    if given.rollouts <= 1:
        parser.error("--rollouts: two at least, so that one is there while the other is replaced")
    ray.init(num_cpus=given.rollouts + 1, include_dashboard=False)
    with th.ReferenceServer() as server:
        crew = Crew(server.address)
        for _ in range(given.rollouts):
            crew.add()
        trainer = Trainer(server, crew)
        with trainer.weights:
            goes_on = exchange_actors(trainer, crew, given.steps)
            found = ray.get([each.actor.finish.remote(trainer.version) for each in crew.alive], timeout=60)
            trainer.weights.leave(grace=5)
    ray.shutdown()
    print(f"{'actor':<11} {'joined at':>9} {'updates':>7}  end")
    for line in crew.lines:
        print(f"{line.name:<11} {line.joined:>9} {line.updates:>7}  {line.end}")
    tenth = max(1, len(trainer.rewards) // 10)
    stalled = sorted(trainer.stalled_ms)
    print(
        f"{trainer.version} versions; reward {sum(trainer.rewards[:tenth]) / tenth:.2f} at the beginning, "
        f"{sum(trainer.rewards[-tenth:]) / tenth:.2f} at the end; the trainer stalled "
        f"{stalled[len(stalled) // 2]:.2f} ms in the median, {stalled[-1]:.0f} ms at most"
    )
    wrong = [
        *(["an actor does not hold the newest version"] if set(found) != {digest(trainer.model)} else []),
        *(["the trainer waited for a new actor"] if not goes_on else []),
        *([f"{trainer.cut_off} versions were cut off from their readers"] if trainer.cut_off else []),
    ]
    print("FAILED: " + "; ".join(wrong) if wrong else "PASSED: all actors hold the newest version, bit for bit")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
