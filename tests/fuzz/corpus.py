#!/usr/bin/env python3
"""Packs a folder of fuzz inputs into one file of records, and unpacks it for libFuzzer, which reads folders.

  corpus.py pack FOLDER FILE     every file of FOLDER becomes one record of FILE
  corpus.py unpack FILE FOLDER   every record becomes one file of FOLDER, named by the SHA-1 of its bytes
  corpus.py show FILE...         for each FILE: records, bytes, and one digest of all inputs, whatever their order

A record is the length of the input (four bytes, little-endian) and the input. Records are sorted by the SHA-1 of
the input, and an input that occurs twice is kept once, so that equal sets of inputs give equal files.
"""
import hashlib
import pathlib
import struct
import sys


def name_of(data):
    return hashlib.sha1(data).hexdigest()


def read_records(path):
    content = path.read_bytes()
    records, at = [], 0
    while at < len(content):
        if at + 4 > len(content):
            sys.exit(f"{path}: the length at byte {at} is cut off")
        (length,) = struct.unpack_from("<I", content, at)
        at += 4
        if at + length > len(content):
            sys.exit(f"{path}: the record at byte {at} should have {length} bytes, and {len(content) - at} are left")
        records.append(content[at:at + length])
        at += length
    return records


def pack(folder, path):
    inputs = {name_of(data): data for data in (each.read_bytes() for each in folder.iterdir() if each.is_file())}
    path.write_bytes(b"".join(struct.pack("<I", len(data)) + data for _, data in sorted(inputs.items())))


def unpack(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for data in read_records(path):
        (folder / name_of(data)).write_bytes(data)


def show(path):
    records = read_records(path)
    digest = hashlib.sha256("".join(sorted(map(name_of, records))).encode()).hexdigest()
    print(path.stem, len(records), sum(map(len, records)), digest)


def main(arguments):
    paths = [pathlib.Path(each) for each in arguments[1:]]
    match arguments[:1]:
        case ["pack"] if len(paths) == 2:
            pack(*paths)
        case ["unpack"] if len(paths) == 2:
            unpack(*paths)
        case ["show"] if paths:
            for path in paths:
                show(path)
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])
