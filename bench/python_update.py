#!/usr/bin/env python3
"""What Python adds to a call of the library.

An update's report has the time of the call in C++; the difference to the time that Python sees for the same call is
what the binding adds. So both are of one call, and need no second run. Needs the package (pip install .) and numpy.

Then an arena: a trainer makes tensors at half the rate of the wire (which is measured first), and a reader in another
process receives the version over TCP. The time from the first tensor until the reader has the version, as a multiple
of the time until the last `put`, with `begin` (the reader reads along) and without it, in turn.

    bench/python_update.py [--bytes N] [--tensors N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import tensorhub


def measure(total_bytes: int, tensors: int, rounds: int) -> dict[str, float]:
    """Updates of `tensors` tensors of `total_bytes` together, in place, between two workers of this process."""
    source = [np.ones(total_bytes // tensors // 4, dtype=np.float32) for _ in range(tensors)]
    target = [np.zeros_like(each) for each in source]
    with (
        tensorhub.ReferenceServer() as server,
        tensorhub.Publisher(server, "policy", "trainer-0") as trainer,
        tensorhub.Subscriber(server, "policy", "rollout-0") as rollout,
    ):
        started = time.perf_counter()
        rollout.add_all((f"layer.{i}", each) for i, each in enumerate(target))
        added = time.perf_counter() - started
        trainer.add_all((f"layer.{i}", each) for i, each in enumerate(source))
        ratios, extras, seconds = [], [], []
        for version in range(1, rounds + 2):
            for each in source:
                each.fill(version)
            with trainer.published(version):
                started = time.perf_counter()
                report = rollout.update(version)
                took = time.perf_counter() - started
            if version > 1:  # the first one registers memory
                seconds.append(took)
                ratios.append(took / report.seconds)
                extras.append(took - report.seconds)
    return {
        "bytes": total_bytes,
        "tensors": tensors,
        "add_ms": added * 1e3,
        "update_ms": statistics.median(seconds) * 1e3,
        "added_by_python_ms": statistics.median(extras) * 1e3,
        "ratio": statistics.median(ratios),
    }


def read_versions(address: str, total_bytes: int, tensors: int, versions: int) -> None:
    """The other process: prints the moment at which it has each version."""
    with tensorhub.Subscriber(address, "policy", "rollout-0", mode="double_buffered", transport="tcp") as rollout:
        for i in range(tensors):
            rollout.allocate(f"layer.{i}", (total_bytes // tensors,), "u8")
        for version in range(1, versions + 1):
            report = rollout.stage(at_least=version)
            print(time.monotonic(), report.pull_seconds, flush=True)
            rollout.install()


def measure_arena(total_bytes: int, tensors: int, rounds: int) -> dict[str, float]:
    """Versions that are filled slowly."""
    source = np.ones(total_bytes // tensors, dtype=np.uint8)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    wire_seconds = []
    with (
        tensorhub.ReferenceServer() as server,
        tensorhub.ArenaPublisher(server, "policy", "trainer-0", transport="tcp") as trainer,
    ):
        for i in range(tensors):
            trainer.declare(f"layer.{i}", source.shape, "u8")
        warm_up = 5  # two touch the memory first, three measure the wire
        versions = warm_up + 2 * rounds
        shape = [str(each) for each in (total_bytes, tensors, versions)]
        reader = subprocess.Popen(  # noqa: S603  this script
            [sys.executable, __file__, "--read", server.address, *shape], stdout=subprocess.PIPE, text=True
        )
        for version in range(1, versions + 1):
            source.fill(version % 251)  # readers do not read what they have already
            begins, per_tensor = version > warm_up and version % 2 == 0, 0.0
            if version > warm_up:
                per_tensor = 2 * statistics.median(wire_seconds[2:]) / tensors
            if begins:
                trainer.begin(version)
            started = time.monotonic()
            for i in range(tensors):
                time.sleep(max(0.0, started + i * per_tensor - time.monotonic()))
                trainer.put(f"layer.{i}", source)
            last_put = time.monotonic()
            trainer.commit(version)
            ended, pull_seconds = map(float, (reader.stdout or sys.stdin).readline().split())
            if version <= warm_up:
                wire_seconds.append(pull_seconds)
            else:
                ratios[begins].append((ended - started) / (last_put - started))
        reader.wait()
    return {
        "bytes": total_bytes,
        "tensors": tensors,
        "wire_ms": statistics.median(wire_seconds[2:]) * 1e3,
        "ratio_begun": statistics.median(ratios[True]),
        "ratio_not_begun": statistics.median(ratios[False]),
    }


def main() -> None:
    """Prints a table; the goals: 1.02 for one GiB; 20 ms and 1 ms for 2,000 tensors; 1.05 for an arena."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read_versions(given.read[0], *map(int, given.read[1:]))
        return
    rows = [measure(given.bytes, 8, given.rounds), measure(given.bytes // 16, given.tensors, given.rounds)]
    rows.append(measure_arena(given.bytes, 64, given.rounds))
    for row in rows:
        print("  ".join(f"{name} {value:.6g}" for name, value in row.items()))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
