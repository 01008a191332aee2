"""What calls tell. Plain values: they compare, print and pickle. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AttachedProcess",
    "DrainReport",
    "InstallReport",
    "Model",
    "Progress",
    "PublishReport",
    "Replica",
    "SnapshotReport",
    "Source",
    "Stuck",
    "TensorSpec",
    "UnpublishReport",
    "UpdateReport",
]


@dataclass(frozen=True)
class PublishReport:
    """What a `publish` did."""

    version: int
    bytes: int
    digest_seconds: float
    """Packing and digesting."""
    seconds: float
    """The whole call."""


@dataclass(frozen=True)
class DrainReport:
    """What a `drain` left."""

    workers: int
    """Of the replica."""
    readers: int
    """That still read from it; zero unless the time was up."""


@dataclass(frozen=True)
class SnapshotReport(PublishReport):
    """What a `publish_snapshot` did."""

    lost: bool
    """As at `UnpublishReport`, of the snapshot that was in this memory before."""
    drain_seconds: float
    """That one's readers; usually none."""
    copy_seconds: float


@dataclass(frozen=True)
class UnpublishReport:
    """What an `unpublish` or a `leave` did."""

    finished: int
    """Readers that ended by themselves during the call."""
    moved: int
    """Readers that went on with another source."""
    cut_off: int
    """Readers that the server had declared dead."""
    forced: bool
    """The deadline came: the remaining readers were cut off."""
    lost: bool
    """It was the last reliable copy of a retained version, and nobody could take it."""
    changed: str
    """The name of a tensor whose bytes have changed since `publish`, which readers have noticed; empty: none."""
    seconds: float


@dataclass(frozen=True)
class Source:
    """What an update read from one other worker."""

    name: str
    """Replica/shard."""
    path: str
    """How it was reached: "tcp", "same_host", ..."""
    bytes: int


@dataclass(frozen=True)
class UpdateReport:
    """What an `update` or a `stage` did."""

    version: int
    kept: bool = False
    """Was held already: nothing was read."""
    lost: bool = False
    """What was overwritten was the last reliable copy of a retained version, and nobody could take it."""
    bytes: int = 0
    """That were read."""
    seconds: float = 0.0
    """The whole call."""
    wait_seconds: float = 0.0
    """Until the transfer began: a version, the server, own old readers."""
    pull_seconds: float = 0.0
    """From the first connection to the last confirmed chunk."""
    sources: tuple[Source, ...] = ()
    unchanged_bytes: int = 0
    """Of the version, those that were here already, from an earlier one or from an update that was broken off."""


@dataclass(frozen=True)
class InstallReport:
    """What an `install` of staged weights did."""

    version: int
    kept: bool
    """Was live already: nothing was copied."""
    lost: bool
    bytes: int
    """Copied."""
    drain_seconds: float
    """The live version's readers ended, or were moved to others."""
    copy_seconds: float
    """How long the live bytes were undefined."""
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How far a running update is."""

    version: int
    """Zero until a version is decided."""
    bytes: int
    total_bytes: int
    done: bool


@dataclass(frozen=True)
class AttachedProcess:
    """A process that is attached to a shared copy, and whether it holds something now."""

    process: int
    """Zero: not visible from here."""
    holds_live: bool
    holds_previous: bool


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a model's layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Replica:
    """What the server knows of a replica."""

    name: str
    shards_joined: int
    version: int
    """The version that it holds completely; zero: none."""
    torn: bool
    spot: bool
    readers: int


@dataclass(frozen=True)
class Model:
    """What the server knows of a model."""

    name: str
    shards: int
    bytes: int
    latest: int
    available: tuple[int, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True)
class Stuck:
    """A worker that waits: for what, for whom, and what can be done about it."""

    kind: str
    model: str
    replica: str
    shard: int
    version: int
    waited_seconds: float
    chunks: int
    peers: str
    advice: str
