"""What the scenarios share: checks, and the trainer's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAILED = []


def check(what: str, holds: bool) -> None:
    print(f"{'ok    ' if holds else 'FAILED'} {what}", flush=True)
    if not holds:
        FAILED.append(what)


class Trainer:
    """A process of trainer.py."""

    def __init__(self, server: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("trainer.py")), server, "policy", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def publish(self, seed: int, version: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seed} {version}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{version}\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
