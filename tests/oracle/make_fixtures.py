#!/usr/bin/env python3
"""Makes the fixtures of oracle_test.cpp: tiny random models, and the logits that the model authors' code computes.

For each row of cases.py: a model of the `transformers` package with every parameter random, its logits for 60 tokens in
f32 on the CPU (as it is, and with keys and values rounded to f16, as a cache holds them), and the same model as GGUF,
written by llama.cpp's own converter. Only the converter's vocabulary step is
replaced: it refuses a tokenizer that it doesn't know, and nobody tokenizes here. Weights and tokens come from numpy's
generators, seeded by name, so they are the same on every machine; logits may differ in their last bits.

    python3 -m venv ENV && ENV/bin/pip install -r tests/oracle/requirements.txt
    ENV/bin/python tests/oracle/make_fixtures.py            # writes tests/oracle/fixtures
    ENV/bin/python tests/oracle/make_fixtures.py --check    # makes them anew and compares
"""
import argparse
import copy
import json
import os
import sys
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from cases import CASES  # noqa: E402
from shapes import COMMON  # noqa: E402

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("COPPICE_CACHE", Path.home() / ".cache/coppice"))
N_TOKENS = 60
# Larger than the usual 1: scores then spread enough for a few keys to outweigh the others, as in trained models.
GAIN = 1.5


def generator(*words):
    return np.random.default_rng(zlib.crc32("/".join(words).encode()))


def randomize(model, name):
    """Every parameter and every buffer that is saved. What is initialised to a constant keeps it as its middle: 1 or 0 for
    norms (some families store a norm's distance from 1), 0 for biases."""
    saved = set(model.state_dict())
    tensors = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n in saved}
    for tensor_name, tensor in tensors.items():
        rng, shape = generator(name, tensor_name), tuple(tensor.shape)
        if tensor.dim() >= 2:
            value = rng.standard_normal(shape) * GAIN / np.sqrt(shape[-1])
        else:
            # Decays: so that a state remembers some ten tokens.
            middle = -2 if tensor_name.endswith("A_log") else tensor.detach().float().mean().round().item()
            value = rng.uniform(-0.5, 0.5, shape) + middle
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.asarray(value, dtype=np.float32)))


def build(name, case):
    """The model, ready to run."""
    text = "Text" if case.get("text") else ""
    config = getattr(transformers, f"{case['model']}{text}Config")(**COMMON | copy.deepcopy(case["config"]))
    torch.manual_seed(0)
    model = getattr(transformers, f"{case['model']}ForCausalLM")._from_config(
        config, attn_implementation="eager", experts_implementation="eager")
    model = model.float().eval()
    randomize(model, name + case.get("seed", ""))
    return model


@contextmanager
def margins(found):
    """Appends the smallest distance of each choice of experts: between the least score taken and the largest one left, in
    parts of the spread of all."""
    plain = torch.topk, torch.Tensor.topk

    def recording(scores, k, *args, **kwargs):
        if k < scores.shape[-1]:
            logits = scores.log() if scores.min() > 0 else scores  # of probabilities, up to a constant
            best = plain[0](logits, k + 1, dim=-1).values
            found.append(((best[..., -2] - best[..., -1]) / logits.std(-1)).min().item())
        return plain[0](scores, k, *args, **kwargs)

    torch.topk = torch.Tensor.topk = recording
    try:
        yield
    finally:
        torch.topk, torch.Tensor.topk = plain


@contextmanager
def f16_cache(model):
    """Attention sees keys and values rounded to f16."""
    module = sys.modules[type(model).__module__]
    plain = module.eager_attention_forward

    def rounded(layer, query, key, value, *args, **kwargs):
        return plain(layer, query, key.half().to(key.dtype), value.half().to(value.dtype), *args, **kwargs)

    module.eager_attention_forward = rounded
    try:
        yield
    finally:
        module.eager_attention_forward = plain


def run(model, tokens):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits.float().numpy().astype("<f4")


def dummy_vocabulary(converter, markers=()):
    """markers: the texts of further special tokens, from 3 on."""
    writer, n = converter.gguf_writer, COMMON["vocab_size"]
    special = ["<unk>", "<s>", "</s>", *markers]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(special + [f"w{i}" for i in range(len(special), n)])
    writer.add_token_scores([0.0] * n)
    writer.add_token_types([2] + [3] * (len(special) - 1) + [1] * (n - len(special)))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def round_experts(model, name):
    """Gives the experts the nearest weights that the type holds; its blocks go along the inputs, which gpt-oss has in front."""
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[name]
    for name, tensor in model.named_parameters():
        if "experts" in name and tensor.dim() == 3:
            weights = tensor.detach().transpose(1, 2).contiguous().numpy()
            rounded = quants.dequantize(quants.quantize(weights, kind), kind)
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(rounded).transpose(1, 2))


def quantize_experts(writer, name):
    """Lets the writer store experts in the type."""
    from gguf import GGMLQuantizationType, quants

    kind, plain = GGMLQuantizationType[name], writer.add_tensor

    def add(tensor_name, data, raw_dtype=None, **more):
        if not tensor_name.endswith("_exps.weight"):
            return plain(tensor_name, data, raw_dtype=raw_dtype, **more)
        blocks = quants.quantize(data, kind)
        assert (quants.dequantize(blocks, kind) == data).all(), "the checkpoint has other weights than the file"
        return plain(tensor_name, blocks, raw_dtype=kind, **more)

    writer.add_tensor = add


def add_settings(writer, case):
    """Those that llama.cpp's converter doesn't know."""
    for key, value in case.get("settings", {}).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{writer.arch}.{key}", value)


def convert(model, name, to, case):
    """Writes GGUF, f32 but for experts in the case's type, with llama.cpp's converter, and the case's settings."""
    import conversion
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / name  # the folder's name becomes general.name
        model.save_pretrained(checkpoint)
        # Gemma's converter cuts the embedding to this many rows.
        if "saved" in case:
            saved = json.loads((checkpoint / "config.json").read_text())
            (checkpoint / "config.json").write_text(json.dumps(saved | case["saved"]))
        vocabulary = {f"w{i}": i for i in range(COMMON["vocab_size"])}
        (checkpoint / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
        kind = conversion.get_model_class(type(model).__name__)
        kind.no_mtp = True  # of Qwen's: it would look for layers that guess further tokens
        writer = kind(checkpoint, gguf.LlamaFileType.ALL_F32, to, eager=True)
        for part in (writer, getattr(writer, "impl", writer)):
            part.set_vocab = lambda part=part: dummy_vocabulary(part)
        if "experts" in case:
            quantize_experts(writer.gguf_writer, case["experts"])
        add_settings(writer.gguf_writer, case)
        writer.write()


def make(name, folder):
    case = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    model = build(name, case)
    if "experts" in case:
        round_experts(model, case["experts"])
    tokens = generator(name, "tokens").integers(3, COMMON["vocab_size"], N_TOKENS).tolist()
    found = []
    with margins(found):
        logits = run(model, tokens)
    logits.tofile(folder / "logits.f32")
    with f16_cache(model):
        rounded = run(model, tokens)
    rounded.tofile(folder / "logits-f16-cache.f32")
    exact = run(model.double(), tokens)  # the norms and the softmax stay in f32
    model.float()
    away = [np.sqrt(((x - exact) ** 2).mean() / (exact**2).mean()) for x in (logits, rounded)]
    marks = {str(position): what for position, what in case.get("marks", {}).items()}
    activation = getattr(model.config, "hidden_activation", None) or getattr(model.config, "hidden_act", "silu")
    fixture = {
        "made_with": f"transformers {transformers.__version__}",
        "activation": activation,
        "marks": marks,
        "tokens": tokens,
    }
    if "experts" in case:
        fixture["experts"] = case["experts"]
    (folder / "fixture.json").write_text(json.dumps(fixture) + "\n")
    convert(model, name, folder / "model.gguf", case)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:16} {size / 1000:6.0f} kB   logits' rms {exact.std():.2f}; from f64: f32 {away[0]:.1e}, cache in f16 {away[1]:.1e}"
          + (f"; experts apart by {min(found):.1e}" if found else ""), flush=True)


def differences(name, made, kept):
    """What is not the same in two folders of fixtures, as sentences."""
    for file in ("model.gguf", "fixture.json"):
        if (made / name / file).read_bytes() != (kept / name / file).read_bytes():
            yield f"{name}/{file} differs"
    for file in ("logits.f32", "logits-f16-cache.f32"):
        a, b = (np.fromfile(folder / name / file, "<f4") for folder in (made, kept))
        if a.shape != b.shape or np.abs(a - b).max() > 1e-3 * b.std():
            yield f"{name}/{file} differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CASES), help="rows of cases.py; all when none is named")
    parser.add_argument("--check", action="store_true", help="make them anew elsewhere, and compare")
    parser.add_argument("--fixtures", type=Path, default=HERE / "fixtures")
    parser.add_argument("--llama", type=Path, default=CACHE / "llama.cpp-0.3.36", help="llama.cpp's sources")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:0] = [str(options.llama), str(options.llama / "gguf-py")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.check else options.fixtures
        for name in options.names:
            make(name, folder / name)
        if options.check:
            wrong = [line for name in options.names for line in differences(name, folder, options.fixtures)]
            print("\n".join(wrong) or f"{len(options.names)} fixtures are the same")
            return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
