"""The few facts of a GGUF file that bounds and sizes are computed from."""

import dataclasses
import math
import os
import struct

from process import Failure

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


@dataclasses.dataclass
class Model:
    context: int              # tokens
    kv_bytes_per_token: int   # f16 keys and values, all layers
    head_size: int            # values of one head's key
    weight_bytes: int         # read by one decode step: all tensors, an embedding that isn't the output head left out
    layer_multiply_adds: int      # of one token with all layers' matrices
    output_multiply_adds: int     # with the output head
    attention_multiply_adds: int  # with one key and its value, all layers
    whole: bool               # each step reads and multiplies all of it: no layer sees a window only, no expert is left out


class Reader:
    def __init__(self, file):
        self.file = file

    def scalar(self, form):
        data = self.file.read(struct.calcsize(form))
        return struct.unpack(form, data)[0]

    def string(self):
        return self.file.read(self.scalar("<Q")).decode(errors="replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def read_model(path):
    try:
        with open(path, "rb") as file:
            return _read(file, os.path.getsize(path))
    except (struct.error, KeyError, IndexError, TypeError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise Failure(f"{path} isn't a GGUF file that this benchmark understands ({error!r})") from error


def _read(file, size):
    reader = Reader(file)
    if file.read(4) != b"GGUF":
        raise Failure(f"{file.name} isn't a GGUF file")
    reader.scalar("<I")  # version
    tensor_count, fact_count = reader.scalar("<Q"), reader.scalar("<Q")
    facts = {}
    for _ in range(fact_count):
        name = reader.string()
        facts[name] = reader.value(reader.scalar("<I"))
    offsets, shapes = {}, {}
    for _ in range(tensor_count):
        name = reader.string()
        shapes[name] = [reader.scalar("<Q") for _ in range(reader.scalar("<I"))]
        reader.scalar("<I")
        offsets[name] = reader.scalar("<Q")
    alignment = facts.get("general.alignment", 32)
    data_bytes = size - (file.tell() + alignment - 1) // alignment * alignment
    ends = sorted([*offsets.values(), data_bytes])

    def bytes_of(name):
        return ends[ends.index(offsets[name]) + 1] - offsets[name]

    def fact(name):
        return facts[f"{facts['general.architecture']}.{name}"]

    heads = fact("attention.head_count")
    kv_heads = facts.get(f"{facts['general.architecture']}.attention.head_count_kv", heads)
    head_size = facts.get(f"{facts['general.architecture']}.attention.key_length", fact("embedding_length") // heads)
    untied = "output.weight" in offsets
    head = shapes["output.weight" if untied else "token_embd.weight"]
    return Model(context=fact("context_length"),
                 kv_bytes_per_token=fact("block_count") * kv_heads * head_size * 2 * 2,
                 head_size=head_size,
                 weight_bytes=data_bytes - (bytes_of("token_embd.weight") if untied else 0),
                 layer_multiply_adds=sum(math.prod(shape) for name, shape in shapes.items()
                                         if name.startswith("blk.") and len(shape) == 2),
                 output_multiply_adds=math.prod(head),
                 attention_multiply_adds=fact("block_count") * heads * head_size * 2,
                 whole=not any(f"{facts['general.architecture']}.{name}" in facts
                               for name in ("attention.sliding_window", "expert_count")))
