"""Fixtures: a server, and workers that are closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tensorhub as th


@pytest.fixture
def server() -> Iterator[th.ReferenceServer]:
    with th.ReferenceServer() as made:
        yield made


@pytest.fixture
def pair(
    server: th.ReferenceServer,
) -> Iterator[Callable[..., tuple[th.Publisher, th.Subscriber]]]:
    """Makes a trainer and a rollout of the same tensors."""
    made: list[th.Publisher | th.Subscriber] = []

    def make(
        source: dict[str, np.ndarray], target: dict[str, np.ndarray], **options: object
    ) -> tuple[th.Publisher, th.Subscriber]:
        trainer = th.Publisher(server, "policy", "trainer-0")
        rollout = th.Subscriber(server, "policy", "rollout-0", **options)  # type: ignore[arg-type]
        trainer.add_all(source)
        rollout.add_all(target)
        made.extend([trainer, rollout])
        return trainer, rollout

    yield make
    for each in made:
        each.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was skipped in the words that tests/run collects."""
    for each in terminalreporter.stats.get("skipped", []):
        print(f"SKIPPED: python: {each.longrepr[2].removeprefix('Skipped: ')}")
