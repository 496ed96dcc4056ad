#!/usr/bin/env python3
"""Writes a GGUF file with random weights, in a given shape and in the types that llama-quantize would choose for it: for
speed, not for sense. The vocabulary is copied from another file.

    bench/random_model.py --types q4_k_m --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf 1b.gguf
    bench/random_model.py --shape qwen3-30b-a3b --layers 4 --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf experts.gguf
"""

import argparse
import io
import math
import random
import struct

from gguf_reader import STRING, Reader

UINT32, FLOAT32, ARRAY = 4, 6, 9
ALIGNMENT = 32
POOL = 1024  # different blocks of a type and scale


class Type:
    def __init__(self, number, weights, size, d, spread, m=None, centre=0.0):
        self.number, self.weights, self.size = number, weights, size
        self.d, self.spread = d, spread    # offset of the f16 scale; standard deviation of random weights with d = 1
        self.m, self.centre = m, centre    # offset of the f16 minimum; m / d that makes the mean 0


TYPES = {
    "f32": Type(0, 1, 4, None, 1.0),
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
    "mxfp4": Type(39, 32, 17, None, 5.85),  # one byte: a power of two
}
MIXES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k"}  # with Q6_K where more bits pay
FILE_TYPES = {"f32": 0, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q4_k_m": 15, "q5_k": 16, "q5_k_m": 17,
              "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38}  # general.file_type, without which OpenVINO reads no file

# Defaults of the options; how many layers there are says nothing of speed, so experts have few.
SHAPES = {
    "llama-3.2-1b": dict(architecture="llama", embd=2048, ff=8192, layers=16, heads=32, kv_heads=8, head_size=64,
                         experts=0, experts_used=0, expert_ff=0),
    "qwen3-30b-a3b": dict(architecture="qwen3moe", embd=2048, ff=6144, layers=4, heads=32, kv_heads=4, head_size=128,
                          experts=128, experts_used=8, expert_ff=768),
    "gpt-oss-20b": dict(architecture="gpt-oss", embd=2880, ff=2880, layers=4, heads=64, kv_heads=8, head_size=64,
                        experts=32, experts_used=4, expert_ff=2880),
    "qwen3.5-4b": dict(architecture="qwen35", embd=2560, ff=9216, layers=8, heads=16, kv_heads=4, head_size=256,
                       experts=0, experts_used=0, expert_ff=0),
    "qwen3-next-80b-a3b": dict(architecture="qwen3next", embd=2048, ff=5120, layers=8, heads=16, kv_heads=2, head_size=256,
                               experts=512, experts_used=10, expert_ff=512),
}


HYBRIDS = ("qwen35", "qwen3next")
TAPS = 4  # of the convolutions of their recurrent layers
FULL_EVERY = 4  # of so many layers the last one attends


def is_recurrent(o, layer):
    return o.architecture in HYBRIDS and (layer + 1) % FULL_EVERY != 0


def is_shared(o):
    """Whether each layer has an expert for all tokens, as wide as one of the others."""
    return o.architecture == "qwen3next"


# For rows that are no whole number of such blocks, as llama-quantize has it.
SMALLER_BLOCKS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"}


def type_of(mix, name, layer, n_layer, n_inputs):
    """What llama-quantize (llama-quant.cpp) chooses for a matrix of a file of the type `mix`."""
    wanted = wanted_type(mix, name, layer, n_layer)
    return SMALLER_BLOCKS.get(wanted, wanted) if n_inputs % TYPES[wanted].weights else wanted


def wanted_type(mix, name, layer, n_layer):
    """The same for rows that are long enough."""
    if mix == "mxfp4":  # is for experts
        return "mxfp4" if name.endswith("_exps") else "q8_0"
    if name in ("token_embd", "output"):
        return mix if mix in ("f32", "q8_0") else "q6_k"
    if mix not in MIXES:
        return mix
    eighth = n_layer // 8
    more_bits = layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2
    return "q6_k" if more_bits and name in ("attn_v", "ffn_down", "ffn_down_exps") else MIXES[mix]


def vocabulary_facts(path):
    """Key, bytes in the file, and value of each entry of the vocabulary."""
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
            end = file.tell()
            if key.startswith("tokenizer."):
                file.seek(begin)
                yield key, file.read(end - begin), value


def copied_facts(path):
    """The vocabulary's entries as they stand in the file, and the number of tokens."""
    facts = list(vocabulary_facts(path))
    return [entry for _, entry, _ in facts], next((len(value) for key, _, value in facts if key == "tokenizer.ggml.tokens"), 0)


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def fact(key, value):
    if isinstance(value, str):
        return string(key) + struct.pack("<I", STRING) + string(value)
    if isinstance(value, list):
        return string(key) + struct.pack(f"<IIQ{len(value)}I", ARRAY, UINT32, len(value), *value)
    return string(key) + (struct.pack("<If", FLOAT32, value) if isinstance(value, float)
                          else struct.pack("<II", UINT32, value))


def random_blocks(kind, n_in, rng):
    """POOL random blocks whose weights have a standard deviation of n_in ** -0.5."""
    d = n_in ** -0.5 / kind.spread
    if kind is TYPES["f32"]:
        return [struct.pack("<f", rng.gauss(0, d)) for _ in range(POOL)]
    blocks = []
    for _ in range(POOL):
        block = bytearray(rng.randbytes(kind.size))
        if kind.d is None:
            block[0] = round(math.log2(d)) + 128
        else:
            struct.pack_into("<e", block, kind.d, d)
        if kind.m is not None:
            struct.pack_into("<e", block, kind.m, d * kind.centre)
        blocks.append(bytes(block))
    return blocks


def matrices(o, n_vocab):
    """[(name, layer or None, [n_in, n_out] or [n_in, n_out, n])]"""
    yield "token_embd", None, [o.embd, n_vocab]
    if o.architecture in ("gpt-oss", "qwen3next"):  # of the others the embedding is the output matrix, too
        yield "output", None, [o.embd, n_vocab]
    q, kv = o.heads * o.head_size, o.kv_heads * o.head_size
    values, channels = o.states * o.state_size, (o.states + 2 * o.state_keys) * o.state_size
    attention = (("attn_q", o.embd, 2 * q if o.architecture in HYBRIDS else q), ("attn_k", o.embd, kv),
                 ("attn_v", o.embd, kv), ("attn_output", q, o.embd))
    gates = ((("ssm_ba", o.embd, 2 * o.states),) if o.architecture == "qwen3next" else
             (("ssm_alpha", o.embd, o.states), ("ssm_beta", o.embd, o.states)))
    recurrent = (("attn_qkv", o.embd, channels), ("attn_gate", o.embd, values), *gates, ("ssm_out", values, o.embd))
    for layer in range(o.layers):
        for name, n_in, n_out in recurrent if is_recurrent(o, layer) else attention:
            yield name, layer, [n_in, n_out]
        more = ("_exps", o.expert_ff, [o.experts]) if o.experts else ("", o.ff, [])
        for name, n_in, n_out in (("ffn_gate", o.embd, more[1]), ("ffn_up", o.embd, more[1]),
                                  ("ffn_down", more[1], o.embd)):
            yield name + more[0], layer, [n_in, n_out] + more[2]
            if is_shared(o):
                yield name + "_shexp", layer, [n_in, n_out]


def plain(o):
    """[(name with its ending, layer or None, shape, mean, spread)] of what is never quantised."""
    yield "output_norm.weight", None, [o.embd], 1, 0.3
    gpt_oss = o.architecture == "gpt-oss"
    behind = o.architecture in ("gpt-oss", *HYBRIDS)  # the name of the feed-forward's norm
    for layer in range(o.layers):
        for name in ("attn_norm", "post_attention_norm" if behind else "ffn_norm"):
            yield f"{name}.weight", layer, [o.embd], 1, 0.3
        if is_recurrent(o, layer):
            yield "ssm_conv1d.weight", layer, [TAPS, (o.states + 2 * o.state_keys) * o.state_size], 0, 0.5
            yield "ssm_a", layer, [o.states], -0.5, 0.2
            yield "ssm_dt.bias", layer, [o.states], 0, 1
            yield "ssm_norm.weight", layer, [o.state_size], 1, 0.3
        elif o.architecture in ("qwen3moe", *HYBRIDS):
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{name}.weight", layer, [o.head_size], 1, 0.3
        if o.experts:
            yield "ffn_gate_inp.weight", layer, [o.embd, o.experts], 0, 2 * o.embd**-0.5
        if is_shared(o):
            yield "ffn_gate_inp_shexp.weight", layer, [o.embd, 1], 0, o.embd**-0.5
        if gpt_oss:
            yield "attn_sinks.weight", layer, [o.heads], 0, 1
            for name, shape in (("attn_q", [o.heads * o.head_size]), ("attn_k", [o.kv_heads * o.head_size]),
                                ("attn_v", [o.kv_heads * o.head_size]), ("attn_output", [o.embd]),
                                ("ffn_gate_inp", [o.experts]), ("ffn_gate_exps", [o.expert_ff, o.experts]),
                                ("ffn_up_exps", [o.expert_ff, o.experts]), ("ffn_down_exps", [o.embd, o.experts])):
                yield f"{name}.bias", layer, shape, 0, 0.1


def facts_of(o, n_vocab):
    a = o.architecture
    facts = {"general.architecture": a, "general.name": f"random {o.types}", "general.file_type": FILE_TYPES[o.types],
             f"{a}.block_count": o.layers,
             f"{a}.context_length": o.context, f"{a}.embedding_length": o.embd, f"{a}.feed_forward_length": o.ff,
             f"{a}.attention.head_count": o.heads, f"{a}.attention.head_count_kv": o.kv_heads,
             f"{a}.attention.key_length": o.head_size, f"{a}.attention.value_length": o.head_size,
             f"{a}.rope.dimension_count": o.head_size, f"{a}.rope.freq_base": 500000.0,
             f"{a}.attention.layer_norm_rms_epsilon": 1e-5, f"{a}.vocab_size": n_vocab}
    if o.experts:
        facts |= {f"{a}.expert_count": o.experts, f"{a}.expert_used_count": o.experts_used,
                  f"{a}.expert_feed_forward_length": o.expert_ff}
    if is_shared(o):
        facts[f"{a}.expert_shared_feed_forward_length"] = o.expert_ff
    if a in HYBRIDS:
        facts |= {f"{a}.ssm.conv_kernel": TAPS, f"{a}.ssm.inner_size": o.states * o.state_size,
                  f"{a}.ssm.state_size": o.state_size, f"{a}.ssm.time_step_rank": o.states,
                  f"{a}.ssm.group_count": o.state_keys, f"{a}.full_attention_interval": FULL_EVERY,
                  f"{a}.rope.dimension_count": o.head_size // 4}
    if a == "qwen35":
        pairs = o.head_size // 8  # that turn: by time, height and width
        facts[f"{a}.rope.dimension_sections"] = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
    if a == "gpt-oss":
        facts |= {f"{a}.attention.sliding_window": 128, f"{a}.rope.scaling.type": "yarn",
                  f"{a}.rope.scaling.factor": 32.0, f"{a}.rope.scaling.original_context_length": 4096}
    return [fact(key, value) for key, value in facts.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--types", default="q4_k_m", choices=[*MIXES, *TYPES])
    parser.add_argument("--vocabulary", required=True, help="a GGUF file whose vocabulary is copied")
    parser.add_argument("--shape", default="llama-3.2-1b", choices=[*SHAPES], help="default llama-3.2-1b")
    for name in ("embd", "ff", "layers", "heads", "kv-heads", "head-size", "experts", "experts-used", "expert-ff"):
        parser.add_argument(f"--{name}", type=int, help="default: the shape's")
    parser.add_argument("--states", type=int, default=32, help="of a hybrid's recurrent layers, default 32")
    parser.add_argument("--state-keys", type=int, default=16, help="heads of keys that these share, default 16")
    parser.add_argument("--state-size", type=int, default=128, help="sides of each, default 128")
    parser.add_argument("--context", type=int, default=8192, help="default 8192")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    o = parser.parse_args()
    for name, value in SHAPES[o.shape].items():
        if getattr(o, name, None) is None:
            setattr(o, name, value)
    vocabulary, n_vocab = copied_facts(o.vocabulary)
    rng = random.Random(o.seed)

    def full(name, layer):
        return name if layer is None else f"blk.{layer}.{name}"

    tensors = []  # name, shape, type's number, bytes, how to make them
    for name, layer, shape, *spread in plain(o):
        tensors.append((full(name, layer), shape, 0, 4 * math.prod(shape), spread))
    for name, layer, shape in matrices(o, n_vocab):
        kind = TYPES[type_of(o.types, name, layer, o.layers, shape[0])]
        if shape[0] % kind.weights:
            raise SystemExit(f"{name} has {shape[0]} inputs, and blocks of this type have {kind.weights}")
        tensors.append((full(f"{name}.weight", layer), shape, kind.number,
                        math.prod(shape) // kind.weights * kind.size, kind))

    facts = [*facts_of(o, n_vocab), *vocabulary]
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
            if not isinstance(kind, Type):
                mean, spread = kind
                n = math.prod(shape)
                file.write(struct.pack(f"<{n}f", *(rng.uniform(mean - 1.7 * spread, mean + 1.7 * spread) for _ in range(n))))
                continue
            if (number, shape[0]) not in pools:
                pools[number, shape[0]] = random_blocks(kind, shape[0], rng)
            pool = pools[number, shape[0]]
            for _ in range(math.prod(shape[1:])):
                file.write(b"".join(rng.choices(pool, k=shape[0] // kind.weights)))
    print(f"{o.out}: {offset / 1e6:.0f} MB of weights in {o.types}")


if __name__ == "__main__":
    main()
