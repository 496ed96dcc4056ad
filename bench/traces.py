#!/usr/bin/env python3
"""`make bench-traces TRACES=DIR`: replays recorded requests against coppice's cache (bench/traces), and keeps the figures in
this machine's file of results; with ARGS=--no-save it prints them."""

import argparse
import datetime
import json
import pathlib
import sys

import page
import results
from machine import file_name, machine
from process import Failure, output_of, run_to_the_end, say

REPO = pathlib.Path(__file__).resolve().parent.parent


def report_of(found):
    """What the page shows of a trace, from what traces_bench printed."""
    def row(budget):
        distance = budget["optimum"] - budget["lru"]
        closed = round((budget["coppice"] - budget["lru"]) / distance, 3) if distance > 0.0005 else None
        return {key: budget[key] for key in ("budget_percent", "budget_blocks")} | {
            key: round(budget[key], 5) for key in ("lru", "coppice", "optimum")} | {
            "closed": closed, "million_tokens_per_s": round(found["tokens"] / budget["processor_seconds"] / 1e6, 1)}
    head = ("trace", "requests", "tokens", "distinct_blocks", "blocks", "infinite")
    tiers = [{key: round(value, 5) if isinstance(value, float) else value for key, value in tier.items()} for tier in found["tiers"]]
    return {key: found[key] for key in head} | {"rows": [row(budget) for budget in found["rows"]], "tiers": tiers}


def tree_of(runs):
    """The cache alone at several sizes, M tokens/s of processor time, from kv_bench's medians."""
    rates = {"insert_with_eviction": {}, "match_32k": {}}
    for run in runs:
        name, blocks = run["run_name"].split("/")[:2]
        if run.get("aggregate_name") == "median" and name in rates:
            rates[name][int(blocks)] = round(run["items_per_second"] / 1e6, 1)
    sizes = sorted(rates["match_32k"])
    return {"blocks": sizes, "inserted": [rates["insert_with_eviction"][size] for size in sizes],
            "matched": [rates["match_32k"][size] for size in sizes]}


def run(args):
    traces = sorted(args.traces.glob("*.jsonl"))
    if not traces:
        raise Failure(f"there is no trace (*.jsonl) in {args.traces}")
    reports = []
    for trace in traces:
        say(f"{trace.name}: six budgets, about a minute")
        reports.append(report_of(json.loads(output_of([REPO / "build/bench/traces_bench", trace]))))
    say("the cache alone, about a minute")
    tree = tree_of(json.loads(output_of([REPO / "build/bench/kv_bench", "--benchmark_filter=insert|match", "--benchmark_repetitions=5",
                                         "--benchmark_min_time=0.5", "--benchmark_format=json"]))["benchmarks"])
    if not args.save:
        return print(json.dumps({"reports": reports, "tree": tree}, indent=1))
    path = REPO / f"bench/results/{file_name()}.json"
    content = {"machine": machine(), "results": {}} | results.read(path)
    content["traces"] = {"date": datetime.date.today().isoformat(), "reports": reports, "tree": tree}
    results.write(path, content)
    page.write(path.parent, REPO / "bench/README.md")
    say(f"figures: {path}; page: bench/README.md")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=pathlib.Path, metavar="DIR", help="folder of the traces, *.jsonl")
    parser.add_argument("--no-save", dest="save", action="store_false", help="print the figures, and leave results and page as they are")
    arguments = parser.parse_args()
    sys.exit(run_to_the_end(lambda: run(arguments)))
