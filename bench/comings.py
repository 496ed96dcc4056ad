#!/usr/bin/env python3
"""How a server fares while busy programs come and go, and how two servers share a machine.

    bench/comings.py --coppice build/coppice --model M.gguf [--loads stream,prompts,pair] [--seconds 4] [--quota N] [--neighbour COMMAND] [--json FILE]

`stream`: one stream after the other, and nothing else; `prompts`: one prompt of 2,048 new tokens after the other. Both while nobody else runs, then beside
loops that keep half of the cores busy, without them, beside loops on all cores, and without them, --seconds each. For each stretch: tokens a second
of its second half, that half's 99th percentile of gaps over their median (of a prompt: of its time), and after how many seconds a quarter of a second
was first within a tenth of that rate; behind them the same of a server that has only the half without loops, and quiet. `pair`: two servers at once, each with the same load: the faster one's rate over the other's, while both run.
--quota: the server, not the loops, has a control group with the time of N CPUs, as a container's. --neighbour: a command of the shell in place of the
loops, again and again on each core, such as a compiler's. With --json FILE the figures go there, by model, as bench/neighbours.py's do.
"""
import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

import client
from neighbours import busy, content_of, quota
from process import Server

BIN = 0.25       # seconds
PROMPT = 2048    # tokens
FREE = "alone on the other half"
STRETCHES = ("quiet", "half of the cores busy", "quiet again", "all cores busy", "quiet at last")


class Load(threading.Thread):
    """Asks a server again and again until it is stopped. events: (when, tokens, seconds that they took)."""

    def __init__(self, port, kind, seed):
        super().__init__(daemon=True)
        self.port, self.kind, self.random = port, kind, random.Random(seed)
        self.events, self.stopped = [], threading.Event()

    def body(self):
        n = PROMPT if self.kind == "prompts" else 16
        return {"prompt": [self.random.randrange(1000, 40000) for _ in range(n)], "max_tokens": 1 if self.kind == "prompts" else 400,
                "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}

    def run(self):
        while not self.stopped.is_set():
            request = client.request_bytes(self.port, "/v1/completions", self.body())
            start, (pieces,) = client.receive_all(self.port, [request], 120)
            answer = client.answer_of(pieces, start)
            if self.kind == "prompts":
                self.events.append((start + answer.first, PROMPT, answer.first))
                continue
            each = answer.completion_tokens / len(answer.texts)  # a piece may hold several tokens, or a token no text
            self.events += [(start + b, each, b - a) for a, b in zip(answer.texts, answer.texts[1:])]


def between(events, begin, end):
    return [event for event in events if begin <= event[0] < end]


def rate_of(events):
    return sum(tokens for _, tokens, _ in events) / sum(seconds for _, _, seconds in events) if events else 0


def figures(events, begin, end):
    """Of a stretch of time. settled: None where no quarter of a second came near the rate of its second half."""
    half = between(events, (begin + end) / 2, end)
    gaps, rate, settled = sorted(seconds for _, _, seconds in half), rate_of(half), None
    for i in range(int((end - begin) / BIN)):
        part = between(events, begin + i * BIN, begin + (i + 1) * BIN)
        if part and rate and rate_of(part) >= 0.9 * rate:
            settled = round((i + 1) * BIN, 2)
            break
    return {"rate": rate, "p99": gaps[int(0.99 * len(gaps))] / statistics.median(gaps) if gaps else None, "settled": settled}


@contextlib.contextmanager
def server(o, folder, name="log", cores=()):
    """cores: its only ones, in place of all."""
    with contextlib.ExitStack() as stack:
        command = [o.coppice, "serve", "--model", o.model, "--device", "cpu", "--kv-bytes", "1GiB"]
        if o.quota:
            group = stack.enter_context(quota(o.quota))
            if not group:
                raise SystemExit("no control group can be made here")
            command = ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$0" "$@"', *command]
        if cores:
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
        yield stack.enter_context(Server(command, Path(folder) / name))


def alone(o, kind, cores):
    """A stretch of time of a server that has no other cores, and these to itself."""
    with tempfile.TemporaryDirectory() as folder, server(o, folder, cores=cores) as one:
        load = Load(one.port, kind, 2)
        load.start()
        begin = time.perf_counter() + 1
        time.sleep(1 + o.seconds)
        end = time.perf_counter()
        load.stopped.set()
        load.join(60)
        return {"what": FREE} | figures(load.events, begin, end)


def comings(o, kind, cores):
    found = []
    with tempfile.TemporaryDirectory() as folder, server(o, folder) as one:
        load = Load(one.port, kind, 1)
        load.start()
        time.sleep(1)
        for what in STRETCHES:
            taken = cores[:len(cores) // 2] if what.startswith("half") else cores if what.startswith("all") else []
            with busy(taken, o.neighbour):
                begin = time.perf_counter()
                time.sleep(o.seconds)
                end = time.perf_counter()
            found.append((what, begin, end))
        load.stopped.set()
        load.join(60)
        return [{"what": what} | figures(load.events, begin, end) for what, begin, end in found]


def pair(o, kind):
    """The rates of two servers, the faster one's first."""
    with tempfile.TemporaryDirectory() as folder, server(o, folder, "one") as one, server(o, folder, "other") as other:
        loads = [Load(each.port, kind, seed) for seed, each in enumerate((one, other))]
        for load in loads:
            load.start()
        begin = time.perf_counter() + 1
        time.sleep(1 + 2 * o.seconds)
        end = time.perf_counter()
        for load in loads:
            load.stopped.set()
        for load in loads:
            load.join(60)
        return sorted((rate_of(between(load.events, begin, end)) for load in loads), reverse=True)


def keep(o, key, value):
    if o.json:
        content = content_of(o.json)
        model = o.model.stem + (f", a quota of {o.quota}" if o.quota else "") + (", other neighbours" if o.neighbour else "")
        content.setdefault("comings", {}).setdefault(model, {})[key] = value
        o.json.write_text(json.dumps(content, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", type=lambda name: Path(name).resolve(), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--loads", type=lambda text: text.split(","), default=["stream", "prompts", "pair"])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--quota", type=int, default=0)
    parser.add_argument("--neighbour")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    for kind in [kind for kind in ("stream", "prompts") if kind in o.loads]:
        rows = [*comings(o, kind, cores), alone(o, kind, cores[len(cores) // 2:])]
        for row in rows:
            print(f"{kind}, {row['what']}: {row['rate']:,.0f} tok/s, p99 {row['p99'] or 0:.2f} medians, settled after {row['settled']} s", flush=True)
        keep(o, kind, rows)
    for kind in [kind for kind in ("stream", "prompts") if "pair" in o.loads]:
        rates = pair(o, kind)
        print(f"two servers, {kind}: " + " / ".join(f"{rate:,.0f}" for rate in rates) + f" tok/s, {rates[0] / max(rates[1], 1):.2f} to 1", flush=True)
        keep(o, f"pair of {kind}", rates)


if __name__ == "__main__":
    main()
