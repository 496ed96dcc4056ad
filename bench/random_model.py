#!/usr/bin/env python3
"""Writes a GGUF file of the llama family with random weights, in a given shape and in the types that llama-quantize
would choose for it: for speed, not for sense. The vocabulary is copied from another file.

    bench/random_model.py --types q4_k_m --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf 1b.gguf
"""

import argparse
import io
import random
import struct

from gguf import STRING, Reader

UINT32, FLOAT32 = 4, 6
ALIGNMENT = 32
POOL = 1024  # different blocks of a type and scale


class Type:
    def __init__(self, number, weights, size, d, spread, m=None, centre=0.0):
        self.number, self.weights, self.size = number, weights, size
        self.d, self.spread = d, spread    # offset of the f16 scale; standard deviation of random weights with d = 1
        self.m, self.centre = m, centre    # offset of the f16 minimum; m / d that makes the mean 0


TYPES = {
    "q4_0": Type(2, 32, 18, 0, 4.7),
    "q4_1": Type(3, 32, 20, 0, 4.6, 2, -7.5),
    "q5_0": Type(6, 32, 22, 0, 9.3),
    "q5_1": Type(7, 32, 24, 0, 9.3, 2, -15.5),
    "q8_0": Type(8, 32, 34, 0, 74.0),
    "q4_k": Type(12, 256, 144, 0, 280.0, 2, 7.5),
    "q5_k": Type(13, 256, 176, 0, 570.0, 2, 15.5),
    "q6_k": Type(14, 256, 210, 208, 1360.0),
    "iq4_nl": Type(20, 32, 18, 0, 72.0),
    "iq4_xs": Type(23, 256, 136, 0, 1340.0),
}
MIXES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k"}  # with Q6_K where more bits pay


def type_of(mix, name, layer, n_layer):
    """What llama-quantize (llama-quant.cpp) chooses for a matrix of a file of the type `mix`."""
    if name == "token_embd":  # the output matrix, too
        return "q8_0" if mix == "q8_0" else "q6_k"
    if mix not in MIXES:
        return mix
    eighth = n_layer // 8
    more_bits = layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2
    return "q6_k" if more_bits and name in ("attn_v", "ffn_down") else MIXES[mix]


def copied_facts(path):
    """The vocabulary's entries as they stand in the file, and the number of tokens."""
    entries, n_tokens = [], 0
    with open(path, "rb") as file:
        reader = Reader(file)
        if file.read(4) != b"GGUF":
            raise SystemExit(f"{path} isn't a GGUF file")
        reader.scalar("<I")
        reader.scalar("<Q")
        for _ in range(reader.scalar("<Q")):
            begin = file.tell()
            key = reader.string()
            value = reader.value(reader.scalar("<I"))
            if not key.startswith("tokenizer."):
                continue
            n_tokens = len(value) if key == "tokenizer.ggml.tokens" else n_tokens
            end = file.tell()
            file.seek(begin)
            entries.append(file.read(end - begin))
    return entries, n_tokens


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def fact(key, value):
    if isinstance(value, str):
        return string(key) + struct.pack("<I", STRING) + string(value)
    return string(key) + (struct.pack("<If", FLOAT32, value) if isinstance(value, float)
                          else struct.pack("<II", UINT32, value))


def random_blocks(kind, n_in, rng):
    """POOL random blocks whose weights have a standard deviation of n_in ** -0.5."""
    d = n_in ** -0.5 / kind.spread
    blocks = []
    for _ in range(POOL):
        block = bytearray(rng.randbytes(kind.size))
        struct.pack_into("<e", block, kind.d, d)
        if kind.m is not None:
            struct.pack_into("<e", block, kind.m, d * kind.centre)
        blocks.append(bytes(block))
    return blocks


def shapes(o, n_vocab):
    """[(name, layer or None, n_in, n_out)]"""
    yield "token_embd", None, o.embd, n_vocab
    for layer in range(o.layers):
        for name, n_in, n_out in (("attn_q", o.embd, o.heads * o.head_size), ("attn_k", o.embd, o.kv_heads * o.head_size),
                                  ("attn_v", o.embd, o.kv_heads * o.head_size),
                                  ("attn_output", o.heads * o.head_size, o.embd), ("ffn_gate", o.embd, o.ff),
                                  ("ffn_up", o.embd, o.ff), ("ffn_down", o.ff, o.embd)):
            yield name, layer, n_in, n_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--types", default="q4_k_m", choices=[*MIXES, *TYPES])
    parser.add_argument("--vocabulary", required=True, help="a GGUF file whose vocabulary is copied")
    for name, value in (("embd", 2048), ("ff", 8192), ("layers", 16), ("heads", 32), ("kv-heads", 8), ("head-size", 64),
                        ("context", 8192), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    o = parser.parse_args()
    vocabulary, n_vocab = copied_facts(o.vocabulary)
    rng = random.Random(o.seed)

    norms = [("output_norm", None)] + [(n, i) for i in range(o.layers) for n in ("attn_norm", "ffn_norm")]
    tensors = []  # name, shape, type's number, bytes, how to make them
    for name, layer in norms:
        full = f"{name}.weight" if layer is None else f"blk.{layer}.{name}.weight"
        tensors.append((full, [o.embd], 0, 4 * o.embd, None))
    for name, layer, n_in, n_out in shapes(o, n_vocab):
        kind = TYPES[type_of(o.types, name, layer, o.layers)]
        if n_in % kind.weights:
            raise SystemExit(f"{name} has {n_in} inputs, and blocks of this type have {kind.weights}")
        full = f"{name}.weight" if layer is None else f"blk.{layer}.{name}.weight"
        tensors.append((full, [n_in, n_out], kind.number, n_in // kind.weights * n_out * kind.size, kind))

    facts = [fact("general.architecture", "llama"), fact("general.name", f"random {o.types}"),
             fact("llama.block_count", o.layers), fact("llama.context_length", o.context),
             fact("llama.embedding_length", o.embd), fact("llama.feed_forward_length", o.ff),
             fact("llama.attention.head_count", o.heads), fact("llama.attention.head_count_kv", o.kv_heads),
             fact("llama.attention.key_length", o.head_size), fact("llama.attention.value_length", o.head_size),
             fact("llama.rope.dimension_count", o.head_size), fact("llama.rope.freq_base", 500000.0),
             fact("llama.attention.layer_norm_rms_epsilon", 1e-5), fact("llama.vocab_size", n_vocab), *vocabulary]
    head = io.BytesIO()
    head.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts))
    offset = 0
    for name, shape, number, size, _ in tensors:
        head.write(string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) +
                   struct.pack("<IQ", number, offset))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    pools = {}
    with open(o.out, "wb") as file:
        file.write(head.getvalue())
        for _, shape, number, _, kind in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            if kind is None:
                file.write(struct.pack(f"<{shape[0]}f", *(rng.uniform(0.5, 1.5) for _ in range(shape[0]))))
                continue
            if (number, shape[0]) not in pools:
                pools[number, shape[0]] = random_blocks(kind, shape[0], rng)
            pool = pools[number, shape[0]]
            for _ in range(shape[1]):
                file.write(b"".join(rng.choices(pool, k=shape[0] // kind.weights)))
    print(f"{o.out}: {offset / 1e6:.0f} MB of weights in {o.types}")


if __name__ == "__main__":
    main()
