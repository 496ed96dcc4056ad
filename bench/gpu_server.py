#!/usr/bin/env python3
"""The server on a GPU beside llama-server built with CUDA: 64 requests at once that share 8,192 tokens nobody has seen, 20 of their own
each, 32 tokens of answer. Prompts are random token numbers; answers are greedy.

    bench/gpu_server.py --coppice build/coppice --llama-server PATH --model 8b.gguf OUT.json

Writes rows {"side", "rounds", "first_s", "wall_s"}: medians over the rounds of the slowest first token and of the whole burst. A setting
of llama-server's that breaks off is left out with a line. The model, as on the page:

    bench/random_model.py --types q4_k_m --embd 4096 --ff 14336 --layers 32 --heads 32 --kv-heads 8 --head-size 128 --context 16384 \
      --vocabulary SmolLM2-135M-Instruct.Q4_1.gguf 8b.gguf
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile

import client
from process import Failure, Server, run_to_the_end, say

REQUESTS, SHARED, OWN, ANSWER = 64, 8192, 20, 32
CONTEXT = 8448  # of a slot: prompt, answer and some room
ANY_TOKEN = (1000, 49000)


def sides(o):
    """(name, command, rounds): ours with three sizes of a step; theirs with a slot for each request, and with fewer, so that those who wait
    find the shared tokens in a slot."""
    for step in (512, 2048, 4096):
        yield f"coppice, {step:,} tokens a step", [o.coppice, "serve", "--model", o.model, "--device", o.device, "--max-batch", REQUESTS,
                                                   "--step-tokens", step], o.rounds
    for slots in (1, 4, 16, REQUESTS):
        yield f"llama-server, {slots} slots", [o.llama_server, "-m", o.model, "-ngl", 99, "-fa", "on", "-np", slots, "-c", slots * CONTEXT,
                                               "-b", 2048, "-ub", 2048, "--cache-ram", 0, "--cache-reuse", 256], min(o.rounds, 2)


def prompts(rng):
    def tokens(n):
        return [rng.randrange(*ANY_TOKEN) for _ in range(n)]
    shared = tokens(SHARED)
    return [{"prompt": shared + tokens(OWN)} for _ in range(REQUESTS)]


def measured(name, command, rounds, rng, log):
    with Server(command, log) as server:
        warm = [{"prompt": [rng.randrange(*ANY_TOKEN) for _ in range(400)]} for _ in range(REQUESTS)]
        client.run_burst(server.port, "/v1/completions", warm, 8)
        found = [client.run_burst(server.port, "/v1/completions", prompts(rng), ANSWER) for _ in range(rounds)]
    return {"side": name, "rounds": rounds, "first_s": round(statistics.median(one["ttft_max_s"] for one in found), 3),
            "wall_s": round(statistics.median(one["wall_s"] for one in found), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "llama-server", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", default="cuda", help="coppice's, default cuda")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; llama-server's settings get two at most")
    parser.add_argument("out", type=pathlib.Path)
    o = parser.parse_args()
    rows, rng = [], random.Random(11)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, command, rounds) in enumerate(sides(o)):
            try:
                rows.append(measured(name, command, rounds, rng, pathlib.Path(folder) / f"{number}.log"))
                say(json.dumps(rows[-1]))
            except Failure as error:
                say(f"{name} is left out: {error}")
    o.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
