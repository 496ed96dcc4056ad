#!/usr/bin/env python3
"""Compares coppice with llama.cpp's own tools, built from the same sources with the same compiler.

Runs alternate (coppice, every peer setting, coppice, ...), each program warms itself up, and what counts is the median
over the pairs of the ratio to the peer's best setting. Standard library only. Used by scripts/bench.sh.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

FLASH = ("on", "off")
UNIFIED = {"unified": "--kv-unified", "split": "--no-kv-unified"}


HOPELESS = 1.4  # a peer's setting this much slower than its best is run in the first round only


class Failure(Exception):
    """Ends the benchmark with one sentence."""


def say(text):
    print(f"    {text}", file=sys.stderr, flush=True)


def output_of(command, limit=900):
    """Standard output of a program that must succeed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} took more than {limit} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Failure(f"{' '.join(map(str, command[:3]))} failed: {last}")
    return done.stdout


class Server:
    """A server as a child process on a free port of this machine; ended on leaving the `with`."""

    def __init__(self, command, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self.log = log

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise Failure(f"{self.command[0]} did not start (log: {self.log})")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Comparison:
    """One row of the table: ours and each peer setting's values, in the order of the rounds."""

    def __init__(self, name, unit, goal, higher_is_better=True):
        self.name, self.unit, self.goal, self.higher = name, unit, goal, higher_is_better
        self.ours, self.peers = [], {}

    def add(self, ours, peers):
        self.ours.append(ours)
        for setting, value in peers.items():
            self.peers.setdefault(setting, []).append(value)

    def hopeful(self, setting):
        """False when the first round showed that a setting can't be the best: it isn't run again."""
        if setting not in self.peers:
            return True
        first = {name: values[0] for name, values in self.peers.items()}
        if self.higher:
            return first[setting] * HOPELESS >= max(first.values())
        return first[setting] <= min(first.values()) * HOPELESS

    def best_setting(self):
        pick = max if self.higher else min
        return pick(filter(self.hopeful, self.peers), key=lambda setting: statistics.median(self.peers[setting]))

    def ratio(self):
        """Ours over the peer's best, per round; the median over the rounds."""
        return statistics.median(ours / peer for ours, peer in zip(self.ours, self.peers[self.best_setting()]))

    def reached(self):
        return self.ratio() >= self.goal if self.higher else self.ratio() <= self.goal

    def as_json(self):
        return {
            "name": self.name, "unit": self.unit, "goal": self.goal, "ratio": self.ratio(), "reached": self.reached(),
            "peer_setting": self.best_setting(), "coppice": self.ours, "peers": self.peers,
        }

    def as_row(self):
        best = self.best_setting()
        sign = "≥" if self.higher else "≤"
        return (f"| {self.name} | {statistics.median(self.ours):.1f} {self.unit} "
                f"| {statistics.median(self.peers[best]):.1f} {self.unit} ({best}) "
                f"| **{self.ratio():.2f}** | {sign} {self.goal} | {'yes' if self.reached() else 'no'} |")


class Bench:
    def __init__(self, args):
        self.args = args
        self.threads = str(args.threads)
        self.peers = pathlib.Path(args.peers)

    def coppice_case(self, case):
        return json.loads(output_of([
            self.args.coppice, "bench", "--model", self.args.model, "--case", case, "--threads", self.threads,
            "--repeat", str(self.args.repeat)]))

    def stream(self, comparisons):
        """One stream: a prompt of 512 tokens, then 64 tokens after it."""
        prefill, decode = comparisons
        ours = self.coppice_case("stream")
        peers = {"prefill": {}, "decode": {}}
        for flash in FLASH:
            common = [self.peers / "llama-bench", "-m", self.args.model, "-t", self.threads, "-fa", flash,
                      "-r", str(self.args.repeat), "-o", "json"]
            setting = f"flash attention {flash}"
            for kind, comparison, what in (("prefill", prefill, ["-p", "512", "-n", "0"]),
                                           ("decode", decode, ["-p", "0", "-n", "64", "-d", "512"])):
                if not comparison.hopeful(setting):
                    continue
                runs = json.loads(output_of([*common, *what]))
                peers[kind][setting] = statistics.median(runs[0]["samples_ts"])
        prefill.add(ours["prefill_tokens_per_s"], peers["prefill"])
        decode.add(ours["decode_tokens_per_s"], peers["decode"])

    def batch(self, comparison):
        """Eight unrelated streams decoding at depth 400. Returns our bookkeeping's share of a step."""
        ours = self.coppice_case("batch")
        peers = {}
        for flash, (kind, option) in itertools.product(FLASH, UNIFIED.items()):
            setting = f"flash attention {flash}, {kind} KV"
            if not comparison.hopeful(setting):
                continue
            lines = output_of([
                self.peers / "llama-batched-bench", "-m", self.args.model, "-t", self.threads, "-fa", flash, option,
                "-c", "4096", "-b", "2048", "-ub", "512", "-npp", "400", "-ntg", "64", "-npl", "8",
                "--output-format", "jsonl"]).splitlines()
            runs = [json.loads(line) for line in lines if line.startswith("{")]
            if not runs:
                raise Failure("llama-batched-bench printed no figures")
            peers[setting] = runs[-1]["speed_tg"]
        comparison.add(ours["decode_tokens_per_s"], peers)
        return ours["bookkeeping"]

    def load(self, server_command, name):
        """The demo's eight requests on a fresh server."""
        with Server(server_command, self.args.logs / f"bench-{name}.log") as server:
            return json.loads(output_of([self.args.coppice, "load", "--url", server.url, "--json"]))

    def demo(self, comparison, details):
        ours = self.load([self.args.coppice, "serve", "--model", self.args.model, "--threads", self.threads,
                          "--kv-bytes", "512MiB"], "coppice")
        peers = {}
        details.setdefault("coppice", []).append(ours)
        for flash, (kind, option) in itertools.product(FLASH, UNIFIED.items()):
            setting = f"flash attention {flash}, {kind} KV"
            if not comparison.hopeful(setting):
                continue
            result = self.load([
                str(self.peers / "llama-server"), "-m", self.args.model, "-t", self.threads, "-fa", flash, option,
                "-np", "8", "-c", "16384"], f"llama-server-{flash}-{kind}")
            details.setdefault(setting, []).append(result)
            peers[setting] = result["wall_ms"] / 1000
        comparison.add(ours["wall_ms"] / 1000, peers)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    extras = [name for name, flag in (("AVX2", " avx2 "), ("AVX-512", " avx512f "), ("VNNI", " avx512_vnni "),
                                      ("AMX", " amx_int8 ")) if flag in flags]
    return f"{model}, {os.cpu_count()} cores ({', '.join(extras) or 'no SIMD extension'})"


def markdown(args, comparisons, bookkeeping, gaps, details):
    lines = [
        "# Benchmarks", "",
        "Written by `make bench`. coppice against llama.cpp's own tools, built from the same sources with the same",
        "compiler. Runs alternate; each figure is a median; the ratio is taken round by round against the peer's best",
        "setting (flash attention on or off, one unified KV cache or one for each sequence), then its median. A setting that",
        f"was {HOPELESS} times slower than the best in the first round is not run again.", "",
        f"{machine()}; {args.threads} threads; {pathlib.Path(args.model).stem}; {args.rounds} rounds; "
        f"{datetime.date.today().isoformat()}.", "",
        "| load | coppice | llama.cpp at its best | ratio | goal | reached |",
        "|---|---|---|---|---|---|",
        *(comparison.as_row() for comparison in comparisons), "",
        "The last row is `llama-server`, all eight requests arriving at once on an empty cache.", "",
        "| figure of coppice alone | value | goal | reached |",
        "|---|---|---|---|",
        f"| bookkeeping of a step (8 streams), share of its time | {100 * bookkeeping:.2f} % | ≤ 2 % "
        f"| {'yes' if bookkeeping <= 0.02 else 'no'} |",
        f"| a running stream while 4,000 tokens prefill beside it ({gaps['count']:.0f} gaps): p99 gap / median gap of that time "
        f"| {gaps['p99_ms']:.0f} ms / {gaps['median_ms']:.0f} ms = {gaps['p99_ms'] / gaps['median_ms']:.2f} | ≤ 3 "
        f"| {'yes' if gaps['p99_ms'] <= 3 * gaps['median_ms'] else 'no'} |",
        f"| median gap of that stream before the long prompt came | {gaps['quiet_median_ms']:.1f} ms | | |", "",
        "The demo's load in detail (medians):", "",
        "| server | total time | first token, median | slowest | prompt tokens reused | tokens written |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in details.items():
        def middle(key):
            return statistics.median(run[key] for run in runs)
        lines.append(f"| {'coppice' if name == 'coppice' else 'llama-server, ' + name} | {middle('wall_ms') / 1000:.2f} s "
                     f"| {middle('ttft_ms_p50') / 1000:.2f} s | {middle('ttft_ms_max') / 1000:.2f} s "
                     f"| {middle('cached_tokens'):.0f} of {middle('prompt_tokens'):.0f} | {middle('completion_tokens'):.0f} |")
    return "\n".join(lines) + "\n"


def run(args):
    bench = Bench(args)
    prefill = Comparison("one stream: prefill of 512", "tok/s", 0.95)
    decode = Comparison("one stream: decode of 64 at depth 512", "tok/s", 0.95)
    batch = Comparison("8 unrelated streams: decode at depth 400", "tok/s", 0.9)
    demo = Comparison("the demo's eight requests: total time", "s", 0.5, higher_is_better=False)
    comparisons = [prefill, decode, batch, demo]
    bookkeeping, gaps, details = [], [], {}
    for round_number in range(1, args.rounds + 1):
        say(f"round {round_number} of {args.rounds}: one stream")
        bench.stream((prefill, decode))
        say(f"round {round_number} of {args.rounds}: eight streams")
        bookkeeping.append(bench.batch(batch))
        say(f"round {round_number} of {args.rounds}: gaps")
        gaps.append(bench.coppice_case("gaps"))
        say(f"round {round_number} of {args.rounds}: the demo's load")
        bench.demo(demo, details)
    share = statistics.median(bookkeeping)
    middle_gaps = {key: statistics.median(gap[key] for gap in gaps) for key in gaps[0]}
    result = {
        "machine": machine(), "threads": args.threads, "rounds": args.rounds,
        "comparisons": [comparison.as_json() for comparison in comparisons],
        "bookkeeping": bookkeeping, "gaps": gaps, "demo": details,
    }
    pathlib.Path(args.json).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    text = markdown(args, comparisons, share, middle_gaps, details)
    if not args.quick:
        pathlib.Path(args.markdown).write_text(text)
    print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "peers", "model", "json", "markdown"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="runs inside one program, after its warm-up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="one round, no file in docs: only shows that it works")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.repeat = 1, 1
    args.logs = pathlib.Path(args.json).parent
    try:
        run(args)
    except (Failure, OSError, KeyError, json.JSONDecodeError) as error:
        print(f"\ncoppice: the benchmark stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
