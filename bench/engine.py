"""Engine loads: one program after the other, each warms itself up, loads its model and times what is asked for."""

import csv
import json
import statistics
import tempfile

from kept import Kept
from process import Failure, output_of

KERNEL_CASE = "8b/16k/batch16/unrelated"  # of attention_bench: its keys and values of one layer are 1 GiB


class EngineRuns:
    def __init__(self, args, kept=None):
        self.args, self.kept = args, kept or Kept()

    def figures(self, load, side):
        """The load's figures by their measures, as `side` reaches them."""
        if side.peer:
            return {row.measure: self._peer(row.peer.split(), side) for row in load.rows if row.peer}
        return self._kernel() if load.case == "kernel" else self._coppice(load, side)

    def _coppice(self, load, side):
        found = json.loads(output_of([side.program, "bench", "--model", self.args.model, "--case", load.case, "--threads",
                                      self.args.threads, "--repeat", self.args.repeat, *side.options]))
        if "p99_ms" in found:
            found["p99_over_median"] = found["p99_ms"] / found["median_ms"]
        return found

    def _peer(self, command, side):
        """Tokens a second."""
        program, *arguments = command
        common = [side.program / program, "-m", self.args.model, "-t", self.args.threads, *arguments, *side.options]
        if program == "llama-bench":
            return statistics.median(json.loads(output_of([*common, "-r", self.args.repeat, "-o", "json"]))[0]["samples_ts"])
        lines = output_of([*common, "--output-format", "jsonl"]).splitlines()
        runs = [json.loads(line) for line in lines if line.startswith("{")]
        if not runs:
            raise Failure(f"{program} printed no figures")
        return runs[-1]["speed_tg"]

    def _kernel(self):
        """Attention alone, on more keys and values than any cache holds."""
        with tempfile.NamedTemporaryFile(suffix=".csv") as figures:
            output_of([self.args.attention_bench, "--filter", KERNEL_CASE, "--threads",
                       self.args.threads, "--rounds", "3", "--repetitions", "2", "--csv", figures.name])
            with open(figures.name, encoding="utf-8") as file:
                row = next(csv.DictReader(file), None)
        if row is None:
            raise Failure("attention_bench wrote no figures")
        rate = float(row["unique_gb_per_s"])
        return {"unique_gb_per_s": rate, "bandwidth_share": rate / float(row["bandwidth_gb_per_s"])}

    def search(self, load, sides):
        return {side: self.kept.get(load, side.name, lambda side=side: self.figures(load, side)) for side in sides}

    def rounds(self, load, sides, count):
        """A round's figures by side. Every other round goes backwards, so that a drift of the machine cancels out."""
        for number in range(count):
            yield {side: self.kept.get(load, f"{side.name}, round {number}", lambda side=side: self.figures(load, side))
                   for side in sides[::-1 if number % 2 else 1]}
