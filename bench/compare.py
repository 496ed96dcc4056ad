#!/usr/bin/env python3
"""Compares coppice with llama.cpp's own tools, built from the same sources with the same compiler.

Runs alternate (coppice, every peer setting, coppice, ...), each program warms itself up, and what counts is the median
over the pairs of the ratio to the peer's best setting. Standard library only. Used by scripts/bench.sh.
"""

import argparse
import csv
import datetime
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile

from bounds import Bounds
from common import (FLASH, HOPELESS, UNIFIED, Comparison, Failure, Server, commit, machine, output_of, run_to_the_end, say,
                    write_part)
from gguf import read_model
from loads import Load


BACKENDS = ("tree", "gather", "dense")
FORMATS = ("f16", "int8", "turbo4")
KERNEL_CASE = "8b/16k/batch16/unrelated"  # of attention_bench: its keys and values of one layer are 1 GiB
DECODED = 64  # tokens that `coppice bench` decodes from a depth
DEPTHS = {"depth": (2048, 0.97), "deep": (16384, 1.3)}  # case: (tokens, goal of the other formats over f16)


class Bench:
    def __init__(self, args):
        self.args = args
        self.threads = str(args.threads)
        self.peers = pathlib.Path(args.peers)

    def backends(self, figures):
        """Decode speed and KV bytes of each attention backend on eight streams that share nothing."""
        for backend in BACKENDS:
            result = self.coppice_case("batch", "--attention", backend)
            figures.setdefault(backend, []).append((result["decode_tokens_per_s"], result["kv_mib_per_step"]))

    def formats(self, case, figures):
        """Decode speed of one stream with each KV format."""
        for kv_format in FORMATS:
            result = self.coppice_case(case, "--kv-format", kv_format)
            figures.setdefault(case, {}).setdefault(kv_format, []).append(result["decode_tokens_per_s"])

    def coppice_case(self, case, *options):
        return json.loads(output_of([
            self.args.coppice, "bench", "--model", self.args.model, "--case", case, "--threads", self.threads,
            "--repeat", str(self.args.repeat), *options]))

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

    def kernel(self):
        """Attention alone, decode, on more than any cache holds: GB/s, and what memory gives."""
        with tempfile.NamedTemporaryFile(suffix=".csv") as figures:
            output_of([self.args.attention_bench, "--filter", KERNEL_CASE, "--backend", "tree", "--threads", self.threads,
                       "--rounds", "3", "--repetitions", "2", "--csv", figures.name])
            with open(figures.name, encoding="utf-8") as file:
                row = next(csv.DictReader(file), None)
        if row is None:
            raise Failure("attention_bench wrote no figures")
        return float(row["unique_gb_per_s"]), float(row["bandwidth_gb_per_s"])

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


def shared_rows(shared):
    """Sixteen decodes on one prefix of 2,048 tokens."""
    def middle(key):
        return statistics.median(run[key] for run in shared)
    return [f"| the same, 16 streams on one prefix of 2,048 tokens | {100 * middle('bookkeeping'):.2f} % | ≤ 2 % "
            f"| {'yes' if middle('bookkeeping') <= 0.02 else 'no'} |",
            f"| KV bytes that such a step reads / different bytes | {middle('kv_read_ratio'):.2f} | ≤ 1.05 "
            f"| {'yes' if middle('kv_read_ratio') <= 1.05 else 'no'} |"]


def format_rows(formats, bounds):
    for case, figures in formats.items():
        tokens, goal = DEPTHS[case]
        for kv_format in FORMATS:
            pairs = [one / f16 for one, f16 in zip(figures[kv_format], figures["f16"])]
            ratio, speed = statistics.median(pairs), statistics.median(figures[kv_format])
            depth = tokens + DECODED // 2
            bound = 1 / bounds.step_seconds(1, depth, depth, kv_format)
            reached = " | | " if kv_format == "f16" else f" {ratio:.2f} | ≥ {goal} | {'yes' if ratio >= goal else 'no'} "
            yield f"| {tokens:,} | {kv_format} | {speed:.1f} tok/s |{reached}| {bound:.0f} tok/s ({100 * speed / bound:.0f} %) |"


def kernel_row(kernel):
    rate, bandwidth = (statistics.median(values) for values in zip(*kernel))
    share = statistics.median(one / of for one, of in kernel)
    return (f"| attention alone, 16 unrelated decodes at 16,384, 32 query heads on 8 of 128: share of the bandwidth "
            f"| {rate:.1f} of {bandwidth:.1f} GB/s = {100 * share:.0f} % | ≥ 70 % | {'yes' if share >= 0.7 else 'no'} |")


def demo_as_load(runs):
    """The demo's requests, in the words of bench-peers: what all of them share, and what each has of its own. From
    coppice's own counts: all but the first find the shared tokens."""
    run = runs[0]
    requests = len(run["answers"])
    shared = run["cached_tokens"] // (requests - 1)
    return Load("demo", "", requests, shared, (), own=run["prompt_tokens"] // requests - shared,
                out=run["completion_tokens"] // requests)


def bounds_of(bounds, demo_runs):
    """Of the table's rows: prefill of 512, decode at depth 512, eight unrelated streams at 400, the demo."""
    middle = DECODED // 2
    return [512 / bounds.prefill_seconds(512, 0, 1), 1 / bounds.step_seconds(1, 512 + middle, 512 + middle),
            8 / bounds.step_seconds(8, 8 * (400 + middle), 400 + middle), bounds.of(demo_as_load(demo_runs), "wall_s")]


def markdown(args, comparisons, bounds, figures):
    limits = bounds_of(bounds, figures["demo"]["coppice"])
    bookkeeping = statistics.median(figures["bookkeeping"])
    gaps = {key: statistics.median(gap[key] for gap in figures["gaps"]) for key in figures["gaps"][0]}
    backends = figures["backends"]
    lines = [
        "## The engine and the demo", "",
        "Written by `make bench`. coppice against llama.cpp's own tools, built from the same sources with the same",
        "compiler. Runs alternate; each figure is a median; the ratio is taken round by round against the peer's best",
        "setting (flash attention on or off, one unified KV cache or one for each sequence), then its median. A setting that",
        f"was {HOPELESS} times slower than the best in the first round is not run again. The bound is what memory and",
        "multiplication allow (bench/bounds.py).", "",
        f"{machine()}; {args.threads} threads; {pathlib.Path(args.model).stem}; {args.rounds} {'round' if args.rounds == 1 else 'rounds'}; "
        f"{datetime.date.today().isoformat()}, commit {commit()}.", "",
        "| load | coppice | llama.cpp at its best | ratio | goal | reached | bound (our share of it) |",
        "|---|---|---|---|---|---|---|",
        *(comparison.as_row(bound) for comparison, bound in zip(comparisons, limits, strict=True)), "",
        "The last row is `llama-server` with a slot for each of the eight requests, which arrive at once on an empty cache.", "",
        "| figure of coppice alone | value | goal | reached |",
        "|---|---|---|---|",
        f"| bookkeeping of a step (8 streams), share of its time | {100 * bookkeeping:.2f} % | ≤ 2 % "
        f"| {'yes' if bookkeeping <= 0.02 else 'no'} |", *shared_rows(figures["shared"]), kernel_row(figures["kernel"]),
        f"| a running stream while 4,000 tokens prefill beside it ({gaps['count']:.0f} gaps): p99 gap / median gap of that time "
        f"| {gaps['p99_ms']:.0f} ms / {gaps['median_ms']:.0f} ms = {gaps['p99_ms'] / gaps['median_ms']:.2f} | ≤ 3 "
        f"| {'yes' if gaps['p99_ms'] <= 3 * gaps['median_ms'] else 'no'} |",
        f"| median gap of that stream before the long prompt came | {gaps['quiet_median_ms']:.1f} ms | | |", "",
        "The demo's load in detail (medians):", "",
        "| server | total time | first token, median | slowest | prompt tokens reused | tokens written |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in figures["demo"].items():
        def middle(key):
            return statistics.median(run[key] for run in runs)
        lines.append(f"| {'coppice' if name == 'coppice' else 'llama-server, ' + name} | {middle('wall_ms') / 1000:.2f} s "
                     f"| {middle('ttft_ms_p50') / 1000:.2f} s | {middle('ttft_ms_max') / 1000:.2f} s "
                     f"| {middle('cached_tokens'):.0f} of {middle('prompt_tokens'):.0f} | {middle('completion_tokens'):.0f} |")
    lines += [
        "", "Attention backends, eight streams that share nothing, decoding at depth 400 (KV bytes: what attention loads, copies",
        "of the pool's blocks included):", "",
        "| backend | decode | over dense | KV read in a step | over dense |",
        "|---|---|---|---|---|",
    ]
    speed = {name: statistics.median(s for s, _ in runs) for name, runs in backends.items()}
    read = {name: statistics.median(r for _, r in runs) for name, runs in backends.items()}
    for name in backends:
        lines.append(f"| {name} | {speed[name]:.1f} tok/s | {speed[name] / speed['dense']:.2f} | {read[name]:.1f} MiB "
                     f"| {read[name] / read['dense']:.2f} |")
    lines += [
        "", "KV formats (docs/adr/0009-kv-formats.md), one stream's decode:", "",
        "| depth | format | decode | over f16 | goal | reached | bound (our share of it) |",
        "|---|---|---|---|---|---|---|", *format_rows(figures["formats"], bounds),
    ]
    return "\n".join(lines) + "\n"


def one_round(bench, comparisons, figures, name):
    prefill, decode, batch, demo = comparisons
    say(f"{name}: one stream")
    bench.stream((prefill, decode))
    say(f"{name}: eight streams")
    figures["bookkeeping"].append(bench.batch(batch))
    say(f"{name}: sixteen streams on one prefix")
    figures["shared"].append(bench.coppice_case("shared"))
    say(f"{name}: gaps")
    figures["gaps"].append(bench.coppice_case("gaps"))
    say(f"{name}: attention alone")
    figures["kernel"].append(bench.kernel())
    say(f"{name}: backends")
    bench.backends(figures["backends"])
    say(f"{name}: KV formats")
    for case in list(DEPTHS)[:1 if bench.args.quick else None]:
        bench.formats(case, figures["formats"])
    say(f"{name}: the demo's load")
    bench.demo(demo, figures["demo"])


def run(args):
    bench = Bench(args)
    comparisons = [
        Comparison("one stream: prefill of 512", "tok/s", 1.0),
        Comparison("one stream: decode of 64 at depth 512", "tok/s", 1.0),
        Comparison("8 unrelated streams: decode at depth 400", "tok/s", 1.5),
        Comparison("the demo's eight requests: total time", "s", 0.5, higher_is_better=False),
    ]
    figures = {"bookkeeping": [], "shared": [], "gaps": [], "kernel": [], "demo": {}, "backends": {}, "formats": {}}
    bounds = Bounds(read_model(args.model), args.threads, args.machine_peak)
    depths = [tokens for tokens, _ in DEPTHS.values()]
    with bounds.measured([tokens + DECODED // 2 for tokens in (512, *depths)] + [8 * (400 + DECODED // 2)], FORMATS):
        for number in range(1, args.rounds + 1):
            one_round(bench, comparisons, figures, f"round {number} of {args.rounds}")
    result = {
        "machine": machine(), "threads": args.threads, "rounds": args.rounds, "commit": commit(),
        "comparisons": [comparison.as_json() for comparison in comparisons], **figures,
    }
    pathlib.Path(args.json).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    text = markdown(args, comparisons, bounds, figures)
    if not args.quick:
        write_part(args.markdown, "make bench", text)
    print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "attention-bench", "peers", "machine-peak", "model", "json", "markdown"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="runs inside one program, after its warm-up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="one round, no file in docs: only shows that it works")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.repeat = 1, 1
    args.logs = pathlib.Path(args.json).parent
    return run_to_the_end(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
