#!/usr/bin/env python3
"""Writes a vision model with random weights, FOLDER/model.gguf and FOLDER/mmproj.gguf, in a given shape: for speed, not for sense. The text
model's vocabulary is copied from another file, and gets the names that libmtmd looks for. Weights are Q8_0 in the text model and F16 in the
projector, as in files that people use.

    bench/vision_model.py --shape smolvlm-500m --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf FOLDER
    bench/vision_model.py --shape gemma3-4b --layers 6 --vision-layers 4 --vocabulary gemma-3-270m-q4_k_m.gguf FOLDER
"""

import argparse
import io
import math
import pathlib
import random
import struct

from gguf_reader import ARRAY, STRING
from random_model import ALIGNMENT, TYPES, fact, random_blocks, string, vocabulary_facts

BOOL, FLOAT32, INT32 = 7, 6, 5
F32, F16, Q8_0 = 0, 1, 8
POOL_BYTES = 1 << 22  # of random weights; a matrix is cut out of it

SHAPES = {
    "smolvlm-500m": dict(
        architecture="llama", embd=960, ff=2560, layers=32, heads=15, kv_heads=5, head_size=64,
        projector="idefics3", image=512, patch=16, longest=2048, merge=4, v_embd=768, v_ff=3072, v_layers=12, v_heads=12,
        names=["<image>", "<fake_token_around_image>", "<global-img>", *(f"<row_{y}_col_{x}>" for y in range(1, 7) for x in range(1, 7))]),
    "gemma3-4b": dict(
        architecture="gemma3", embd=2560, ff=10240, layers=34, heads=8, kv_heads=4, head_size=256,
        projector="gemma3", image=896, patch=14, longest=0, merge=4, v_embd=1152, v_ff=4304, v_layers=27, v_heads=16, names=[]),
}


def array(kind, values, form):
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(struct.pack(form, value) for value in values)


def vocabulary_of(path, more):
    """The file's entries with further tokens that a text's names become, and how many tokens there are."""
    entries, n_tokens = [], 0
    for key, entry, value in vocabulary_facts(path):
        if key == "tokenizer.ggml.tokens":
            n_tokens = len(value) + len(more)
            entry = string(key) + struct.pack("<IIQ", ARRAY, STRING, n_tokens) + b"".join(map(string, [*value, *more]))
        elif key == "tokenizer.ggml.token_type":
            entry = string(key) + array(INT32, [*value, *[4] * len(more)], "<i")  # 4: user defined
        elif key == "tokenizer.ggml.scores":
            entry = string(key) + array(FLOAT32, [*value, *[0.0] * len(more)], "<f")
        entries.append(entry)
    return entries, n_tokens


def text_tensors(o, n_vocab):
    """(name, shape, type)"""
    gemma = o.architecture == "gemma3"
    yield "token_embd.weight", [o.embd, n_vocab], Q8_0
    yield "output_norm.weight", [o.embd], F32
    q, kv = o.heads * o.head_size, o.kv_heads * o.head_size
    for layer in range(o.layers):
        norms = ["attn_norm", "ffn_norm", *(["post_attention_norm", "post_ffw_norm"] if gemma else [])]
        yield from ((f"blk.{layer}.{name}.weight", [o.embd], F32) for name in norms)
        if gemma:
            yield from ((f"blk.{layer}.{name}.weight", [o.head_size], F32) for name in ("attn_q_norm", "attn_k_norm"))
        for name, n_in, n_out in (("attn_q", o.embd, q), ("attn_k", o.embd, kv), ("attn_v", o.embd, kv), ("attn_output", q, o.embd),
                                  ("ffn_gate", o.embd, o.ff), ("ffn_up", o.embd, o.ff), ("ffn_down", o.ff, o.embd)):
            yield f"blk.{layer}.{name}.weight", [n_in, n_out], Q8_0


def projector_tensors(o):
    patches = (o.image // o.patch) ** 2
    yield "v.patch_embd.weight", [o.patch, o.patch, 3, o.v_embd], F16
    yield "v.patch_embd.bias", [o.v_embd], F32
    yield "v.position_embd.weight", [o.v_embd, patches], F32
    for layer in range(o.vision_layers):
        for name in ("ln1", "ln2"):
            yield f"v.blk.{layer}.{name}.weight", [o.v_embd], F32
            yield f"v.blk.{layer}.{name}.bias", [o.v_embd], F32
        for name, n_in, n_out in (*((f"attn_{which}", o.v_embd, o.v_embd) for which in ("q", "k", "v", "out")),
                                  ("ffn_up", o.v_embd, o.v_ff), ("ffn_down", o.v_ff, o.v_embd)):
            yield f"v.blk.{layer}.{name}.weight", [n_in, n_out], F16
            yield f"v.blk.{layer}.{name}.bias", [n_out], F32
    yield "v.post_ln.weight", [o.v_embd], F32
    yield "v.post_ln.bias", [o.v_embd], F32
    if o.projector == "gemma3":
        yield "mm.input_projection.weight", [o.embd, o.v_embd], F16
        yield "mm.soft_emb_norm.weight", [o.v_embd], F32
    else:
        yield "mm.model.fc.weight", [o.v_embd * o.merge**2, o.embd], F16


def text_facts(o, n_vocab):
    a = o.architecture
    facts = {"general.architecture": a, "general.name": f"random {o.shape}", f"{a}.block_count": o.layers, f"{a}.context_length": 8192,
             f"{a}.embedding_length": o.embd, f"{a}.feed_forward_length": o.ff, f"{a}.attention.head_count": o.heads,
             f"{a}.attention.head_count_kv": o.kv_heads, f"{a}.attention.key_length": o.head_size, f"{a}.attention.value_length": o.head_size,
             f"{a}.rope.freq_base": 100000.0, f"{a}.attention.layer_norm_rms_epsilon": 1e-5, f"{a}.vocab_size": n_vocab}
    if a == "gemma3":
        facts |= {f"{a}.attention.sliding_window": 1024, f"{a}.rope.freq_base": 1000000.0, f"{a}.rope.scaling.factor": 8.0,
                  f"{a}.rope.scaling.type": "linear"}
    else:
        facts[f"{a}.rope.dimension_count"] = o.head_size
    return [fact(key, value) for key, value in facts.items()]


def projector_facts(o):
    v = "clip.vision"
    facts = {"general.architecture": "clip", "general.type": "mmproj", "clip.projector_type": o.projector, f"{v}.projection_dim": o.embd,
             f"{v}.image_size": o.image, f"{v}.patch_size": o.patch, f"{v}.embedding_length": o.v_embd, f"{v}.feed_forward_length": o.v_ff,
             f"{v}.block_count": o.vision_layers, f"{v}.attention.head_count": o.v_heads, f"{v}.attention.layer_norm_epsilon": 1e-6,
             f"{v}.projector.scale_factor": o.merge}
    if o.longest:
        facts[f"{v}.preproc_image_size"] = o.longest
    flags = [string(key) + struct.pack("<I?", BOOL, True) for key in ("clip.has_vision_encoder", "clip.use_gelu")]
    means = [string(f"{v}.{key}") + array(FLOAT32, [0.5] * 3, "<f") for key in ("image_mean", "image_std")]
    return [*(fact(key, value) for key, value in facts.items()), *flags, *means]


def f16_pool(spread, rng):
    return b"".join(struct.pack("<e", rng.gauss(0, spread)) for _ in range(1 << 16)) * (POOL_BYTES >> 17)


def written(path, facts, tensors, rng):
    tensors = list(tensors)
    head, offset = io.BytesIO(), 0
    head.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts))
    sizes = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34)}
    for name, shape, kind in tensors:
        weights, size = sizes[kind]
        if shape[0] % weights:
            raise SystemExit(f"{name} has {shape[0]} inputs, and blocks of this type have {weights}")
        head.write(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += -(-math.prod(shape) // weights * size // ALIGNMENT) * ALIGNMENT
    pools = {}
    with open(path, "wb") as file:
        file.write(head.getvalue())
        for name, shape, kind in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            n = math.prod(shape)
            if kind == F32:
                mean = 0.0 if name.endswith("bias") else 1.0
                file.write(struct.pack(f"<{n}f", *(rng.uniform(mean - 0.2, mean + 0.2) for _ in range(n))))
                continue
            n_in = math.prod(shape[:-1]) if name.startswith("v.patch") else shape[0]
            if (kind, n_in) not in pools:
                blocks = random_blocks(TYPES["q8_0"], n_in, rng) if kind == Q8_0 else None
                pools[kind, n_in] = b"".join(rng.choices(blocks, k=POOL_BYTES // 34)) if blocks else f16_pool(n_in**-0.5, rng)
            pool, (weights, size) = pools[kind, n_in], sizes[kind]
            left = n // weights
            while left > 0:
                begin = rng.randrange(len(pool) // size // 2)
                take = min(left, len(pool) // size - begin)
                file.write(pool[begin * size:(begin + take) * size])
                left -= take
    print(f"{path}: {offset / 1e6:.0f} MB of weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", required=True, choices=[*SHAPES])
    parser.add_argument("--vocabulary", required=True, help="a GGUF file whose vocabulary is copied")
    parser.add_argument("--layers", type=int, help="of the text model; default: the shape's")
    parser.add_argument("--vision-layers", type=int, help="of the projector; default: the shape's")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    o = parser.parse_args()
    for name, value in SHAPES[o.shape].items():
        if getattr(o, name, None) is None:
            setattr(o, name, value)
    o.vision_layers = o.vision_layers or o.v_layers
    rng = random.Random(o.seed)
    o.folder.mkdir(parents=True, exist_ok=True)
    vocabulary, n_vocab = vocabulary_of(o.vocabulary, o.names)
    written(o.folder / "model.gguf", [*text_facts(o, n_vocab), *vocabulary], text_tensors(o, n_vocab), rng)
    written(o.folder / "mmproj.gguf", projector_facts(o), projector_tensors(o), rng)


if __name__ == "__main__":
    main()
