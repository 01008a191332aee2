"""The README's examples in Python run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 1
