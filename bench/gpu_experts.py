#!/usr/bin/env python3
"""Mixtures of experts on a GPU: coppice beside llama-server built with CUDA, both over HTTP, greedy, on random token numbers that share
nothing.

    bench/gpu_experts.py --coppice build/coppice --llama-server PATH --model "Qwen 3 30B-A3B, Q4_K_M=q3.gguf" OUT.json

Writes rows {"model", "load", "coppice", "llama-server"}: tokens a second, medians. llama-server has as many slots as there are streams.
Models, as on the page:

    bench/random_model.py --shape qwen3-30b-a3b --layers 48 --types q4_k_m --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf q3.gguf
    bench/random_model.py --shape gpt-oss-20b --layers 24 --types mxfp4 --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf oss.gguf
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile

import client
from process import Failure, Server, run_to_the_end, say

PROMPTS, STREAMS = (512, 2048), (16, 64)
ALONE, ANSWER, ANSWER_OF_MANY, OWN = 512, 192, 128, 200
WARM = 32  # random tokens: of a few all may lack text
CONTEXT = 512  # of a slot of many
ANY_TOKEN = (1000, 49000)


def measured(port, streams, rng):
    """{load: tokens a second}; streams: 1, or as many at once."""
    def burst(n_requests, n_tokens, answer):
        for left in reversed(range(4)):
            bodies = [{"prompt": [rng.randrange(*ANY_TOKEN) for _ in range(n_tokens)]} for _ in range(n_requests)]
            try:
                return client.run_burst(port, "/v1/completions", bodies, answer)
            except Failure:  # random weights may repeat a token without text for ever: such a stream can't be timed
                if left == 0:
                    raise
    if streams > 1:
        burst(streams, OWN, WARM)
        rates = [burst(streams, OWN, ANSWER_OF_MANY)["decode_tokens_per_s"] for _ in range(3)]
        return {f"{streams} streams of {OWN} tokens: decode": statistics.median(rates)}
    for _ in range(2):
        burst(1, OWN, WARM)
    found = {f"a prompt of {n:,}": n / statistics.median(burst(1, n, WARM)["ttft_max_s"] for _ in range(5)) for n in PROMPTS}
    found[f"one stream at {ALONE}: decode"] = statistics.median(burst(1, ALONE, ANSWER)["decode_tokens_per_s"] for _ in range(3))
    return found


def ours(o, model, _):
    return [o.coppice, "serve", "--model", model, "--device", o.device, "--max-batch", max(STREAMS)]


def theirs(o, model, streams):
    return [o.llama_server, "-m", model, "-ngl", 99, "-fa", "on", "-np", streams, "-c", max(8192, streams * CONTEXT), "-b", 2048, "-ub", 2048,
            "--cache-ram", 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "llama-server"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--model", required=True, action="append", metavar="NAME=PATH", help="may be repeated")
    parser.add_argument("--device", default="cuda", help="coppice's, default cuda")
    parser.add_argument("out", type=pathlib.Path)
    o = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, _, path in (model.rpartition("=") for model in o.model):
            sides = {}
            for side, command in (("coppice", ours), ("llama-server", theirs)):
                sides[side], rng = {}, random.Random(5)
                for streams in (1, *STREAMS):
                    with Server(command(o, path, streams), pathlib.Path(folder) / "log") as server:
                        sides[side] |= measured(server.port, streams, rng)
            for load, rate in sides["coppice"].items():
                rows.append({"model": name, "load": load, "coppice": round(rate, 1), "llama-server": round(sides["llama-server"][load], 1)})
                say(json.dumps(rows[-1]))
    o.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
