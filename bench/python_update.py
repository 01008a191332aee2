#!/usr/bin/env python3
"""What Python adds to a call of the library.

An update's report has the time of the call in C++; the difference to the time that Python sees for the same call is
what the binding adds. So both are of one call, and need no second run. Needs the package (pip install .) and numpy.

    bench/python_update.py [--bytes N] [--tensors N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
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


def main() -> None:
    """Prints a table; the goals are 1.02 for one GiB, and 20 ms and 1 ms for 2,000 tensors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [measure(given.bytes, 8, given.rounds), measure(given.bytes // 16, given.tensors, given.rounds)]
    for row in rows:
        print("  ".join(f"{name} {value:.6g}" for name, value in row.items()))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
