"""`coppice cache`: lists, checks and prunes a folder of pieces. The pieces are made up here, as src/tier/piece.h says."""

import hashlib
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from coppice_process import binary

MODEL_A, MODEL_B = b"\xaa" * 16, b"\xab" * 16


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write_piece(folder: Path, number: int, model=MODEL_A, about=b"a model, f16", hours_ago=0.0) -> Path:
    name = model + bytes(16) + hashlib.sha256(bytes([number])).digest()
    text, payload = bytes(8), bytes([number]) * 500
    before = (112 + len(text) + len(about) + 63) // 64 * 64
    head = struct.pack("<8sII", b"coppice\0", 2, 0x01020304)
    rest = struct.pack("<IQ64sIIII", before, len(payload), name, len(text), len(about), 0, 0) + text + about
    rest = rest.ljust(before - 20, b"\0") + payload
    digits = [name[:16].hex(), name[16:32].hex(), name[32:].hex()]
    path = folder / "kv" / digits[2][0] / "-".join(digits)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + struct.pack("<I", crc32c(head + rest)) + rest)
    path.chmod(0o600)
    used = time.time() - 3600 * hours_ago
    os.utime(path, (used, used))
    return path


def cache(*arguments, code=0) -> str:
    done = subprocess.run([binary(), "cache", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    """Four pieces of one model, unused for 0 to 30 hours, and two of another."""
    where = tmp_path / "cache"
    for name in ["new", "bad", *(f"kv/{i:x}" for i in range(16))]:
        (where / name).mkdir(parents=True)
    where.chmod(0o700)
    for i in range(4):
        write_piece(where, i, hours_ago=10 * i)
    for i in range(2):
        write_piece(where, i, MODEL_B, b"another", hours_ago=100)
    return where


def test_list_tells_models_and_sizes(folder):
    text = cache("list", folder)
    assert f"{folder}: 6 pieces" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert rows[MODEL_A.hex()].split()[1] == "4" and rows[MODEL_A.hex()].endswith("a model, f16")
    assert "30 hours" in rows[MODEL_A.hex()] and "4 days" in rows[MODEL_B.hex()]


def test_check_finds_what_is_damaged(folder):
    assert "6 pieces are whole, 0 are damaged" in cache("check", folder)
    pieces = sorted((folder / "kv").rglob("*-*"))
    pieces[0].write_bytes(pieces[0].read_bytes()[:-1])
    flipped = bytearray(pieces[1].read_bytes())
    flipped[400] ^= 1
    pieces[1].write_bytes(flipped)
    pieces[2].write_bytes(pieces[3].read_bytes())
    text = cache("check", folder, code=1)
    assert "3 pieces are whole, 3 are damaged" in text and "sealed" not in text
    for path, why in zip(pieces, ["it is too short or too long", "its checksum is wrong", "it has another name"]):
        assert f"{path.relative_to(folder)}: {why}" in text
    assert len(list((folder / "kv").rglob("*-*"))) == 6  # looked at, not touched


def test_check_counts_what_is_sealed(folder):
    piece = next((folder / "kv").rglob("*-*"))
    piece.write_bytes(b"ciphertext" + b"coppiceS" + bytes(28))
    text = cache("check", folder)
    assert "5 pieces are whole, 0 are damaged" in text and "1 more are sealed" in text


def test_prune_removes_what_is_said(folder):
    def left():
        return len(list((folder / "kv").rglob("*-*")))

    assert "What is to go?" in cache("prune", folder, code=1)
    assert "There is nothing of a model ff" in cache("prune", folder, "--model", "ff", code=1)
    assert "Several models begin with a" in cache("prune", folder, "--model", "a", "--all", code=1)
    assert left() == 6
    assert "1 pieces" in cache("prune", folder, "--unused-for", "25h", "--model", "aa")
    assert left() == 5
    cache("prune", folder, "--model", "ab")
    assert left() == 3
    cache("prune", folder, "--bytes", "16KiB")  # of the disk, two pieces take as much
    assert left() == 2
    cache("prune", folder, "--unused-for", "5h")
    assert left() == 1
    cache("prune", folder, "--all")
    assert left() == 0
    assert "0 pieces" in cache("list", folder)


def test_what_is_no_cache_is_left_alone(tmp_path):
    for what in ["list", "check", "prune"]:
        more = ["--all"] if what == "prune" else []
        assert "is no folder" in cache(what, tmp_path / "nowhere", *more, code=1)
        assert "is no cache of coppice" in cache(what, tmp_path, *more, code=1)
    assert not (tmp_path / "nowhere").exists() and not list(tmp_path.iterdir())
