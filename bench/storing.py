#!/usr/bin/env python3
"""What storing costs those who are served meanwhile: `--kv-dir` beside a server without it, in turn.

    bench/storing.py --coppice build/coppice --model M.gguf [--rounds 8] [--folder DIR] [--json FILE]

Both servers have computed the same 24 prompts of 1,024 tokens. In a round each of them is asked these again, which makes 24,576 tokens worth storing,
and serves one load beside that: a stream of 300 tokens, then two prompts of 2,048 new tokens, one after the other. With --kv-dir the blocks go to
the folder meanwhile, as fast as a server lets them; then that tier is reset, so that the next load finds them worth storing again. The other server
stands still. Printed are tokens a second with storing over those without: the median of all rounds, and its 95 % interval; and how much was stored
in the time that counts. The exit status is 1 where a median is below 0.97.
"""
import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import client
import results
from beside import median_interval
from machine import machine
from process import Failure, Server

LEAST = 0.97     # what is wanted
KNOWN, KNOWN_TOKENS = 24, 1024
STREAM, PROMPT, PROMPTS = 300, 2048, 2


def some_tokens(dice, n):
    return [dice.randrange(1000, 40000) for _ in range(n)]


def body(prompt, tokens):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


def ask(port, bodies):
    """The answers, times since the first call of this round's clock."""
    start, received = client.receive_all(port, [client.request_bytes(port, "/v1/completions", each) for each in bodies], 120)
    return start, [client.answer_of(pieces, start) for pieces in received]


class Side:
    def __init__(self, server, stores):
        self.server, self.stores = server, stores

    def disk(self):
        return self.server.get("/v1/cache/stats")["stores"]["disk"]

    def forget(self):
        """What is stored goes, and is worth storing again."""
        if not self.stores:
            return
        self.server.post("/v1/cache/reset?tier=disk", {})
        end = time.monotonic() + 60
        while (disk := self.disk())["pieces"] or disk["pending"]:
            if time.monotonic() > end:
                raise Failure(f"the folder isn't emptied: {disk}")
            time.sleep(0.05)
        time.sleep(1)  # files go by and by

    def stream(self, dice, known):
        """Tokens a second of a stream, once the known prompts are answered."""
        _, answers = ask(self.server.port, [body(some_tokens(dice, 16), STREAM), *(body(prompt, 1) for prompt in known)])
        begin = max(answer.last for answer in answers[1:])
        texts = [when for when in answers[0].texts if when >= begin]
        if len(texts) < len(answers[0].texts) / 2:
            raise Failure("the stream ended too early")
        return (len(texts) - 1) / (texts[-1] - texts[0]) * answers[0].completion_tokens / len(answers[0].texts)

    def prompts(self, dice, known):
        """Tokens a second of new prompts, once the known ones are answered."""
        ask(self.server.port, [body(prompt, 1) for prompt in known])
        begun = time.perf_counter()
        for _ in range(PROMPTS):
            ask(self.server.port, [body(some_tokens(dice, PROMPT), 1)])
        return PROMPTS * PROMPT / (time.perf_counter() - begun)

    def measure(self, load, seed, known):
        """Tokens a second, and bytes that were stored in a second meanwhile."""
        self.server.resume()
        self.forget()
        begun = time.perf_counter()
        rate = getattr(self, load)(random.Random(seed), known)
        stored = self.disk()["bytes"] / (time.perf_counter() - begun) if self.stores else 0
        self.server.hold()
        return rate, stored


def measure(o, folder):
    dice = random.Random(1)
    known = [some_tokens(dice, KNOWN_TOKENS) for _ in range(KNOWN)]
    command = [o.coppice, "serve", "--model", o.model, "--kv-bytes", "2GiB", "--drain-seconds", "1"]
    found = {load: {"ratios": [], "without": [], "stored": []} for load in ("stream", "prompts")}
    disk = ["--kv-dir", folder / "kv", "--kv-dir-bytes", "2GiB", "--kv-dir-free", "0"]
    with Server([*command, *disk], folder / "with.log") as one, Server(command, folder / "without.log") as other:
        sides = [Side(one, True), Side(other, False)]
        while not one.get("/v1/cache/stats")["stores"].get("disk", {}).get("on"):
            time.sleep(0.1)
        for side in sides:
            for prompt in known:
                ask(side.server.port, [body(prompt, 1)])
            side.server.hold()
        for number in range(-1, o.rounds):  # the first one warms up
            for load, figures in found.items():
                got = {side.stores: side.measure(load, number, known) for side in (sides if number % 2 else sides[::-1])}
                if number < 0:
                    continue
                figures["ratios"].append(got[True][0] / got[False][0])
                figures["without"].append(got[False][0])
                figures["stored"].append(got[True][1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", type=lambda name: Path(name).resolve(), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the disk is that is written to")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        found = measure(o, Path(folder))
    for load, figures in found.items():
        low, high = median_interval(figures["ratios"])
        print(f"{load}: {statistics.median(figures['ratios']):.3f} of the tokens a second without storing (95 % interval {low:.3f} to {high:.3f}; "
              f"{statistics.median(figures['without']):,.0f} tok/s), {statistics.median(figures['stored']) / 1e6:,.0f} MB stored a second; "
              f"at least {LEAST} is wanted", flush=True)
    if o.json:
        results.write(o.json, {"machine": machine(), "storing": found})
    return 0 if all(statistics.median(figures["ratios"]) >= LEAST for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
