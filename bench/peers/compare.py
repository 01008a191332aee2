"""TensorHub beside its published peers: starts the drivers, gives them turns, and prints the table. See ./run.

One source process has a version in its memory, and one or four reader processes of the same machine bring it into
theirs. Every participant has processes of its own; in each round each of them has one turn per column, and each round
begins with another one. A round that warms up comes first: it makes connections and registers memory.

- *Seconds*: from the moment at which the source is told to publish (so TensorHub's digests and `ray.put` are in it)
  until the last reader says that the bytes are in its own memory.
- *CPU s/GiB*: user and system time of all processes of the participant in that time, of all threads, by their CPU
  clocks, divided by what the readers received. What the kernel does for them in interrupts is in it as far as it is
  charged to them.
- *Memory*: every participant maps the same files (memfd, pages of 4 KiB that are touched before), one for the source
  and one for each reader, as ordinary shared memory that none of the libraries knows to be a file. Private memory for
  all would not fit into the machine.
- *Bytes*: before each turn this process writes a new pattern into the source's memory, and after it compares every
  reader's memory with it, all bytes. Both are outside of the time. One wrong byte ends the participant.
- *TCP*: over the loopback interface, with the same congestion control for everybody: the system's is set, if this user
  may, and set back. Ray's processes are nodes of their own.
- *Idle*: participants that wait sleep. Only Ray's processes would go on working; they are stopped (SIGSTOP) while
  others have their turns. What else the machine did in the time of a turn is measured, and printed.
- *Versions*: what the wheels are; options are the libraries' own defaults, but for what the heads of the drivers say.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import fcntl
import importlib.metadata
import json
import mmap
import os
import platform
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

HERE = Path(__file__).parent
READERS = 4
PATIENCE = 120.0  # seconds that a driver may take for one answer
BLOCK = 1 << 20  # words of the pattern that are made at once
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
HUB = Path("build/bench/bench/bench_peers_hub")


@dataclass(frozen=True)
class Row:
    """A participant's name, and how its driver is started."""

    key: str
    label: str
    command: tuple[str, ...]
    wheel: str = ""
    is_alone: bool = False  # one process gives the orders to all others of this participant
    is_stopped: bool = False  # while others have their turns
    tcp: dict[str, str] = field(default_factory=dict)  # environment
    absent: dict[str, str] = field(default_factory=dict)  # paths that it is not measured over, and why


def python(name: str) -> tuple[str, ...]:
    """A driver in Python."""
    return (sys.executable, str(HERE / name))


UCX_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
ROWS = [
    Row("tensorhub", "TensorHub, digests xxh3_128 (default)", (str(HUB), "tensorhub")),
    Row(
        "tensorhub_mapped",
        "TensorHub, digests, weights in a sealed file",
        (str(HUB), "tensorhub_mapped"),
        absent={"tcp": "on loopback TCP copies from a file as from any memory: see the row above"},
    ),
    Row("tensorhub_none", "TensorHub, no digests", (str(HUB), "tensorhub_none")),
    Row("bare", "bare loop: send/recv; process_vm_readv", (str(HUB), "bare")),
    Row("ucx", "UCX: put; get", ("build/peers/ucx", "ucx"), "libucx-cu12", tcp=UCX_TCP),
    Row("nixl", "NIXL (UCX): WRITE; READ", python("nixl_driver.py"), "nixl-cu12", tcp=UCX_TCP),
    Row(
        "mooncake",
        "Mooncake transfer engine: read",
        python("mooncake_driver.py"),
        "mooncake-transfer-engine-non-cuda",
        absent={"same_host": "between two processes of a host this wheel uses TCP, also when asked for shm"},
    ),
    Row("ray", "Ray object store: put, get, copy", python("ray_driver.py"), "ray", is_alone=True, is_stopped=True),
]


@dataclass(frozen=True)
class Phase:
    """Columns that are measured with the same processes."""

    path: str
    control: str

    @property
    def name(self) -> str:
        """For the tables."""
        return "same host" if self.path == "same_host" else f"TCP, {self.control}"


class Failed(Exception):
    """A participant did not do what it was asked."""


class Process:
    """One driver."""

    def __init__(self, command: list[str], environment: dict[str, str], log: IO[bytes]) -> None:
        self._log = Path(log.name)
        self._process = subprocess.Popen(  # noqa: S603  our drivers
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **environment}
        )
        self.pid = self._process.pid

    def say(self, line: str) -> None:
        """An order."""
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self.last_words()) from None

    def hear(self, word: str) -> str:
        """The rest of the answer that begins with this word."""
        out = self._process.stdout
        assert out is not None  # noqa: S101
        if not select.select([out], [], [], PATIENCE)[0]:
            raise Failed(f"no answer within {PATIENCE:g} s")
        line = out.readline().decode()
        if not line.startswith(word):
            raise Failed(self.last_words())
        return line[len(word) :].strip()

    def ask(self, line: str, word: str) -> str:
        """Both."""
        self.say(line)
        return self.hear(word)

    def last_words(self) -> str:
        """The last line of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {self._process.poll()}"

    def end(self) -> None:
        """Lets it end by itself, if it does so soon."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def children() -> dict[int, list[int]]:
    """Of all processes of the machine."""
    out: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                out.setdefault(parent, []).append(int(each.name))
    return out


def cpu_seconds(process: int) -> float:
    """User and system time of a process, all threads, also those that have ended."""
    clock = (~process << 3) | 2
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def machine_cpu_seconds() -> float:
    """Of all processors, busy."""
    words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


class Participant:
    """A source and readers of one library, for one phase."""

    def __init__(self, row: Row, phase: Phase, memory: Memory, logs: Path) -> None:
        self.row = row
        self._log = (logs / f"{row.key}-{phase.path}-{phase.control}.log").open("wb")
        self._environment = row.tcp if phase.path == "tcp" else {}
        self._rest = [str(memory.size), phase.control]
        self._path = phase.path
        self._all: list[Process] = []
        self._tree: list[int] = []
        try:
            self._start(memory)
        except Failed:
            self.end()
            raise

    def _start(self, memory: Memory) -> None:
        if self.row.is_alone:
            self._source = self._driver("source", 0, ",".join(memory.paths), [])
            self._source.hear("ready")
            self._readers: list[Process] = []
        else:
            self._source = self._driver("source", 0, memory.paths[0], [])
            address = self._source.hear("ready")
            paths = enumerate(memory.paths[1:], 1)
            self._readers = [self._driver("reader", i, path, [address]) for i, path in paths]
            for each in self._readers:
                each.hear("ready")
        self._look()

    def _driver(self, role: str, index: int, memory: str, more: list[str]) -> Process:
        words = [*self.row.command, self._path, role, str(index), memory, *self._rest, *more]
        self._all.append(Process(words, self._environment, self._log))
        return self._all[-1]

    def _look(self) -> None:
        """Finds the processes that it has now."""
        below = children()
        self._tree = [each.pid for each in self._all]
        for each in self._tree:  # it grows
            self._tree.extend(below.get(each, []))

    def cpu(self) -> float:
        """Of all its processes."""
        return sum(cpu_seconds(each) for each in self._tree)

    def turn(self, version: int, count: int) -> tuple[float, float]:
        """Seconds, and CPU seconds, until `count` readers have the version."""
        readers = self._readers[:count] or [self._source]
        cpu, started = self.cpu(), time.monotonic()
        self._source.ask(f"publish {version}", "published")
        for each in readers:
            each.say(f"read {version} {count}")
        ended = max(float(each.hear("done")) for each in readers)
        return ended - started, self.cpu() - cpu

    def release(self) -> None:
        """The bytes will change."""
        for each in [*self._readers, self._source]:
            each.ask("release", "released")

    def stop(self) -> None:
        """If it would not sleep by itself."""
        if self.row.is_stopped:
            time.sleep(0.3)  # it is done with what follows a turn
            self._look()
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It has the next turn."""
        if self.row.is_stopped:
            self._signal(signal.SIGCONT)
            time.sleep(0.7)

    def _signal(self, number: signal.Signals) -> None:
        for each in self._tree:
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def end(self) -> None:
        """Nothing is left of it."""
        self._look()
        self._signal(signal.SIGCONT)
        below = self._tree[len(self._all) :]
        for each in reversed(self._all):
            each.end()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._log.close()


class Memory:
    """What all participants map: the source's and the readers'."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.paths: list[str] = []
        self._words: list[NDArray[np.uint64]] = []
        for i in range(READERS + 1):
            file = os.memfd_create(f"peers-{i}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.paths.append(f"/proc/{os.getpid()}/fd/{file}")
            mapped = mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._words.append(np.frombuffer(mapped, dtype=np.uint64))
        self._base = np.random.default_rng(1).integers(0, 1 << 63, BLOCK, dtype=np.uint64)

    def fill(self, turn: int) -> None:
        """A pattern that no other turn and no other block has."""
        for begin in range(0, len(self._words[0]), BLOCK):
            target = self._words[0][begin : begin + BLOCK]
            salt = np.uint64((turn << 32 | begin) * 0x9E3779B97F4A7C15 % (1 << 64))
            np.bitwise_xor(self._base[: len(target)], salt, out=target)

    def are_right(self, count: int) -> bool:
        """Whether the first readers have every byte of the source."""
        for begin in range(0, len(self._words[0]), BLOCK):
            expected = self._words[0][begin : begin + BLOCK]
            if not all(np.array_equal(each[begin : begin + BLOCK], expected) for each in self._words[1 : count + 1]):
                return False
        return True


@dataclass
class Turn:
    """What was measured."""

    row: str
    column: str
    round: int
    seconds: float
    cpu_per_gib: float
    others_cpu: float  # CPU seconds of the rest of the machine, per second


@dataclass
class Cell:
    """Of all rounds: the median, the best one, and the median again."""

    seconds: float
    best_seconds: float
    cpu_per_gib: float


class Comparison:
    """All phases."""

    def __init__(self, rows: list[Row], size: int, rounds: int, logs: Path) -> None:
        self._rows, self._rounds, self._logs = rows, rounds, logs
        self._memory = Memory(size)
        self._gib = size / (1 << 30)
        self._version = 0
        self.turns: list[Turn] = []
        self.left_out: dict[str, str] = {}

    def run(self, phase: Phase) -> None:
        """Starts everybody, gives the turns, and ends everybody."""
        say(phase.name)
        present: list[Participant] = []
        try:
            for row in self._rows:
                if phase.path in row.absent:
                    self._leave_out(row, phase, row.absent[phase.path])
                    continue
                with self._or_leave_out(row, phase):
                    present.append(Participant(row, phase, self._memory, self._logs))
                    present[-1].stop()
            for number in range(self._rounds + 1):
                for count in (1, READERS):
                    first = number % max(1, len(present))
                    for each in present[first:] + present[:first]:
                        with self._or_leave_out(each.row, phase, present, each):
                            self._turn(each, phase, count, number)
        finally:
            for each in present:
                each.end()

    def _turn(self, each: Participant, phase: Phase, count: int, number: int) -> None:
        self._version += 1
        self._memory.fill(self._version)
        each.go_on()
        busy = machine_cpu_seconds()
        seconds, cpu = each.turn(self._version, count)
        busy = machine_cpu_seconds() - busy
        is_right = self._memory.are_right(count)
        each.release()
        each.stop()
        if not is_right:
            raise Failed("a reader has other bytes than the source")
        if number > 0:
            column = column_of(phase, count)
            others = max(0.0, busy - cpu) / seconds
            self.turns.append(Turn(each.row.key, column, number, seconds, cpu / (count * self._gib), others))

    @contextmanager
    def _or_leave_out(
        self, row: Row, phase: Phase, present: list[Participant] | None = None, each: Participant | None = None
    ) -> Iterator[None]:
        try:
            yield
        except (Failed, OSError) as e:
            self._leave_out(row, phase, str(e))
            if present is not None and each is not None:
                present.remove(each)
                each.end()

    def _leave_out(self, row: Row, phase: Phase, why: str) -> None:
        self.left_out[f"{row.label}, {phase.name}"] = why
        self.turns = [each for each in self.turns if each.row != row.key or not each.column.endswith(phase.name)]
        print(f"left out: {row.label}, {phase.name}: {why}", flush=True)

    def cell(self, row: Row, column: str) -> Cell | None:
        """What its rounds come to."""
        found = [each for each in self.turns if (each.row, each.column) == (row.key, column)]
        if not found:
            return None
        seconds = [each.seconds for each in found]
        return Cell(statistics.median(seconds), min(seconds), statistics.median(each.cpu_per_gib for each in found))


def say(text: str) -> None:
    """A line between others."""
    print(f"== {text}", flush=True)


def column_of(phase: Phase, count: int) -> str:
    """Its name."""
    return f"{count} reader{'s' if count > 1 else ''}, {phase.name}"


def columns_of(phases: list[Phase]) -> list[str]:
    """In the order of the table."""
    return [column_of(phase, count) for phase in phases for count in (1, READERS)]


def print_table(result: Comparison, rows: list[Row], columns: list[str]) -> None:
    """In Markdown."""
    print("Seconds, median (best round) / CPU s per GiB, median:\n")
    print("| | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    for row in rows:
        cells = [result.cell(row, each) for each in columns]
        if any(cells):
            words = [f"{c.seconds:.2f} ({c.best_seconds:.2f}) / {c.cpu_per_gib:.2f}" if c else "-" for c in cells]
            print(f"| {row.label} | " + " | ".join(words) + " |")
    print()


def plot(result: Comparison, rows: list[Row], columns: list[str], path: Path) -> None:
    """A bar for each cell: seconds."""
    import matplotlib as mpl  # noqa: PLC0415  takes a second, and need not be there

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(1, len(columns), figsize=(3.2 * len(columns), 3.6), sharey=True)
    for column, here in zip(columns, np.atleast_1d(axes), strict=True):
        for place, row in enumerate(reversed(rows)):
            cell = result.cell(row, column)
            bar = here.barh(place, cell.seconds if cell else 0, color="C1" if row.key.startswith("tensorhub") else "C0")
            here.bar_label(bar, [f"{cell.seconds:.2f}" if cell else "left out"], padding=2, fontsize=7)
        here.set_title(column, fontsize=9)
        here.set_yticks(range(len(rows)), [row.label for row in reversed(rows)], fontsize=7)
        here.set_xlabel("s", fontsize=8)
        here.margins(x=0.25)
    figure.tight_layout()
    figure.savefig(path)


def versions(rows: list[Row]) -> dict[str, str]:
    """Of what is compared."""
    found = {}
    for wheel in {row.wheel for row in rows if row.wheel}:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[wheel] = importlib.metadata.version(wheel)
    project = re.search(r"VERSION (\d\S*)", Path("CMakeLists.txt").read_text().partition("project(")[2])
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False)  # noqa: S603
    found["tensorhub"] = f"{project[1] if project else '?'} {commit.stdout.strip()}"
    return dict(sorted(found.items()))


def machine() -> str:
    """In words."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    name = model[1] if model else "?"
    release = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} processors ({name}), {memory:.0f} GiB, Linux {release}"


def controls() -> list[str]:
    """Cubic and bbr, as far as the kernel has them and this user may choose; else the present one."""
    present = CONTROL.read_text().strip()
    there = CONTROL.with_name("tcp_available_congestion_control").read_text().split()
    wanted: list[str] = [each for each in ("cubic", "bbr") if each in there]
    if wanted and os.access(CONTROL, os.W_OK):
        return wanted
    print(f"the congestion control stays {present}: this user may not set the system's")
    return [present]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="that count; one more warms up")
    parser.add_argument("--mib", type=int, default=1024, help="of a version")
    parser.add_argument("--only", default="", help="rows, with commas: " + ",".join(row.key for row in ROWS))
    parser.add_argument("--json", type=Path, default=Path("build/bench-results/peers.json"))
    parser.add_argument("--plot", type=Path, default=Path("build/bench-results/peers.svg"))
    return parser.parse_args()


def write_json(path: Path, given: argparse.Namespace, result: Comparison, facts: dict[str, Any]) -> None:
    """Every turn."""
    out = {**facts, "mib": given.mib, "rounds": given.rounds, "method": __doc__, "left_out": result.left_out}
    turns = [{name: round(v, 4) if isinstance(v, float) else v for name, v in vars(t).items()} for t in result.turns]
    lines = ",\n".join("  " + json.dumps(each) for each in turns)
    text = json.dumps(out, indent=1).removesuffix("\n}") + f',\n "turns": [\n{lines}\n ]\n}}\n'
    path.write_text(text)


def main() -> None:
    """Everything."""
    given = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what drivers leave behind is found
    rows = [row for row in ROWS if not given.only or row.key in given.only.split(",")]
    before = CONTROL.read_text().strip()
    phases = [Phase("tcp", each) for each in controls()] + [Phase("same_host", before)]
    print(__doc__)
    load = os.getloadavg()
    facts: dict[str, Any] = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "machine": machine(),
        "versions": versions(rows),
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    print(f"{given.mib} MiB, {given.rounds} rounds; load average before: {load[0]:.1f}", flush=True)
    logs = Path("build/peers/logs")
    logs.mkdir(parents=True, exist_ok=True)
    result = Comparison(rows, given.mib << 20, given.rounds, logs)
    try:
        for phase in phases:
            if phase.path == "tcp" and os.access(CONTROL, os.W_OK):
                CONTROL.write_text(phase.control)
            result.run(phase)
    finally:
        if CONTROL.read_text().strip() != before:
            CONTROL.write_text(before)
    columns = columns_of(phases)
    say("medians of the rounds")
    print_table(result, rows, columns)
    others = [each.others_cpu for each in result.turns] or [0.0]
    facts["others_cpu"] = [round(q, 2) for q in statistics.quantiles(others, n=4)] if len(others) > 1 else others
    print(f"the rest of the machine, in processors, in the time of a turn (quartiles): {facts['others_cpu']}")
    for name, why in result.left_out.items():
        print(f"left out: {name}: {why}")
    write_json(given.json, given, result, facts)
    with suppress(ImportError):
        plot(result, rows, columns, given.plot)
        print(f"plot: {given.plot}")
    print(f"JSON: {given.json}")


if __name__ == "__main__":
    main()
