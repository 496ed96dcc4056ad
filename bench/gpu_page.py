#!/usr/bin/env python3
"""docs/benchmarks-gpu.md from the files of bench/results/cuda: gpu_page.py writes it anew."""

import json
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent

HEAD = """# Benchmarks on NVIDIA GPUs

<!-- Written by bench/gpu_page.py from bench/results/cuda/*.json. -->

`make cuda` builds the programs (`attention_cuda_bench`, `matmul_cuda_bench`, `step_cuda_bench`, each with `--json FILE`). Kernels are
timed inside CUDA graphs that go through at least eight pools or matrices in turn, so that nothing of one is left in the L2 cache;
planning apart; medians. Bounds are bytes that must be read, each once, over the bandwidth that a copy inside the device reaches in the
same run. [ADR 0023](adr/0023-cuda-tree-attention.md), [0026](adr/0026-cuda-quantised-products.md) and
[0032](adr/0032-cuda-tile-products.md) say what bounds the kernels and what was tried, [0040](adr/0040-cuda-executor.md) how the executor uses
them.
"""

ATTENTION = """
### Attention

One layer of 32/8 heads x 128, bf16, microseconds. FlashInfer: batched decode over pages of 16, the faster of its two kernels, in a
program of ours.

| step | coppice | bound | FlashInfer | goal |
|---|---|---|---|---|
"""
GOALS = {"2,048 shared + 256, B = 8": "10", "2,048 shared + 256, B = 32": "20", "2,048 shared + 256, B = 64": "35",
         "8,192 shared + 256, B = 8": "22", "8,192 shared + 256, B = 32": "30", "8,192 shared + 256, B = 64": "45",
         "nothing shared, depth 2,048, B = 32": "1.05 x FlashInfer"}

STEPS = """
### A step of an 8B model

Llama's shape, random weights; milliseconds and tokens a second. A decode step is one graph, from tokens to tokens, greedy; a prompt's ends
with the last row's logits.

| weights | step | ms | bound | tokens/s | goal |
|---|---|---|---|---|---|
"""
STEP_GOALS = {("bf16", "2,048 shared + 256, B = 8"): "1,500", ("bf16", "8,192 shared + 256, B = 32"): "5,500",
              ("bf16", "8,192 shared + 256, B = 64"): "10,000", ("bf16", "prompt of 2,048"): "36,000",
              ("Q4_K, logits Q6_K", "depth 2,048, B = 1"): "400",
              ("Q4_K, logits Q6_K", "8,192 shared + 256, B = 32"): "5,500",
              ("Q4_K, logits Q6_K", "8,192 shared + 256, B = 64"): "10,000"}

PARITY = """
### The executor against the CPU's

`executor_on_gpu`: prompts, 24 steps of one stream and of eleven on shared and forked blocks in shuffled order, chunks of a prompt among them.
Distance of logits (relative RMS: mean over rows, worst row) from the CPU's executor on an f32 copy of the same weights. Beside it the
CPU's own distance with the file as it is, whose products round rows to 8 bits.

| model | rows | CPU, packed weights | GPU | GPU, int8 keys and values |
|---|---|---|---|---|
"""


def cases(content, name):
    return {row["case"]: row for row in content[name] if row["case"] != "copy"}


def section(content):
    """One card's."""
    copy = next(row["tb_s"] for row in content["attention"] if row["case"] == "copy")
    lines = [f"\n## {content['device']}\n\nA copy inside the device moves {copy:.2f} TB/s.\n", ATTENTION]
    peers = cases(content, "FlashInfer 0.7.2, batched decode over pages of 16")
    for case, row in cases(content, "attention").items():
        peer = peers.get(case)
        best = f"{min(peer['decode_us'], peer['tensor_cores_us']):.1f}" if peer else ""
        lines.append(f"| {case} | **{row['us']:.1f}** | {row['floor_us']:.1f} | {best} | {GOALS.get(case, '')} |\n")
    lines.append(STEPS)
    for row in content["steps of an 8B shape"]:
        if row["case"] == "copy":
            continue
        goal = STEP_GOALS.get((row["weights"], row["case"]), "")
        bound = f"{row['bound_us'] / 1e3:.2f}" if not row["case"].startswith("prompt") else ""
        lines.append(f"| {row['weights']} | {row['case']} | {row['us'] / 1e3:.2f} | {bound} | "
                     f"**{row['tokens_s']:,}** | {goal} |\n")
    lines.append(PARITY)
    for row in content["executor"]:
        figures = [f"{row[name]['mean']:.4f}, {row[name]['worst']:.4f}" for name in ("cpu", "gpu", "gpu_int8")]
        lines.append(f"| {row['model']} | {row['rows']} | " + " | ".join(figures) + " |\n")
    for note in content.get("notes", []):
        lines.append(f"\n{note}\n")
    return "".join(lines)


def text(contents):
    return HEAD + "".join(section(content) for content in contents)


def write(folder, path):
    contents = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    pathlib.Path(path).write_text(text(contents))


if __name__ == "__main__":
    sys.exit(write(REPO / "bench/results/cuda", REPO / "docs/benchmarks-gpu.md"))
