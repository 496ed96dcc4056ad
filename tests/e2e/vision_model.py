"""Tiny random vision models (tests/vision/fixtures) as a server can serve them, and pictures for them."""

import base64
import json
import random
import struct
import zlib
from pathlib import Path

from gguf_edit import Gguf, text
from wide_model import widen_projector, widen_text

FIXTURES = Path(__file__).parents[1] / "vision" / "fixtures"
SERVED = sorted(file.parent.name for file in FIXTURES.glob("*/served.json"))
UINT32, BOOL = 4, 7
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def words(*tokens):
    """The text of these tokens: one character each."""
    return "".join(chr(0x4E00 + token) for token in tokens)


def write_model(name, folder, template=TEMPLATE, facts=None, wide=False):
    """FOLDER/model.gguf and mmproj.gguf beside it, with other numbers for some of the projector's facts; wide: as GPUs take them (wide_model.py). Each token is a character, so any text of them is tokenized as it is meant."""
    model = Gguf(FIXTURES / name / "model.gguf")
    special = [f"w{token}" for token in range(128)]
    model.rename_tokens({name: words(token) for token, name in enumerate(special) if text(name) in model.facts["tokenizer.ggml.tokens"]})
    model.set("tokenizer.ggml.add_space_prefix", (BOOL, False))
    model.set("tokenizer.chat_template", template)
    projector = Gguf(FIXTURES / name / "mmproj.gguf")
    for key, value in (facts or {}).items():
        projector.set(key, (UINT32, value))
    if wide:
        widen_text(model)
        widen_projector(projector)
    projector.write(folder / "mmproj.gguf")
    return model.write(folder / "model.gguf")


def served(name):
    return json.loads((FIXTURES / name / "served.json").read_text())


def fixture_picture(name):
    """Of one tile."""
    one = FIXTURES / name / "served.png"
    return (one if one.exists() else FIXTURES / name / "picture.png").read_bytes()


def png(width, height, pixels):
    """pixels: [height * width * 3] bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def noise(seed, width=128, height=64):
    return bytearray(random.Random(seed).randbytes(width * height * 3))


def picture(seed, width=128, height=64):
    return png(width, height, bytes(noise(seed, width, height)))


def data_url(file, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(file).decode()


def image_part(file, **more):
    return {"type": "image_url", "image_url": {"url": data_url(file)} | more}
