"""What a program for macOS says of itself, read from its file: what runs it, what it loads, what it wants and gives, and whether its signature
holds. (The layouts are those of <mach-o/loader.h>, <mach-o/nlist.h> and <kern/cs_blobs.h>.)"""

import hashlib
import re
import struct
from pathlib import Path

ARM64, EXECUTE, MACOS = 0x0100000C, 2, 1
NO_UNDEFINED, TWO_LEVEL, PIE = 0x1, 0x80, 0x200000
SYMTAB, LOAD_DYLIB, RPATH, CODE_SIGNATURE, BUILD_VERSION = 0x2, 0xC, 0x8000001C, 0x1D, 0x32
OTHER_DYLIBS = {0x18 | 0x80000000, 0x1F | 0x80000000, 0x20, 0x23 | 0x80000000}  # weak, reexported, lazy, upward
EMBEDDED_SIGNATURE, CODE_DIRECTORY, AD_HOC = 0xFADE0CC0, 0xFADE0C02, 0x2


class Program:
    def __init__(self, data: bytes):
        self.data = data
        magic, self.cpu, _, self.kind, count, _, self.flags, _ = struct.unpack_from("<8I", data)
        assert magic == 0xFEEDFACF, "this is no 64-bit Mach-O file"
        self.commands = []  # (its number, where it begins)
        at = 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", data, at)
            self.commands.append((command, at))
            at += size

    def places(self, command: int) -> list[int]:
        return [at for number, at in self.commands if number == command]

    def text(self, at: int) -> str:
        return self.data[at:self.data.index(b"\0", at)].decode()

    def system(self) -> tuple[int, int]:
        """The platform, and its least version: 13 is 13.0."""
        (at,) = self.places(BUILD_VERSION)
        platform, least = struct.unpack_from("<2I", self.data, at + 8)
        assert least & 0xFFFF == 0
        return platform, least >> 16

    def libraries(self) -> list[str]:
        found = [at for number, at in self.commands if number == LOAD_DYLIB or number in OTHER_DYLIBS]
        return [self.text(at + struct.unpack_from("<I", self.data, at + 8)[0]) for at in found]

    def symbols(self) -> tuple[set[str], set[str]]:
        """Those that others see: wanted, given."""
        (at,) = self.places(SYMTAB)
        table, count, strings, _ = struct.unpack_from("<4I", self.data, at + 8)
        wanted, given = set(), set()
        for i in range(count):
            name, kind = struct.unpack_from("<IB", self.data, table + 16 * i)
            if kind & 0xE0 == 0 and kind & 0x01:  # none of a debugger's, and external
                (given if kind & 0x0E else wanted).add(self.text(strings + name))
        return wanted, given

    def damaged_pages(self) -> list[int]:
        """macOS ends a program on ARM whose file differs from its signature. The signature itself must say that nobody signed it (ad hoc)."""
        (at,) = self.places(CODE_SIGNATURE)
        begin, size = struct.unpack_from("<2I", self.data, at + 8)
        signature = self.data[begin:begin + size]
        magic, _, blobs = struct.unpack_from(">3I", signature)
        assert magic == EMBEDDED_SIGNATURE
        for i in range(blobs):
            directory = struct.unpack_from(">2I", signature, 12 + 8 * i)[1]
            if struct.unpack_from(">I", signature, directory)[0] == CODE_DIRECTORY:
                break
        else:
            raise AssertionError("the signature has no directory")
        _, _, _, flags, hashes, _, _, pages, end, hash_size, hash_kind, _, page_bits = struct.unpack_from(">9I4B", signature, directory)
        assert flags & AD_HOC and (hash_kind, hash_size) == (2, 32), "this is no ad-hoc signature with SHA-256"
        assert end == begin and pages == (end + (1 << page_bits) - 1) >> page_bits, "the signature leaves out a part of the file"
        damaged = []
        for page in range(pages):
            first = page << page_bits
            said = signature[directory + hashes + 32 * page:][:32]
            if hashlib.sha256(self.data[first:min(first + (1 << page_bits), end)]).digest() != said:
                damaged.append(page)
        return damaged


def names_in(tbd: Path) -> set[str]:
    """What a library gives to programs for ARM, by its text file."""
    names = set()
    for targets, symbols in re.findall(r"targets: *\[([^]]*)\]\s+(?:weak-|thread-local-)?symbols: *\[([^]]*)\]", tbd.read_text()):
        if "arm64-macos" in targets:
            names.update(name.strip(" '\"\n") for name in symbols.split(","))
    return names
