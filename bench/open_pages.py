#!/usr/bin/env python3
"""What pages that are open cost a step: open_pages.py COPPICE MODEL. Eight streams decode on one prefix, in turns without a page and with ten;
of each turn the mean time of a step counts, and the part of it that isn't computation."""

import argparse
import os
import re
import socket
import statistics
import sys
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from process import Server, run_to_the_end, say

PREFIX = list(range(1000, 1600))


def read_page(connection: socket.socket):
    """As a browser does: takes every frame. Ends when the other side does."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # this thread: a browser has another machine's cores
    try:
        while connection.recv(1 << 16):
            pass
    except OSError:
        pass


class Pages:
    """So many pages that are open."""

    def __init__(self, port: int, n: int):
        self.connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
        for connection in self.connections:
            connection.sendall(b"GET /v1/cache/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            threading.Thread(target=read_page, args=[connection], daemon=True).start()

    def close(self):
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def figure(metrics: str, name: str) -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.M).group(1))


class Figures:
    """The engine's counters so far."""

    def __init__(self, server: Server):
        with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
            metrics = answer.read().decode()
        self.steps = figure(metrics, "coppice_step_duration_seconds_count")
        self.seconds = figure(metrics, "coppice_step_duration_seconds_sum")
        self.bookkeeping = figure(metrics, 'coppice_step_phase_seconds_total{phase="bookkeeping"}')


def turn(server: Server, pages: int, tokens: int) -> tuple[float, float]:
    """Microseconds of a step, and those of its bookkeeping, in which the pages' picture is made."""
    opened = Pages(server.port, pages)
    body = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    before = Figures(server)
    with ThreadPoolExecutor(8) as pool:
        for i in range(8):
            pool.submit(server.post, "/v1/completions", body | {"prompt": [*PREFIX, 2000 + i]}, 120)
    after = Figures(server)
    opened.close()
    steps = after.steps - before.steps
    return 1e6 * (after.seconds - before.seconds) / steps, 1e6 * (after.bookkeeping - before.bookkeeping) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("coppice", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [options.coppice, "serve", options.model, "--kv-bytes", "256MiB"]
        with Server(command, Path(folder) / "log") as server:
            turn(server, options.pages, options.tokens)  # warms both up
            alone, open_pages = [], []
            for i in range(options.turns):
                for pages, to in [(0, alone), (options.pages, open_pages)][:: 1 if i % 2 == 0 else -1]:
                    to.append(turn(server, pages, options.tokens))
                say(f"step {alone[-1][0]:.0f} us alone, {open_pages[-1][0]:.0f} us with {options.pages} pages; "
                    f"bookkeeping {alone[-1][1]:.1f}, {open_pages[-1][1]:.1f} us")
    ratios = sorted(with_pages[0] / without[0] for without, with_pages in zip(alone, open_pages, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    more = statistics.median(b[1] for b in open_pages) - statistics.median(a[1] for a in alone)
    share = more / statistics.median(a[0] for a in alone)
    print(f"with {options.pages} pages open a step takes {middle:.4f} times as long (quartiles {low:.4f} to {high:.4f}); "
          f"the step's thread works {more:.1f} us longer in a step, {100 * share:.2f} %")


if __name__ == "__main__":
    sys.exit(run_to_the_end(main))
