#!/usr/bin/env python3
"""A thousand streams on the real server: do they all complete, and what do idle ones cost those that run?

    make build && bench/streams.py --model FILE

`complete`: --streams requests at once on one shared prompt; every stream must end properly. `idle`: --active streams
write all the time, in turn alone and beside --streams others: streams that wait in the queue (and get a comment every few
seconds), connections that say nothing, and clients that send a head without an end. What counts is the median gap
between two tokens of a running stream, over all windows of a kind. Standard library only. Keep the machine quiet.
"""

import argparse
import asyncio
import json
import pathlib
import resource
import statistics
import tempfile
import time

from client import _answer, _receive
from common import Failure, Server, machine, run_to_the_end, say

PROMPT = "The quick brown fox jumps over the lazy dog, and then it tells us a long story about the sea. " * 4


def body(tokens, **more):
    return {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}} | more


def memory_mib(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise Failure(f"the kernel does not tell {field}")


def serve(args, folder, *options):
    return Server([args.coppice, "serve", "--model", args.model, "--kv-bytes", args.kv_bytes, "--log-level", "warn",
                   *(["--threads", args.threads] if args.threads else []), *options], folder / "server.log")


def complete(args, folder):
    with serve(args, folder) as server:
        server.post("/v1/completions", body(1, stream=False, stream_options=None))  # warms everything up once
        before = memory_mib(server.process.pid, "VmRSS")
        received = [[] for _ in range(args.streams)]

        async def all_at_once():
            await asyncio.wait_for(asyncio.gather(*(
                _receive(server.port, body(args.tokens, prompt=f"{PROMPT} Chapter {i}:"), pieces)
                for i, pieces in enumerate(received))), args.limit)

        start = time.perf_counter()
        asyncio.run(all_at_once())
        answers = [_answer(pieces, start) for pieces in received]  # raises Failure where one is not whole
        if any(answer.completion_tokens != args.tokens for answer in answers):
            raise Failure("a stream ended without all its tokens")
        wall = max(answer.last for answer in answers)
        firsts = [answer.first for answer in answers]
        blocks = server.get("/v1/cache/stats")["blocks"]
        if blocks["in_use"]:
            raise Failure(f"blocks are still in use: {blocks}")
        print(f"{args.streams} streams at once, {args.tokens} tokens each: all complete in {wall:.1f} s "
              f"({args.streams * args.tokens / wall:.0f} tokens/s); first token: median {statistics.median(firsts):.1f} s, "
              f"last {max(firsts):.1f} s; memory {before:.0f} MiB before, "
              f"{memory_mib(server.process.pid, 'VmHWM'):.0f} MiB at its peak")


class Windows:
    """Gaps between the tokens of the active streams, and the server's own step times, by the kind of window."""

    def __init__(self, server, args):
        self.server, self.args = server, args
        self.times = [[] for _ in range(args.active)]  # when each stream's pieces came
        self.gaps, self.steps = {}, {}

    async def watch(self, times, tokens):
        data = json.dumps(body(tokens)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        try:
            while piece := await reader.read(1 << 16):
                times.append(time.perf_counter())
                if piece.endswith(b"0\r\n\r\n"):
                    return
        finally:
            writer.close()

    async def stats(self):
        return await asyncio.to_thread(self.server.get, "/v1/cache/stats")

    async def window(self, kind):
        """Measures for as long as the active streams need for --window tokens."""
        await asyncio.sleep(0.5)
        before = (await self.stats())["steps"]
        begin = [len(times) for times in self.times]
        while any(len(times) < first + self.args.window for times, first in zip(self.times, begin)):
            await asyncio.sleep(0.05)
        end = [len(times) for times in self.times]
        after = (await self.stats())["steps"]
        for times, first, last in zip(self.times, begin, end):
            self.gaps.setdefault(kind, []).extend(b - a for a, b in zip(times[first:last], times[first + 1:last]))
        count = after["count"] - before["count"]
        self.steps.setdefault(kind, []).append((after["seconds"] - before["seconds"]) / count)

    async def connect(self, first_bytes):
        """--streams connections that send `first_bytes` and then read nothing."""
        writers = []
        for _ in range(self.args.streams):
            _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            writer.write(first_bytes)
            writers.append(writer)
        return writers

    async def waiting(self):
        data = json.dumps(body(16)).encode()
        writers = await self.connect(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        while (await self.stats())["requests"]["waiting"] < self.args.streams:
            await asyncio.sleep(0.1)
        return writers

    async def leave(self, writers):
        for writer in writers:
            writer.close()
        while (await self.stats())["requests"]["waiting"] > 0:
            await asyncio.sleep(0.1)

    async def run(self):
        kinds = {"streams that wait": self.waiting, "connections that say nothing": lambda: self.connect(b""),
                 "heads without an end": lambda: self.connect(b"GET /health HTTP/1.1\r\nHost: x\r\n")}
        tokens = self.args.context - 200
        active = [asyncio.create_task(self.watch(times, tokens)) for times in self.times]
        while not all(self.times):
            await asyncio.sleep(0.05)
        for _ in range(self.args.rounds):
            for kind, begin in kinds.items():
                await self.window("alone")
                writers = await begin()
                await self.window(kind)
                await self.leave(writers)
        await self.window("alone")
        if any(task.done() for task in active):
            raise Failure("the active streams ended too early: raise --context or lower --window")
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)


def idle(args, folder):
    with serve(args, folder, "--max-batch", args.active, "--ctx", args.context) as server:
        windows = Windows(server, args)
        asyncio.run(windows.run())
        alone = statistics.median(windows.gaps["alone"])
        print(f"{args.active} active streams beside {args.streams} idle ones; gap between two tokens of a stream:\n\n"
              "| beside | median | against alone | p99 | the server's mean step |\n|---|---|---|---|---|")
        for kind, gaps in windows.gaps.items():
            median, p99 = statistics.median(gaps), statistics.quantiles(gaps, n=100)[98]
            print(f"| {kind} | {median * 1000:.2f} ms | {median / alone:.3f} | {p99 * 1000:.2f} ms "
                  f"| {statistics.mean(windows.steps[kind]) * 1000:.2f} ms |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--coppice", default="build/coppice")
    parser.add_argument("--only", choices=("complete", "idle"))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16, help="of each stream that completes")
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--window", type=int, default=60, help="tokens of each active stream in a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kv-bytes", default="3GiB")
    parser.add_argument("--threads", help="for the server; default: all cores")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for `complete`")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        for part in (complete, idle):
            if args.only in (None, part.__name__):
                say(f"{part.__name__} ...")
                part(args, pathlib.Path(name))


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
