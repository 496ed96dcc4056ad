#!/usr/bin/env python3
"""Makes the fixtures of vision tests: tiny random vision models, a picture, and what the model authors' code computes from it.

For each row of vision_cases.py, tests/vision/fixtures/NAME/ gets
    model.gguf, mmproj.gguf   the text model and the projector, f32, by llama.cpp's converter
    picture.png               tiles beside each other
    rows.f32                  [tiles, rows of a tile, width]: what the projector makes of each tile
    prompt.json               text and tiles: a token's id, or -1 - r for the r-th of all rows above
    served.json               what tests/e2e/test_images.py asks for, and what the model answers; served.png: the first tile, where there are several
    logits.f32                [positions, logits] of that prompt; logits-f16-cache.f32: with keys and values rounded to f16

Run as make_fixtures.py says."""
import json
import os
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import sys  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from PIL import Image  # noqa: E402

from make_fixtures import CACHE, HERE, add_settings, dummy_vocabulary, f16_cache, generator, randomize  # noqa: E402
from shapes import COMMON  # noqa: E402
from vision_cases import VISION_CASES  # noqa: E402


def build(name, case):
    config = getattr(transformers, f"{case['model']}Config")(**case["config"])
    torch.manual_seed(0)
    model = getattr(transformers, f"{case['model']}ForConditionalGeneration")._from_config(config, attn_implementation="eager")
    model = model.float().eval()
    randomize(model, name + case.get("seed", ""))
    return model


def picture(name, height, width):
    """Smooth colours and noise: [height, width, 3]."""
    rng = generator(name, "picture")
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 255 / width, y * 255 / height, 255 - y * 255 / height], axis=2)
    return np.clip(smooth + rng.normal(0, 40, smooth.shape), 0, 255).astype(np.uint8)


def values_of(case, pixels):
    """The tiles as the model takes them."""
    if case["model"] == "Gemma4":
        values = transformers.Gemma4ImageProcessor(patch_size=8, do_resize=False)(Image.fromarray(pixels), return_tensors="pt")
        n = pixels.shape[0] * pixels.shape[1] // 64  # the rest is padding
        return {key: values[key][:, :n] for key in ("pixel_values", "image_position_ids")}
    if "Qwen" in case["model"]:
        return transformers.Qwen2VLImageProcessor(**case["preprocessor"], do_resize=False)(Image.fromarray(pixels), return_tensors="pt")
    size = pixels.shape[0] if "size" not in case else pixels.shape[1]
    mean, std = (np.asarray(case["preprocessor"][key], np.float32) for key in ("image_mean", "image_std"))
    tiles = [pixels[:, i * size:(i + 1) * size] for i in range(case["tiles"])]
    values = torch.from_numpy(np.stack([((tile.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1) for tile in tiles]))
    return values[None] if case["model"] == "SmolVLM" else values


def rows_of(model, case, values):
    """What the projector makes of each tile: [tiles, rows, width]. Planes of DeepStack stand behind a row's own values."""
    with torch.no_grad():
        if case["model"] == "Mistral3":
            lines = model.get_image_features(values, image_sizes=[values.shape[2:]]).pooler_output[0].split(case["columns"])
            end = model.get_input_embeddings().weight[token_of(case, case["line_end"])][None]
            return torch.cat([part for line in lines for part in (line, end)][:-1]).numpy()[None].astype("<f4")
        if case["model"] == "Llama4":
            return model.multi_modal_projector(model.get_image_features(values).last_hidden_state).float().numpy().astype("<f4")
        if case["model"] == "Gemma4":
            return model.model.get_image_features(**values).pooler_output[0].float().numpy()[None].astype("<f4")
        if "Qwen" in case["model"]:
            seen = model.get_image_features(values["pixel_values"], values["image_grid_thw"])
            planes = [seen.pooler_output[0], *(planes[0] for planes in getattr(seen, "deepstack_features", None) or [])]
            return torch.cat(planes, dim=1).float().numpy()[None].astype("<f4")
        rows = torch.stack(list(model.get_image_features(values).pooler_output))
    return rows.float().numpy().reshape(case["tiles"], case["rows"], -1).astype("<f4")


def token_of(case, marker):
    return 3 + case["markers"].index(marker)


def id_of_row(case, row):
    """Of the token that stands where a picture's row does."""
    ends = "columns" in case and row % case["rows"] % (case["columns"] + 1) == case["columns"]
    return token_of(case, case["line_end"]) if ends else 3


def pictures_of(case, prompt, values, shown):
    """What the model takes beside the tokens; `shown`: where a picture's rows stand."""
    order = [(-1 - p) // case["rows"] for p in prompt if p < 0][:: case["rows"]]
    n = len(order)
    if case["model"] == "Mistral3":
        return dict(pixel_values=values.repeat(n, 1, 1, 1), image_sizes=[values.shape[2:]] * n)
    if case["model"] == "Gemma4":
        return {key: value.repeat(n, 1, 1) for key, value in values.items()} | dict(mm_token_type_ids=shown.int())
    if "Qwen" in case["model"]:
        return {key: values[key].repeat(n, 1) for key in ("pixel_values", "image_grid_thw")} | dict(mm_token_type_ids=shown.int())
    if case["model"] == "SmolVLM":
        return dict(pixel_values=values[:, order])
    return dict(pixel_values=values[order]) | (dict(token_type_ids=shown.long()) if case["model"] == "Gemma3" else {})


def run(model, case, prompt, values):
    """The prompt's logits: [positions, n_vocab]."""
    ids = torch.tensor([[p if p >= 0 else id_of_row(case, -1 - p) for p in prompt]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **pictures_of(case, prompt, values, ids == 3)).logits[0]
    return logits.float().numpy().astype("<f4")


def write_prompt(name, case):
    """Each tile twice, once behind the other and once behind text; text around them."""
    rng = generator(name, "prompt")
    prompt = []
    for tile in [*range(case["tiles"]), *range(case["tiles"])]:
        prompt += rng.integers(20, COMMON["vocab_size"], rng.integers(3, 9)).tolist()
        prompt += [-1 - r for r in range(tile * case["rows"], (tile + 1) * case["rows"])]
    return prompt + rng.integers(20, COMMON["vocab_size"], 12).tolist()


def followed(model, case, prompt, values):
    """The likeliest tokens behind a prompt, and how likely each was. None: special tokens, which have no text, or two that are about as likely."""
    tokens, logprobs = [], []
    for _ in range(8):
        likely = torch.from_numpy(run(model, case, prompt + tokens, values)[-1].astype(np.float32)).log_softmax(0).topk(2)
        tokens.append(int(likely.indices[0]))
        logprobs.append(round(float(likely.values[0]), 5))
        if tokens[-1] < 20 or likely.values[0] - likely.values[1] < 0.02:
            return None
    return tokens, logprobs


def served(model, name, case, values):
    """A prompt as the server makes it of a text, the picture and a text, and what follows."""
    rows = [-1 - r for r in range(case["rows"])]
    rng = generator(name, "served")
    first, *others = case["served"]
    picture = [*first, *(symbol for tokens in others for symbol in [*rows, *tokens])]
    for _ in range(1000):
        text = rng.integers(20, COMMON["vocab_size"], 12).tolist()
        if found := followed(model, case, [1, *text[:5], *picture, *text[5:]], values):
            more = {"projector": case["one_tile"]} if "one_tile" in case else {}
            return dict(before=text[:5], behind=text[5:], symbols=len(picture) + 13, tokens=found[0], logprobs=found[1], **more)
    raise ValueError("no such prompt")


def publish(file, beginnings, transposed):
    """Gives the tensors the names and the order of sides that published checkpoints have, which the converter knows."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    for old, new in beginnings.items():
        tensors = {name.replace(old, new, 1) if name.startswith(old) else name: tensor for name, tensor in tensors.items()}
    tensors = {name: tensor.transpose(1, 2).contiguous() if name.endswith(transposed) else tensor for name, tensor in tensors.items()}
    save_file(tensors, file, metadata=dict(format="pt"))


def convert(model, name, case, folder):
    import conversion
    import gguf
    from conversion.base import ModelType

    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / name
        model.save_pretrained(checkpoint)
        publish(checkpoint / "model.safetensors", case.get("names", {}), case.get("transposed", ()))
        (checkpoint / "preprocessor_config.json").write_text(json.dumps(case["preprocessor"]))
        vocabulary = {f"w{i}": i for i in range(COMMON["vocab_size"])}
        (checkpoint / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
        added = {token_of(case, marker): dict(content=marker) for marker in case["markers"]}
        (checkpoint / "tokenizer_config.json").write_text(json.dumps(dict(added_tokens_decoder=added)))
        for file, kind in (("model.gguf", ModelType.TEXT), ("mmproj.gguf", ModelType.MMPROJ)):
            architecture = case.get("projector", type(model).__name__) if kind == ModelType.MMPROJ else case["text"]
            converter = conversion.get_model_class(architecture, mmproj=kind == ModelType.MMPROJ)
            converter.no_mtp = True  # of Qwen's: it would look for layers that guess further tokens
            writer = converter(
                checkpoint, gguf.LlamaFileType.ALL_F32, folder / file, eager=True)
            writer = getattr(writer, "impl", writer)  # Mistral's hides another
            if kind == ModelType.MMPROJ and "mapped" in case:
                old, new = case["mapped"]
                writer.map_tensor_name = lambda *args, mapped=writer.map_tensor_name, **more: mapped(*args, **more).replace(old, new)
            if kind == ModelType.TEXT:
                writer.set_vocab = lambda writer=writer: dummy_vocabulary(writer, case["markers"])
                add_settings(writer.gguf_writer, case)
            writer.write()


def make(name, folder):
    case = VISION_CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    model = build(name, case)
    size = case["config"]["vision_config"].get("image_size", 0)
    pixels = picture(name, *case.get("size", (size, case["tiles"] * size)))
    Image.fromarray(pixels).save(folder / "picture.png", optimize=True)
    values = values_of(case, pixels)
    rows = rows_of(model, case, values)
    rows.tofile(folder / "rows.f32")
    prompt = write_prompt(name, case)
    (folder / "prompt.json").write_text(json.dumps(prompt) + "\n")
    logits = run(model, case, prompt, values)
    logits.tofile(folder / "logits.f32")
    with f16_cache(model.get_decoder()):
        rounded = run(model, case, prompt, values)
    rounded.tofile(folder / "logits-f16-cache.f32")
    away = np.sqrt(((rounded - logits) ** 2).mean() / (logits**2).mean())
    (folder / "served.json").write_text(json.dumps(served(model, name, case, values)) + "\n")
    if case["tiles"] > 1:
        Image.fromarray(pixels[:, :size]).save(folder / "served.png", optimize=True)
    convert(model, name, case, folder)
    print(f"{name:16} {sum(f.stat().st_size for f in folder.iterdir()) / 1000:6.0f} kB   rows {rows.shape}, rms {rows.std():.2f}; logits {logits.shape}, rms {logits.std():.2f}, cache in f16 {away:.1e}", flush=True)


def main():
    torch.set_num_threads(1)
    llama = CACHE / "llama.cpp-0.3.36"
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    for name in sys.argv[1:] or VISION_CASES:
        make(name, HERE.parent / "vision/fixtures" / name)


if __name__ == "__main__":
    main()
