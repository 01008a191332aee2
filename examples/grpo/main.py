"""The trainer, and the process that starts everything else. `run --help` says how to call it."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import learner
import rollout
import torch

import tensorhub as th


@dataclass
class Step:
    """What is drawn: one step of the trainer."""

    seconds: float
    reward: float
    staleness: float  # versions by which the episodes' weights were older than the trainer's
    stalled_ms: float  # the trainer, for the weights to get away


def train(sources: list[Connection], server: th.ReferenceServer, seconds: float) -> list[Step]:
    """Until the time is over; tells a line for every tenth step."""
    torch.set_num_threads(1)
    model, optimizer = learner.make()
    steps: list[Step] = []
    with th.Publisher(server, model="policy", replica="trainer") as weights:
        weights.add_all(model.named_parameters())
        version = 1
        weights.publish(version)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            ready = [each for each in wait(sources, timeout=60) if isinstance(each, Connection)]
            episodes = [rollout.Episodes.receive(each) for each in ready]
            for each in ready:
                each.send_bytes(b"+")
            reward = learner.learn(model, optimizer, episodes)
            before = time.monotonic()
            stale = version - sum(each.version for each in episodes) / len(episodes)
            weights.unpublish()  # from here the weights may change ...
            stalled = time.monotonic() - before
            optimizer.step()
            version += 1
            before = time.monotonic()
            weights.publish(version)  # ... to here
            stalled += time.monotonic() - before
            steps.append(Step(time.monotonic() - started, reward, stale, stalled * 1e3))
            if version % 50 == 0:
                print(
                    f"version {version}: reward {reward:.2f}, episodes {stale:.1f} versions old, "
                    f"trainer stalled {stalled * 1e3:.1f} ms",
                    flush=True,
                )
        weights.leave(grace=5)
    return steps


def draw(steps: list[Step], picture: Path) -> None:
    """Reward and staleness over time."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5))
    seconds = [each.seconds for each in steps]
    above.plot(seconds, [each.reward for each in steps], linewidth=0.8)
    above.set_ylabel("reward")
    below.plot(seconds, [each.staleness for each in steps], linewidth=0.8)
    below.set_ylabel("versions behind")
    below.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def main() -> int:
    """Starts a server, the rollouts and the trainer, and says how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to train (%(default)s)")
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--picture", type=Path, default=Path("build/grpo/reward.png"))
    given = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    with th.ReferenceServer() as server:
        sources, started = [], []
        for index in range(given.rollouts):
            source, end = processes.Pipe()
            process = processes.Process(
                target=rollout.main, args=(f"rollout-{index}", index + 1, server.address, end), daemon=True
            )
            process.start()
            end.close()
            sources.append(source)
            started.append(process)
        steps = train(sources, server, given.seconds)
        for source in sources:
            source.close()
        for process in started:
            process.join(20)
    tenth = max(1, len(steps) // 10)
    first = sum(each.reward for each in steps[:tenth]) / tenth
    last = sum(each.reward for each in steps[-tenth:]) / tenth
    stalled = sorted(each.stalled_ms for each in steps)
    print(
        f"{len(steps)} versions; reward {first:.2f} at the beginning, {last:.2f} at the end; episodes were "
        f"{sum(each.staleness for each in steps) / len(steps):.2f} versions old in the mean; the trainer stalled "
        f"{stalled[len(stalled) // 2]:.2f} ms in the median, {stalled[-1]:.0f} ms at most"
    )
    try:
        draw(steps, given.picture)
        print(f"picture: {given.picture}")
    except ImportError:
        print("no picture: matplotlib is not installed")
    learned = last > first + 0.2
    print("PASSED: the reward has risen" if learned else "FAILED: the reward has not risen")
    return 0 if learned else 1


if __name__ == "__main__":
    raise SystemExit(main())
