#!/usr/bin/env python3
"""Writes a Llama-shaped GGUF file again in the forms that peers read, with the same vocabulary and the same weights as far as the form
can hold them. Needs numpy, which the peers' environments have.

    bench/peer_weights.py --as bf16|w8a8|w4a8 MODEL.gguf FOLDER     safetensors, for vLLM
    bench/peer_weights.py --as q8_0 MODEL.gguf OUT.gguf             for OpenVINO
"""

import argparse
import json
import pathlib
import struct

import numpy as np

from gguf_reader import Reader
from process import Failure

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
GROUP = 32  # weights that share a scale in w4a8
CONTROL, USER_DEFINED = 3, 4  # kinds of tokens
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm"}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


class File:
    """A GGUF file: its facts, and its tensors as they are asked for."""

    def __init__(self, path):
        with open(path, "rb") as file:
            reader = Reader(file)
            if file.read(4) != b"GGUF":
                raise Failure(f"{path} isn't a GGUF file")
            reader.scalar("<I")  # version
            n_tensors, n_facts = reader.scalar("<Q"), reader.scalar("<Q")
            begin = file.tell()
            self.facts = {}
            for _ in range(n_facts):
                name = reader.string()
                self.facts[name] = reader.value(reader.scalar("<I"))
            self.n_facts, end = n_facts, file.tell()
            file.seek(begin)
            self.fact_bytes = file.read(end - begin)
            self.tensors = {}
            for _ in range(n_tensors):
                name = reader.string()
                shape = [reader.scalar("<Q") for _ in range(reader.scalar("<I"))]
                self.tensors[name] = (shape, reader.scalar("<I"), reader.scalar("<Q"))
            alignment = self.facts.get("general.alignment", 32)
            self.data = np.memmap(path, np.uint8, "r", -(-file.tell() // alignment) * alignment)
        if self.facts["general.architecture"] != "llama":
            raise Failure(f"{path} is of the architecture {self.facts['general.architecture']}; peers get Llama's shape only")

    def fact(self, name):
        return self.facts[f"llama.{name}"]

    def tensor(self, name):
        """[rows, columns] or [columns], float32"""
        shape, kind, offset = self.tensors[name]
        count, data = int(np.prod(shape)), self.data[offset:]
        if kind == F32:
            values = data[:4 * count].view("<f4")
        elif kind == F16:
            values = data[:2 * count].view("<f2").astype(np.float32)
        elif kind == Q4_1:
            blocks = data[:count // 32 * 20].reshape(-1, 20)
            scale, least = (blocks[:, at:at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
            values = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1) * scale + least
        elif kind == Q8_0:
            blocks = data[:count // 32 * 34].reshape(-1, 34)
            values = blocks[:, 2:].view(np.int8) * blocks[:, :2].copy().view("<f2").astype(np.float32)
        else:
            raise Failure(f"{name} has a type that isn't read here ({kind})")
        return values.reshape(shape[::-1])


def bfloat16(values):
    """Their upper halves, rounded to the nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def scaled(values, most):
    """(whole numbers in [-most, most], scales) of the last axis."""
    scales = np.maximum(np.abs(values).max(-1, keepdims=True), 1e-8) / most
    return np.rint(values / scales).astype(np.int8), scales


def int8_parts(values):
    whole, scales = scaled(values, 127)
    return {"": ("I8", whole), "_scale": ("BF16", bfloat16(scales))}


def int4_parts(values):
    rows, columns = values.shape
    whole, scales = scaled(values.reshape(rows, -1, GROUP), 7)
    nibbles = (whole.reshape(rows, columns // 8, 8) + 8).astype(np.uint32)
    packed = (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return {"_packed": ("I32", packed), "_scale": ("BF16", bfloat16(scales[..., 0])), "_shape": ("I64", np.array(values.shape, np.int64))}


def bf16_parts(values):
    return {"": ("BF16", bfloat16(values))}


FORMS = {"bf16": (bf16_parts, None), "w8a8": (int8_parts, ("int-quantized", dict(num_bits=8, strategy="channel"))),
         "w4a8": (int4_parts, ("pack-quantized", dict(num_bits=4, strategy="group", group_size=GROUP)))}


def unpermuted(values, heads):
    """GGUF files have the rows of queries and keys in the order of neighbouring pairs; here halves rotate together."""
    return values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


def named_tensors(file, parts_of):
    """(name, type, values) as transformers names them."""
    heads = {"attn_q": file.fact("attention.head_count"), "attn_k": file.fact("attention.head_count_kv")}
    for name in file.tensors:
        values = file.tensor(name)
        if name in WHOLE:
            yield WHOLE[name], "BF16", bfloat16(values)
            continue
        _, layer, short, _ = name.split(".")
        if short in heads:
            values = unpermuted(values, heads[short])
        for ending, (kind, part) in (parts_of if values.ndim == 2 else bf16_parts)(values).items():
            yield f"model.layers.{layer}.{NAMES[short]}.weight{ending}", kind, part


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, kind, values in tensors:
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    head = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for _, _, values in tensors:
            out.write(np.ascontiguousarray(values).tobytes())


def quantization(form):
    """As compressed-tensors writes it into a model's config.json."""
    name, weights = form
    group = {"targets": ["Linear"], "weights": weights | dict(type="int", symmetric=True, dynamic=False)}
    if name == "int-quantized":
        group["input_activations"] = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    return {"quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}}


def config(file, form):
    heads = file.fact("attention.head_count")
    found = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": file.fact("embedding_length"), "intermediate_size": file.fact("feed_forward_length"),
        "num_hidden_layers": file.fact("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": file.fact("attention.head_count_kv"), "head_dim": file.facts.get("llama.attention.key_length", file.fact("embedding_length") // heads),
        "rms_norm_eps": file.fact("attention.layer_norm_rms_epsilon"), "rope_theta": file.fact("rope.freq_base"),
        "max_position_embeddings": file.fact("context_length"), "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": len(file.facts["tokenizer.ggml.tokens"]), "bos_token_id": file.facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": file.facts["tokenizer.ggml.eos_token_id"]}
    return found | ({"quantization_config": quantization(form)} if form else {})


def tokenizer(file):
    """tokenizer.json of a byte-pair vocabulary that keeps digits apart, as SmolLM2 has."""
    if (file.facts["tokenizer.ggml.model"], file.facts["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise Failure(f"the vocabulary {file.facts['tokenizer.ggml.pre']} isn't known here: only SmolLM's")
    tokens, kinds = file.facts["tokenizer.ggml.tokens"], file.facts["tokenizer.ggml.token_type"]
    added = [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind == CONTROL} for number, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, USER_DEFINED)]
    bytes_apart = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_apart]},
            "post_processor": None, "decoder": bytes_apart,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: number for number, token in enumerate(tokens)}, "merges": file.facts["tokenizer.ggml.merges"]}}


def write_folder(file, folder, name):
    parts_of, form = FORMS[name]
    tokens = file.facts["tokenizer.ggml.tokens"]
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"config.json": config(file, form), "tokenizer.json": tokenizer(file),
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                                       "chat_template": file.facts.get("tokenizer.chat_template"),
                                       **{f"{kind}_token": tokens[file.facts[f"tokenizer.ggml.{kind}_token_id"]] for kind in ("bos", "eos")}}}
    for each, content in texts.items():
        (folder / each).write_text(json.dumps(content, ensure_ascii=False))
    write_safetensors(folder / "model.safetensors", list(named_tensors(file, parts_of)))


def q8_0_blocks(values):
    whole, scales = scaled(values.reshape(-1, 32), 127)
    return np.concatenate([scales.astype("<f2").view(np.uint8), whole.view(np.uint8)], axis=1).tobytes()


def write_q8_0(file, path):
    """The same file with all matrices in Q8_0; its facts are copied, general.file_type too: OpenVINO only asks that it is there."""
    heads, data, offset = [], [], 0
    for name, (shape, kind, _) in file.tensors.items():
        matrix = len(shape) == 2
        data.append(q8_0_blocks(file.tensor(name)) if matrix else file.tensor(name).tobytes())
        heads.append(struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) +
                     struct.pack("<IQ", Q8_0 if matrix else F32, offset))
        offset += -(-len(data[-1]) // 32) * 32
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(heads), file.n_facts) + file.fact_bytes + b"".join(heads))
        for each in data:
            out.write(bytes(-out.tell() % 32) + each)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="form", required=True, choices=[*FORMS, "q8_0"])
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    o = parser.parse_args()
    file = File(o.model)
    if o.form == "q8_0":
        write_q8_0(file, o.out)
    else:
        write_folder(file, o.out, o.form)


if __name__ == "__main__":
    main()
