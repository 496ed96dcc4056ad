"""The fixtures' models (tests/vision/fixtures) with zeros between their numbers, in shapes that GPUs' kernels take: heads of 64 values, of which
the first 16 are the model's, and rows four times as wide. They compute what the fixtures compute, but for the order of sums."""

import itertools
import math
import struct
from array import array

from gguf_edit import Gguf

FLOAT32, UINT32 = 6, 4
WIDER = 4  # heads and rows: their mean square is a fourth, and so is what is added to it
HEAD, UNIT = 16, 64  # of a fixture; inputs of a matrix come in such pieces
EMBD, HEADS, FF, OTHER = range(4)
TEXT = {"token_embd": (EMBD, OTHER), "output": (EMBD, OTHER), "attn_q": (EMBD, HEADS), "attn_k": (EMBD, HEADS), "attn_v": (EMBD, HEADS),
        "attn_output": (HEADS, EMBD), "attn_q_norm": (HEADS,), "attn_k_norm": (HEADS,), "ffn_gate_inp": (EMBD, OTHER)}
PROJECTOR = {"mm.input_projection.weight": (EMBD, OTHER), "mm.model.fc.weight": (OTHER, EMBD), "mm.model.mlp.3.weight": (OTHER, EMBD),
             "mm.model.mlp.3.bias": (EMBD,), "mm.2.weight": (OTHER, EMBD), "mm.2.bias": (EMBD,), "v.token_embd.img_break": (EMBD,)}


def axes_of(name):
    """What the sides of a text model's tensor are."""
    part = name.split(".")[-2]
    if name.endswith(".bias"):
        return TEXT[part][1:]
    if part.startswith(("ffn_gate", "ffn_up")) and part != "ffn_gate_inp":
        return EMBD, FF, OTHER
    if part.startswith("ffn_down"):
        return FF, EMBD, OTHER
    return TEXT.get(part, (EMBD,))  # the others are norms


def place(axis, i):
    return i // HEAD * HEAD * WIDER + i % HEAD if axis == HEADS else i


def wide(axis, n):
    return {EMBD: n * WIDER, HEADS: n * WIDER, FF: -(-n // UNIT) * UNIT, OTHER: n}[axis]


def widen(tensor, axes, factor=1.0):
    shape, kind, content = tensor
    axes = (*axes, *[OTHER] * len(shape))[:len(shape)]
    size = 2 if kind == 1 else 4
    content = content[:math.prod(shape) * size]  # without padding
    if factor != 1:
        assert kind == 0
        content = array("f", (factor * x for x in array("f", content))).tobytes()
    new = [wide(axis, n) for axis, n in zip(axes, shape)]
    data = bytearray(math.prod(new) * size)
    piece = HEAD if axes[0] == HEADS else shape[0]
    for row, others in enumerate(itertools.product(*(range(n) for n in reversed(shape[1:])))):
        to = 0
        for axis, n, i in zip(reversed(axes[1:]), reversed(new[1:]), others):
            to = to * n + place(axis, i)
        for at in range(0, shape[0], piece):
            begin, end = (to * new[0] + place(axes[0], at)) * size, (row * shape[0] + at) * size
            data[begin:begin + piece * size] = content[end:end + piece * size]
    tensor[:] = [new, kind, bytes(data)]


def number(gguf, key):
    return struct.unpack("<I", gguf.facts[key][4:])[0]


def widen_text(model: Gguf):
    """Norms divide by the root of a fourth of the mean square, so their weights are half as large."""
    name = next(key for key in model.facts if key.endswith(".block_count")).split(".")[0]
    gemma, llama4 = name == "gemma3", name == "llama4"
    for key, tensor in model.tensors.items():
        factor = 0.5 if "norm" in key else 1.0
        if gemma:  # embeddings are multiplied by the root of their width; scores divided by that of a head's
            factor *= {"token_embd.weight": 0.5, "output_norm.weight": 2.0}.get(key, 2.0 if "attn_q_norm" in key else 1.0)
        if llama4 and ".attn_q." in key and int(key.split(".")[1]) % 4 == 3:
            factor = 4.0  # its other layers' queries and keys are normalised without weights
        widen(tensor, axes_of(key), factor)
    for key in ("embedding_length", "attention.key_length", "attention.value_length"):
        if f"{name}.{key}" in model.facts:
            model.set(f"{name}.{key}", (UINT32, WIDER * number(model, f"{name}.{key}")))
    for key in (f"{name}.feed_forward_length", f"{name}.expert_feed_forward_length"):
        if key in model.facts:
            model.set(key, (UINT32, wide(FF, number(model, key))))
    if f"{name}.attention.key_length" not in model.facts:
        for key in ("key", "value"):
            model.set(f"{name}.attention.{key}_length", (UINT32, WIDER * HEAD))
    model.set(f"{name}.rope.dimension_count", (UINT32, HEAD))
    if not gemma:
        model.set(f"{name}.attention.scale", (FLOAT32, HEAD**-0.5 / (4 if llama4 else 1)))
    eps = f"{name}.attention.layer_norm_rms_epsilon"
    model.set(eps, (FLOAT32, struct.unpack("<f", model.facts[eps][4:])[0] / WIDER))


def widen_projector(projector: Gguf):
    for key, tensor in projector.tensors.items():
        plane = {"fc2.weight": (OTHER, EMBD), "fc2.bias": (EMBD,)} if "deepstack" in key else {}
        axes = PROJECTOR.get(key) or next((axes for end, axes in plane.items() if key.endswith(end)), None)
        if axes:
            widen(tensor, axes)
    key = "clip.vision.projection_dim"
    projector.set(key, (UINT32, WIDER * number(projector, key)))
