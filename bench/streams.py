#!/usr/bin/env python3
"""A thousand streams on the real server: do they all complete, and what do idle ones cost those that run?

    make build && bench/streams.py --model FILE

`complete`: --streams requests at once on one shared prompt; every stream must end properly. `idle`: --active streams
write all the time, alone, then beside --streams others, then alone again: streams that wait in the queue (each has had its
head and two comments before the window begins, and gets one every --ping-seconds in it), connections that say nothing, and
clients that send a head without an end. What counts is the engine's own step: its counters are read every quarter of a
second, each reading gives a mean over its steps, and a window's figure is the median of these. Beside it stands the median
gap between two tokens at the client. Each round's window is compared with the two around it, by how many steps lie between
them: contexts grow, and idle streams take a while to come. Of the rounds the median counts. Standard library only. Keep
the machine quiet.
"""

import argparse
import asyncio
import json
import pathlib
import resource
import socket
import statistics
import tempfile
import time

from client import answer_of, receive_all
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
        bodies = [body(args.tokens, prompt=f"{PROMPT} Chapter {i}:") for i in range(args.streams)]
        start, received = receive_all(server.port, bodies, args.limit)
        answers = [answer_of(pieces, start) for pieces in received]  # raises Failure where one is not whole
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


COMMENT = b": keep-alive"
STREAMS, HEADS = "streams that wait", "heads without an end"
HEAD_SECONDS = 6  # after 10 the server has had enough of a head


class Idle:
    """--streams connections that send `first_bytes` and then nothing. Nobody reads them but comments(): a client that is
    busy with them would take the cores from the server."""

    def __init__(self, port, count, first_bytes):
        self.sockets, self.received = [], [0] * count
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            self.sockets.append(connection)
            connection.sendall(first_bytes)
            connection.setblocking(False)

    def comments(self):
        """How many each has had since the last call; raises Failure where one was closed."""
        counts = []
        for connection in self.sockets:
            data = b""
            try:
                while piece := connection.recv(1 << 16):
                    data += piece
                raise Failure(f"the server closed an idle connection: {data[-200:]!r}")
            except BlockingIOError:
                counts.append(data.count(COMMENT))
        return counts

    def close(self):
        for connection in self.sockets:
            connection.close()


class Window:
    """What one window showed, in seconds but for `middle`."""

    def __init__(self, samples, gaps):
        # Each reading is (steps so far, their seconds so far).
        means = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(samples, samples[1:]) if b[0] > a[0]]
        self.middle = (samples[0][0] + samples[-1][0]) / 2  # in steps so far
        self.step = statistics.median(means)
        self.mean_step = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
        self.gap = statistics.median(gaps)
        self.gaps = gaps


class Windows:
    """Windows of --window seconds, in turn alone and beside idle connections, by the kind of these."""

    def __init__(self, server, args):
        self.server, self.args = server, args
        self.times = []  # when each active stream's pieces came
        self.rounds = {}  # kind -> [(alone, beside, alone)]
        self.least_comments = None

    async def watch(self, times):
        data = json.dumps(body(self.args.context - 200)).encode()
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

    async def window(self, seconds):
        await asyncio.sleep(0.5)
        begin = [len(times) for times in self.times]
        end = time.perf_counter() + seconds
        samples = []
        while True:
            steps = (await self.stats())["steps"]
            samples.append((steps["count"], steps["seconds"]))
            if time.perf_counter() >= end:
                break
            await asyncio.sleep(0.25)
        gaps = [b - a for times, first in zip(self.times, begin) for a, b in zip(times[first:], times[first + 1:])]
        if len(gaps) < self.args.active * 10:
            raise Failure("the active streams wrote too little: raise --window")
        return Window(samples, gaps)

    async def beside(self, kind, first_bytes, seconds):
        idle = await asyncio.to_thread(Idle, self.server.port, self.args.streams, first_bytes)
        try:
            had = [0] * self.args.streams
            while kind == STREAMS and min(had) < 2:
                await asyncio.sleep(0.5)
                had = [a + b for a, b in zip(had, idle.comments())]
            window = await self.window(seconds)
            comments = min(idle.comments())
            if kind == STREAMS:
                self.least_comments = min(comments, self.least_comments or comments)
        finally:
            idle.close()
        while (await self.stats())["requests"]["waiting"] > 0:
            await asyncio.sleep(0.1)
        return window

    async def round(self, kind, first_bytes):
        self.times = [[] for _ in range(self.args.active)]
        active = [asyncio.create_task(self.watch(times)) for times in self.times]
        while not all(self.times):
            await asyncio.sleep(0.05)
        seconds = min(self.args.window, HEAD_SECONDS) if kind == HEADS else self.args.window
        before = await self.window(seconds)
        beside = await self.beside(kind, first_bytes, seconds)
        after = await self.window(seconds)
        if any(task.done() for task in active):
            raise Failure("the active streams ended too early: raise --context or lower --window")
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)
        while (await self.stats())["requests"]["running"] > 0:
            await asyncio.sleep(0.1)
        self.rounds.setdefault(kind, []).append((before, beside, after))

    async def run(self):
        data = json.dumps(body(16)).encode()
        kinds = {STREAMS: b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data,
                 "connections that say nothing": b"", HEADS: b"GET /health HTTP/1.1\r\nHost: x\r\n"}
        for i in range(self.args.rounds):
            for kind, first_bytes in kinds.items():
                say(f"round {i + 1} of {self.args.rounds}: {kind}")
                await self.round(kind, first_bytes)


def against(rounds, figure):
    """Each round's window beside idle ones against those around it, between which it doesn't lie in the middle: idle streams
    take their time to come, and steps take longer as contexts grow."""
    ratios = []
    for before, beside, after in rounds:
        way = (beside.middle - before.middle) / (after.middle - before.middle)
        ratios.append(figure(beside) / (figure(before) + way * (figure(after) - figure(before))))
    return ratios


def idle(args, folder):
    # Silent connections must last for a window.
    with serve(args, folder, "--max-batch", args.active, "--ctx", args.context, "--ping-seconds", args.ping_seconds,
               "--max-queue", args.streams + args.active, "--idle-seconds", 10 * args.window + 60) as server:
        windows = Windows(server, args)
        asyncio.run(windows.run())
        alone = [window for rounds in windows.rounds.values() for before, _, after in rounds for window in (before, after)]
        noise = [abs(after.step / before.step - 1) for rounds in windows.rounds.values() for before, _, after in rounds]
        print(f"{args.active} active streams beside {args.streams} idle ones, {args.rounds} rounds, windows of {args.window:g} s; "
              f"each stream that waits had {windows.least_comments} comments in a window at least. Step: the engine's own time, "
              "median of quarter-second means; gap: between two tokens at the client, median.\n\n"
              "| beside | step | against alone, median (each round) | mean step | gap | against alone | gap, p99 |\n"
              "|---|---|---|---|---|---|---|")

        def row(kind, chosen, step_ratios, gap_ratios):
            def median_ms(figure):
                return f"{1000 * statistics.median(figure(window) for window in chosen):.2f} ms"
            steps = ", ".join(f"{ratio:.3f}" for ratio in step_ratios)
            print(f"| {kind} | {median_ms(lambda w: w.step)} | "
                  + (f"{statistics.median(step_ratios):.3f} ({steps})" if step_ratios else "")
                  + f" | {median_ms(lambda w: w.mean_step)} | {median_ms(lambda w: w.gap)} | "
                  + (f"{statistics.median(gap_ratios):.3f}" if gap_ratios else "")
                  + f" | {median_ms(lambda w: statistics.quantiles(w.gaps, n=100)[98])} |")

        row("alone", alone, [], [])
        for kind, rounds in windows.rounds.items():
            row(kind, [beside for _, beside, _ in rounds], against(rounds, lambda w: w.step), against(rounds, lambda w: w.gap))
        print(f"\nTwo windows alone of one round, of which the second one's contexts are longer, differ by "
              f"{100 * statistics.median(noise):.1f} % in the median, and by {100 * max(noise):.1f} % at most.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--coppice", default="build/coppice")
    parser.add_argument("--only", choices=("complete", "idle"))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16, help="of each stream that completes")
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--window", type=float, default=10, help="seconds; three must fit into one answer of --context")
    parser.add_argument("--ping-seconds", type=float, default=1, help="between the comments of a stream that waits")
    parser.add_argument("--rounds", type=int, default=5)
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
