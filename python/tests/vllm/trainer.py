"""A trainer process: publishes a model of random weights for each line "<seed> <version>" that it reads.

Arguments: the server's address, the model's name, the folder of its configuration.
"""

from __future__ import annotations

import sys

from models import make

from tensorhub.torch import ArenaPublisher


def main(server: str, name: str, folder: str) -> None:
    arena = None
    for line in sys.stdin:
        seed, version = map(int, line.split())
        weights = list(make(folder, seed).named_parameters())
        if arena is None:
            layout = [(each, tensor.dtype, tensor.shape) for each, tensor in weights]
            arena = ArenaPublisher(server, name, "trainer-0", layout)
        for each, tensor in weights:
            arena.put(each, tensor)
        arena.commit(version)
        print(version, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
