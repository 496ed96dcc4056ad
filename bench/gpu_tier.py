#!/usr/bin/env python3
"""What the host's memory is worth to a server on a GPU: the first token of a long prompt, computed, from the pool, and from --host-kv-bytes.

    bench/gpu_tier.py --coppice build/coppice --model 8b.gguf [--lengths 8000,16000] [--folder /dev/shm/kv] OUT.json

The prompts are random token numbers. Between two questions for one of them the pool is filled with others, so that it gives up the first one's
blocks. With --folder a second server has its second tier there in place of the host's memory, is ended, and its successor is asked. Writes rows
{"tokens", "where", "first_s", "cached", "rounds"}: medians of the first token's time. The model is that of bench/gpu_server.py, with a longer
--context.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import tempfile
import time

import client
from process import Failure, Server, run_to_the_end, say

ANY_TOKEN = (1000, 49000)
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # keys and values of the 8B shape, 16 bits each
ANSWER = 4


def some_tokens(dice, n):
    return [dice.randrange(*ANY_TOKEN) for _ in range(n)]


def ask(server, prompt):
    found = client.run_burst(server.port, "/v1/completions", [{"prompt": prompt}], ANSWER, 120)
    return found["ttft_max_s"], found["cached_tokens"]


def wait_for_store(server, name):
    """The model's whole content is hashed first."""
    end = time.monotonic() + 120
    while not server.get("/v1/cache/stats")["stores"].get(name, {}).get("on"):
        if time.monotonic() > end:
            raise Failure(f"the store {name} isn't on: {server.get('/v1/cache/stats')['stores']}")
        time.sleep(0.1)


def row(tokens, where, times):
    found = {"tokens": tokens, "where": where, "first_s": round(statistics.median(t for t, _ in times), 4),
             "cached": round(statistics.median(c for _, c in times)), "rounds": len(times)}
    say(json.dumps(found) + "  " + " ".join(f"{t:.3f}" for t, _ in times))
    return found


def fill(server, dice, tokens, pool):
    """Other prompts, of as many tokens as the pool has."""
    for _ in range(-(-pool // tokens) + 1):
        ask(server, some_tokens(dice, tokens))


def of_host_memory(o, length, log):
    dice, pool = random.Random(length), 2 * length + 8192
    command = [o.coppice, "serve", "--model", o.model, "--device", o.device, "--kv-bytes", pool * TOKEN_BYTES, "--host-kv-bytes", o.host_bytes]
    times = {"computed": [], "the pool": [], "the host's memory": []}
    with Server(command, log, 180) as server:
        wait_for_store(server, "host")
        fill(server, dice, length, length)
        for _ in range(o.rounds):
            prompt = some_tokens(dice, length)
            times["computed"].append(ask(server, prompt))
            times["the pool"].append(ask(server, prompt))
            fill(server, dice, length, pool)
            times["the host's memory"].append(ask(server, prompt))
        say(json.dumps(server.get("/v1/cache/stats")["stores"]))
    return [row(length, where, found) for where, found in times.items()]


def of_a_folder(o, length, log):
    dice, folder = random.Random(length + 1), pathlib.Path(o.folder)
    command = [o.coppice, "serve", "--model", o.model, "--device", o.device, "--kv-bytes", (2 * length + 8192) * TOKEN_BYTES,
               "--kv-dir", folder, "--kv-dir-bytes", o.host_bytes, "--kv-dir-free", "0", "--drain-seconds", "20"]
    prompt = some_tokens(dice, length)
    try:
        with Server(command, log, 180) as server:
            wait_for_store(server, "disk")
            ask(server, some_tokens(dice, length))
            computed = ask(server, prompt)
            ask(server, prompt)
            server.process.terminate()
            server.process.wait(60)
        with Server(command, f"{log}.again", 180) as server:
            wait_for_store(server, "disk")
            ask(server, some_tokens(dice, length))
            again = ask(server, prompt)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [row(length, "computed, before the restart", [computed]), row(length, "the folder, after the restart", [again])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--host-bytes", default="48GiB", help="default 48GiB")
    parser.add_argument("--lengths", default="8000,16000", help="tokens of a prompt; default 8000,16000")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--folder", help="measured, too: a folder that isn't there")
    parser.add_argument("out", type=pathlib.Path)
    o = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as logs:
        for length in map(int, o.lengths.split(",")):
            for measured in (of_host_memory, *([of_a_folder] if o.folder else [])):
                try:
                    rows += measured(o, length, pathlib.Path(logs) / f"{length}.{measured.__name__}.log")
                except Failure as error:
                    say(f"{length} tokens, {measured.__name__}: {error}")
                o.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
