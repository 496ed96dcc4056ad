"""Loads of `make bench-peers` without HTTP: `coppice bench` against llama.cpp's bench tools."""

import dataclasses
import functools
import itertools
import json
import re
import statistics

from common import FLASH, UNIFIED, Comparison, Failure, Setting, output_of, say


@dataclasses.dataclass(frozen=True)
class EngineLoad:
    """A load without HTTP: `coppice bench --case CASE` against one of llama.cpp's bench tools."""
    name: str
    case: str
    rows: tuple      # (key of both sides' figures, title, goal, sequences, unique tokens of a decode step or 0)
    unified: tuple   # keys of UNIFIED to try
    depth: int = 2048  # tokens before those that are timed


ENGINE_LOADS = [
    EngineLoad("engine-shared", "shared",
               (("decode_tokens_per_s", "engine: 16 decodes on one prefix of 2,048 tokens", 3, 16, 2048 + 16 * 32),),
               tuple(UNIFIED)),
    EngineLoad("engine-depth", "depth",
               (("decode_tokens_per_s", "engine: one stream at depth 2,048, decode of 64", 2, 1, 2048 + 32),
                ("prefill_tokens_per_s", "engine: prefill of 512 at depth 2,048", 2, 1, 0)), ("",)),
    EngineLoad("engine-short", "stream", (("prefill_tokens_per_s", "engine: prefill of 512, short context", 1, 1, 0),),
               ("",), depth=0),
]


class EnginePeers:
    """builds: {name: folder of llama.cpp's programs}; bounds: a Bounds."""

    def __init__(self, args, builds, bounds):
        self.args, self.builds, self.bounds = args, builds, bounds

    def settings(self, load):
        return [Setting(*parts) for parts in itertools.product(self.builds, FLASH, load.unified)]

    def peer(self, load, setting):
        common = ["-m", self.args.model, "-t", str(self.args.threads), *setting.options()]
        tools = self.builds[setting.build]
        if load.case == "shared":
            lines = output_of([tools / "llama-batched-bench", *common, "-c", str(16 * 2304), "-b", "2048", "-ub", "512",
                               "-npp", "2048", "-ntg", "64", "-npl", "16", "-pps", "--output-format", "jsonl"])
            runs = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
            if not runs:
                raise Failure("llama-batched-bench printed no figures")
            return {"decode_tokens_per_s": runs[-1]["speed_tg"]}
        runs = json.loads(output_of([tools / "llama-bench", *common, "-p", "512", "-n", "64", "-d", str(load.depth),
                                     "-r", str(self.args.repeat), "-o", "json"]))
        return {"prefill_tokens_per_s" if run["n_gen"] == 0 else "decode_tokens_per_s":
                statistics.median(run["samples_ts"]) for run in runs}

    @functools.cached_property
    def our_cases(self):
        found = re.search(r"--case TEXT:\{([^}]*)\}", output_of([self.args.coppice, "bench", "--help"]))
        return found.group(1).split(",") if found else []

    def run_load(self, load):
        if load.case not in self.our_cases:
            return {"skipped": f"{load.name} was left out: this coppice has no `bench --case {load.case}`."}
        comparisons = [Comparison(title, "tok/s", goal) for _, title, goal, _, _ in load.rows]
        with self.bounds.measured([unique for *_, unique in load.rows if unique]):
            for number in range(1, self.args.rounds + 1):
                self.round(load, number, comparisons)
        return {"rows": [comparison.as_load_row() for comparison in comparisons]}

    def bounds_of(self, load):
        """Of each row: tokens/s at the load's depth, decode of 64 by all streams, or prefill of 512."""
        return [streams / self.bounds.step_seconds(streams, unique, load.depth + 32) if unique
                else 512 / self.bounds.prefill_seconds(512, load.depth, 1) for _, _, _, streams, unique in load.rows]

    def round(self, load, number, comparisons):
        say(f"  round {number} of {self.args.rounds}: coppice")
        ours = json.loads(output_of([self.args.coppice, "bench", "--model", self.args.model, "--case", load.case,
                                     "--threads", str(self.args.threads), "--repeat", str(self.args.repeat)]))
        peers = {}
        for setting in self.settings(load):
            if any(comparison.hopeful(str(setting)) for comparison in comparisons):
                say(f"  round {number} of {self.args.rounds}: {setting}")
                peers[str(setting)] = self.peer(load, setting)
        for (key, *_), comparison in zip(load.rows, comparisons):
            comparison.add(ours[key], {name: figures[key] for name, figures in peers.items()})
