"""GGUF files for tests: read, changed, written again, split into parts."""

import copy
import io
import struct
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from gguf_reader import SCALARS, STRING, Reader  # noqa: E402

ALIGNMENT = 32
UINT16, INT32 = 2, 5


def text(name):
    return struct.pack("<Q", len(name.encode())) + name.encode()


class Gguf:
    """facts: {key: type and value as they stand in the file}; tensors: {name: [shape, type, bytes]}."""

    def __init__(self, path):
        data = Path(path).read_bytes()
        file = io.BytesIO(data)
        reader = Reader(file)
        assert file.read(8) == b"GGUF" + struct.pack("<I", 3)
        n_tensors, n_facts = reader.scalar("<Q"), reader.scalar("<Q")
        self.facts, self.tensors, offsets = {}, {}, []
        for _ in range(n_facts):
            key, begin = reader.string(), file.tell()
            reader.value(reader.scalar("<I"))
            self.facts[key] = data[begin:file.tell()]
        for _ in range(n_tensors):
            name, n_dims = reader.string(), reader.scalar("<I")
            shape = [reader.scalar("<Q") for _ in range(n_dims)]
            self.tensors[name] = [shape, reader.scalar("<I"), None]
            offsets.append(reader.scalar("<Q"))
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        ends = sorted([*offsets, len(data) - start])
        for tensor, offset in zip(self.tensors.values(), offsets):
            tensor[2] = data[start + offset:start + ends[ends.index(offset) + 1]]

    def changed(self):
        return copy.deepcopy(self)

    def set(self, key, value):
        """A string, or (the type of a number, the number)."""
        if isinstance(value, str):
            self.facts[key] = struct.pack("<IQ", STRING, len(value.encode())) + value.encode()
        else:
            kind, number = value
            self.facts[key] = struct.pack("<I", kind) + struct.pack(SCALARS[kind], number)

    def rename_tokens(self, names):
        """{old: new}"""
        for old, new in names.items():
            tokens = self.facts["tokenizer.ggml.tokens"]
            assert tokens.count(text(old)) == 1, old
            self.facts["tokenizer.ggml.tokens"] = tokens.replace(text(old), text(new))

    def write(self, path):
        head, data = io.BytesIO(), io.BytesIO()
        head.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.facts)))
        for key, value in self.facts.items():
            head.write(text(key) + value)
        for name, (shape, kind, content) in self.tensors.items():
            head.write(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, data.tell()))
            data.write(content + bytes(-len(content) % ALIGNMENT))
        head.write(bytes(-head.tell() % ALIGNMENT))
        Path(path).write_bytes(head.getvalue() + data.getvalue())
        return Path(path)

    def split(self, folder, name, parts):
        """Writes NAME-00001-of-0000N.gguf and so on, the tensors dealt out in order; returns their paths."""
        names, paths = list(self.tensors), []
        for number in range(parts):
            part = self.changed()
            part.tensors = {n: self.tensors[n] for i, n in enumerate(names) if i * parts // len(names) == number}
            part.facts = dict(self.facts) if number == 0 else {}
            for key, value in (("no", (UINT16, number)), ("count", (UINT16, parts)), ("tensors.count", (INT32, len(names)))):
                part.set(f"split.{key}", value)
            paths.append(part.write(folder / f"{name}-{number + 1:05}-of-{parts:05}.gguf"))
        return paths
