#!/usr/bin/env python3
"""Prints a novel of Jane Austen (public domain) from the data file of the R package janeaustenr: austen.py Rdata.rdb

The file is a row of records, each a length and a zlib stream of R's serialisation; the first one holds the lines of
"Emma". A string there is its type (9) in the last of four bytes, a length, and that many bytes.
"""
import struct
import sys
import zlib

STRING = 9


def novel(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from(">I", data)
    record = zlib.decompressobj().decompress(data[4:])
    if len(record) != size:
        sys.exit(f"{path}: the first record has {len(record)} bytes instead of {size}")
    (vector_type, count) = struct.unpack_from(">2I", record, at := record.index(struct.pack(">I", 16)))
    lines, at = [], at + 8
    for _ in range(count):
        (flags, length) = struct.unpack_from(">2I", record, at)
        if flags & 0xFF != STRING:
            sys.exit(f"{path}: not a vector of strings")
        lines.append(record[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return "\n".join(lines) + "\n"


sys.stdout.write(novel(sys.argv[1]))
