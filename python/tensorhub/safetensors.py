"""Files of the format safetensors, put on a hub and taken off one. Needs neither torch nor the package safetensors.

>>> publisher = publish_file(server, "policy", "model.safetensors", version=1)      # mapped, not read
>>> save_file(server, "policy", "copy.safetensors")                                 # received into the file
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorhub import _core
from tensorhub.errors import InvalidArgument
from tensorhub.workers import Options, Publisher, Subscriber, _shard_of, replica_of_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from tensorhub.reports import TensorSpec, UpdateReport
    from tensorhub.server import ReferenceServer

__all__ = ["publish_file", "save_file"]

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # older Pythons have no name for it
_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000  # the format's own bound
# The format's names: ours, torch's, and the bytes of an element.
_TYPES = {
    "BOOL": ("boolean", "bool", 1),
    "U8": ("u8", "uint8", 1),
    "I8": ("i8", "int8", 1),
    "F8_E4M3": ("f8_e4m3", "float8_e4m3fn", 1),
    "F8_E5M2": ("f8_e5m2", "float8_e5m2", 1),
    "F8_E8M0": ("f8_e8m0", "float8_e8m0fnu", 1),
    "I16": ("i16", "int16", 2),
    "U16": ("u16", "uint16", 2),
    "F16": ("f16", "float16", 2),
    "BF16": ("bf16", "bfloat16", 2),
    "I32": ("i32", "int32", 4),
    "U32": ("u32", "uint32", 4),
    "F32": ("f32", "float32", 4),
    "I64": ("i64", "int64", 8),
    "U64": ("u64", "uint64", 8),
    "F64": ("f64", "float64", 8),
    "C64": ("c64", "complex64", 8),
}
_NAMES = {ours: name for name, (ours, _, _) in _TYPES.items()}


@dataclass(frozen=True)
class _Device:
    type: str = "cpu"


class _Mapped:
    """A tensor in a mapped file, with what the binding asks of a tensor of torch."""

    device = _Device()

    def __init__(self, mapping: mmap.mmap, offset: int, dtype: str, shape: tuple[int, ...]) -> None:
        # Holds the mapping, which cannot be closed as long as this lives.
        self._first = ctypes.c_char.from_buffer(mapping, offset) if math.prod(shape) else None
        self.dtype = dtype
        self.shape = shape

    def data_ptr(self) -> int:
        return ctypes.addressof(self._first) if self._first is not None else 0

    def is_contiguous(self) -> bool:
        return True

    def is_conj(self) -> bool:
        return False


def publish_file(
    server: str | ReferenceServer,
    model: str,
    path: str | os.PathLike[str],
    version: int,
    replica: str = "file",
    **options: Unpack[Options],
) -> Publisher:
    """Publishes the tensors of a file as `version`, or those of all files `*.safetensors` of a folder.

    They are mapped into memory: the files must not change, and may be deleted.
    """
    tensors = [each for file in _files_of(Path(path)) for each in _map(file)]
    publisher = Publisher(server, model, replica, **options)
    try:
        publisher.add_all(tensors)
        publisher.publish(version)
    except BaseException:
        publisher.close()
        raise
    return publisher


def save_file(
    server: str | ReferenceServer,
    model: str,
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    at_least: int | None = None,
    replica: str = "",
    timeout: float = _core.update_timeout,
    **options: Unpack[Options],
) -> UpdateReport:
    """Receives a version (the latest) into a file, which appears when it is whole and verified.

    With `at_least` it waits for that version, or a higher one, of a model that is there. A model of several shards is
    as many files: `shard=(index, count)` names one. A hub carries tensors alone: the file has no `__metadata__`, as one
    that `safetensors.torch.save_file` writes without any.
    """
    path = Path(path)
    unique = replica_of_process("save")
    replica = replica or unique
    with Subscriber(server, model, replica, **options) as asker:
        count = max((each.shards for each in asker.models(model, timeout)), default=1)
        index, given = _shard_of(options)
        if given != count:
            raise InvalidArgument(f"model '{model}' has {count} shards: give shard=(index, {count})", model=model)
        layout = asker.describe_model(index, timeout)
    header, places, total = _make_header(layout)
    partial = path.with_name(f"{path.name}.{unique}.partial")
    try:
        with partial.open("x+b") as file:
            file.write(header)
            file.flush()
            _extend(file.fileno(), len(header) + total)
            mapping = mmap.mmap(file.fileno(), len(header) + total)
        with Subscriber(server, model, replica, **options) as reader:
            reader.add_all(
                (each.name, _Mapped(mapping, len(header) + offset, _TYPES[_NAMES[each.dtype]][1], each.shape))
                for each, offset in zip(layout, places, strict=True)
            )
            report = reader.update(version, at_least=at_least, timeout=timeout)
            reader.leave()
        mapping.flush()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return report


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(f"the folder {path} has no file *.safetensors: give a file, or a folder that has some")
    return files


def _map(path: Path) -> list[tuple[str, _Mapped]]:
    with path.open("rb") as file:
        begin, tensors = _read_header(file.read(_LENGTH_BYTES), file, os.fspath(path))
        # Private pages: what somebody else writes to the process' memory does not come into the file. Nobody does, and
        # so no memory is set aside for copies of them.
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        mapping = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return [(name, _Mapped(mapping, begin + offset, _TYPES[dtype][1], shape)) for name, dtype, shape, offset in tensors]


def _extend(descriptor: int, size: int) -> None:
    """Takes the space that the file needs: where a written page finds none later, SIGBUS ends the process."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # this file system cannot tell
            raise
        os.truncate(descriptor, size)


def _read_header(length: bytes, file: Any, path: str) -> tuple[int, list[tuple[str, str, tuple[int, ...], int]]]:
    size = int.from_bytes(length, "little")
    if len(length) < _LENGTH_BYTES:
        raise InvalidArgument(f"{path} is no file of the format safetensors: it ends before its header")
    if size > _LARGEST_HEADER:
        raise InvalidArgument(f"{path} is no file of the format safetensors: its header is too long")
    try:
        header = json.loads(file.read(size))
        found = list(_tensors_of(header, path))
    except InvalidArgument:  # a ValueError, whose sentence is whole
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InvalidArgument(f"{path} is no file of the format safetensors: {e}") from e
    end = os.fstat(file.fileno()).st_size - _LENGTH_BYTES - size
    for name, dtype, shape, offset in found:
        if offset < 0 or offset + math.prod(shape) * _TYPES[dtype][2] > end:
            raise InvalidArgument(f"{path} is cut short: tensor '{name}' lies outside of it")
    return _LENGTH_BYTES + size, found


def _tensors_of(header: dict[str, Any], path: str) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    for name, each in sorted(header.items(), key=lambda one: one[1].get("data_offsets", [0])):
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = each["dtype"], tuple(map(int, each["shape"])), each["data_offsets"]
        if dtype not in _TYPES:
            raise InvalidArgument(f"{path}: tensor '{name}' has elements of type {dtype}, which are not known")
        if min(shape, default=0) < 0 or end - begin != math.prod(shape) * _TYPES[dtype][2]:
            raise InvalidArgument(f"{path}: tensor '{name}' has other bytes than its shape says")
        yield name, dtype, shape, begin


def _make_header(layout: list[TensorSpec]) -> tuple[bytes, list[int], int]:
    """The header, where each tensor begins after it, and the bytes of all of them."""
    described: dict[str, Any] = {}
    places, total = [], 0
    for tensor in layout:
        if tensor.dtype not in _NAMES:
            raise InvalidArgument(f"tensor '{tensor.name}' is {tensor.dtype}, which safetensors does not have")
        name = _NAMES[tensor.dtype]
        size = math.prod(tensor.shape) * _TYPES[name][2]
        described[tensor.name] = {
            "dtype": name,
            "shape": list(tensor.shape),
            "data_offsets": [total, total + size],
        }
        places.append(total)
        total += size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % 64)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, places, total
