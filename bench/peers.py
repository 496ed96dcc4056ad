#!/usr/bin/env python3
"""Compares coppice with llama.cpp's server and bench tools, load by load, each time with the peer's fastest setting.

For each load every setting of the peer runs once, on a server of its own (but see "The search"); then both servers run the
load in turn (A B A B) with the same new prompts, sent by the same client, while the other one is stopped. Used by
scripts/bench-peers.sh.
"""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import time

import client
import loads
import peers_report
from bounds import Bounds
from common import (FLASH, UNIFIED, Comparison, Failure, OthersShare, Server, Setting, commit, cpu_flags, machine,
                    run_to_the_end, say, write_part)
from engine_peers import ENGINE_LOADS, EngineLoad, EnginePeers
from gguf import read_model

CLOSE = 1.1    # a second setting within this factor of the best in the search takes part in the rounds
GIVE_UP = 1.6  # a setting that takes this many times as long as the best cold burst before it is given up
LONG = 100     # seconds: a cold burst that takes the peer longer runs in one round
QUIET = 0.1    # share of the machine that others may use before the report calls the figures noise
MEASURES = {   # name of a client.Result's field: (words, unit, higher is better)
    "wall_s": ("total time", "s", False),
    "ttft_max_s": ("slowest first token", "s", False),
    "decode_tokens_per_s": ("decode", "tok/s", True),
}


class PeerBench:
    def __init__(self, args):
        self.args = args
        self.model = read_model(args.model)
        self.builds = {"": pathlib.Path(args.peers)}
        if args.peers_no_amx:
            self.builds = {"AMX": pathlib.Path(args.peers), "no AMX": pathlib.Path(args.peers_no_amx)}
        self.logs = pathlib.Path(args.json).parent
        self.bounds = Bounds(self.model, args.threads, args.machine_peak)
        self.engine = EnginePeers(args, self.builds, self.bounds)
        self.text = None
        self.hopeless = set()  # settings, slots left out, that were given up on a burst of shared prompts

    # Servers

    def settings(self, load):
        for build, flash, slots in itertools.product(self.builds, FLASH, load.slots or (load.requests,)):
            for unified in UNIFIED if slots > 1 else ("",):
                yield Setting(build, flash, unified, slots)

    def our_server(self, load):
        """As much room for keys and values as the peer with a slot for each request."""
        room = load.requests * load.context * self.model.kv_bytes_per_token
        return Server([self.args.coppice, "serve", "--model", self.args.model, "--threads", self.args.threads,
                       "--kv-bytes", room], self.logs / "bench-peers-coppice.log")

    def peer_server(self, load, setting, slot_files=None):
        """No prompt cache in main memory: every load's prefixes have room in the slots, and copies take time.
        slot_files: the folder that slots are copied through."""
        return Server([self.builds[setting.build] / "llama-server", "-m", self.args.model, "-t", self.args.threads,
                       *setting.options(), "-np", setting.slots, "-c", setting.slots * load.context,
                       "--cache-prompt", "--cache-reuse", 256, "--cache-ram", 0,
                       *(["--slot-save-path", slot_files] if slot_files else [])],
                      self.logs / f"bench-peers-llama-server-{re.sub('[^a-zA-Z0-9]+', '-', str(setting)).strip('-')}.log")

    def warm_up(self, server, load):
        """Graphs and compute buffers of whole chunks and of the load's batch are made before anything is timed."""
        tokens = min(load.prompt, 512)
        self.burst(server, [self.text.tokens(tokens) for _ in range(load.requests)], 8)

    def prime(self, server, load, heads, slot_files):
        """Makes the peer warm: it serves each group's shared text once, and that slot's state is copied to the group's
        other slots. A burst would do it, too, but some settings take many minutes for one."""
        name = "prefix"
        for group, head in enumerate(heads):
            server.post("/v1/completions", {"prompt": head + self.text.tokens(load.own), "max_tokens": 1,
                                            "cache_prompt": True, "id_slot": group}, 1800)
            server.post(f"/slots/{group}?action=save", {"filename": name})
            for slot in range(group + load.groups, load.requests, load.groups):
                server.post(f"/slots/{slot}?action=restore", {"filename": name})
            (pathlib.Path(slot_files) / name).unlink()

    def burst(self, server, prompts, out, limit=1800):
        try:
            return client.run_burst(server.port, prompts, out, limit)
        except OSError as error:
            raise Failure(f"{server.name} broke off ({error}; log: {server.log}): {server.last_words()}") from error

    # The search
    #
    # Where a load is cold and judged by its time, a setting is given up when it takes GIVE_UP times as long as the best
    # before it, and longer bursts of shared prompts don't try it again. A setting that is slow there may still decode
    # fastest, or be fastest once it is warm: those loads try every setting to the end.

    @staticmethod
    def without_slots(setting):
        return re.sub(r", -np \d+$", "", setting)

    @staticmethod
    def gives_up(load):
        return not load.warm and load.rows[0].measure != "decode_tokens_per_s"

    def remember_hopeless(self, load, result):
        """What a burst gave up, longer ones of its kind don't try again."""
        if self.gives_up(load) and load.shared and not load.slots:
            self.hopeless |= {self.without_slots(setting) for setting, found in result.get("search", {}).items()
                              if isinstance(found, str) and found.startswith("given up")}

    def try_cold(self, load, setting, limit):
        with self.peer_server(load, setting) as server:
            self.warm_up(server, load)
            return self.burst(server, self.text.prompts(load, self.text.heads(load)), load.out, limit)

    def try_warm(self, load, setting):
        with tempfile.TemporaryDirectory(dir=self.logs) as slot_files, \
                self.peer_server(load, setting, slot_files) as server:
            self.warm_up(server, load)
            heads = self.text.heads(load)
            self.prime(server, load, heads, slot_files)
            result = self.burst(server, self.text.prompts(load, heads), load.out)
        if result.cached_tokens < 0.9 * load.requests * load.shared:
            raise Failure(f"only {result.cached_tokens} prompt tokens were in the slots")
        return result

    def search(self, load):
        """{setting: what it measured, or a sentence why not}"""
        found, best, settings = {}, None, list(self.settings(load))
        for index, setting in enumerate(settings, 1):
            hopeless = load.shared and not load.slots and self.without_slots(str(setting)) in self.hopeless
            if hopeless and self.gives_up(load):
                found[setting] = "given up on a shorter load"
                continue
            say(f"  search {index} of {len(settings)}: {setting}")
            limit = best * GIVE_UP + 5 if best and self.gives_up(load) else 1800
            try:
                found[setting] = self.try_warm(load, setting) if load.warm else self.try_cold(load, setting, limit)
                best = min(best or limit, found[setting].wall_s)
            except client.TooSlow:
                found[setting] = f"given up after {limit:.0f} s"
            except Failure as error:
                found[setting] = str(error)
                say(f"  {setting}: {error}")
        return found

    def contenders(self, load, found):
        """The best setting, and the next one when it is close. Judged by the load's first row."""
        measure = load.rows[0].measure
        higher = MEASURES[measure][2]
        values = {setting: getattr(result, measure) for setting, result in found.items()
                  if isinstance(result, client.Result)}
        values = {setting: value for setting, value in values.items() if value}
        if not values:
            raise Failure(f"no setting of llama-server could run {load.name}: {next(iter(found.values()))}")
        order = sorted(values, key=values.get, reverse=higher)
        close = [setting for setting in order[1:2]
                 if max(values[setting], values[order[0]]) <= CLOSE * min(values[setting], values[order[0]])]
        return [order[0], *close]

    # The rounds

    def rounds(self, load, settings, comparisons, longest):
        """Both servers in turn; a round's prompts are the same for all. Returns every result by server."""
        results = {}
        with contextlib.ExitStack() as stack:
            servers = {"coppice": stack.enter_context(self.our_server(load))}
            slot_files = stack.enter_context(tempfile.TemporaryDirectory(dir=self.logs)) if load.warm else None
            servers |= {str(setting): stack.enter_context(self.peer_server(load, setting, slot_files))
                        for setting in settings}
            heads = self.text.heads(load)
            for server in servers.values():
                server.hold()
            for name, server in servers.items():
                server.resume()
                self.warm_up(server, load)
                if load.warm and name == "coppice":
                    self.burst(server, self.text.prompts(load, heads), load.out)
                elif load.warm:
                    self.prime(server, load, heads, slot_files)
                server.hold()
            n_rounds = 1 if longest > LONG else self.args.rounds
            for number in range(1, n_rounds + 1):
                say(f"  round {number} of {n_rounds}: {' / '.join(servers)}")
                prompts = self.text.prompts(load, heads if load.warm else self.text.heads(load))
                for name, server in servers.items():
                    server.resume()
                    results.setdefault(name, []).append(self.burst(server, prompts, load.out))
                    server.hold()
                self.compare(load, {name: runs[-1] for name, runs in results.items()}, comparisons)
        return results

    @staticmethod
    def compare(load, round_results, comparisons):
        ours = round_results["coppice"]
        for name, result in round_results.items():
            if (result.prompt_tokens, result.completion_tokens) != (ours.prompt_tokens, ours.completion_tokens):
                raise Failure(f"{load.name}: the servers counted different tokens: coppice {ours.prompt_tokens}, "
                              f"llama-server ({name}) {result.prompt_tokens}")
        for row, comparison in zip(load.rows, comparisons):
            values = {name: getattr(result, row.measure) for name, result in round_results.items()}
            if None in values.values():
                raise Failure(f"{load.name}: the streams never wrote all at the same time, so there is no decode rate")
            comparison.add(values.pop("coppice"), values)

    def run_load(self, load):
        if load.prompt + load.out > self.model.context:
            return {"skipped": f"{load.name} needs {load.prompt + load.out} tokens, the model has {self.model.context}."}
        if self.text is None:
            with self.our_server(load) as server:
                self.text = loads.Text(loads.usable_words(server))
        comparisons = [Comparison(f"{load.title}: {MEASURES[row.measure][0]}", MEASURES[row.measure][1], row.goal,
                                  MEASURES[row.measure][2]) for row in load.rows]
        with self.bounds.measured([load.unique_tokens]):
            found = self.search(load)
            contenders = self.contenders(load, found)
            longest = max(found[setting].wall_s for setting in contenders)
            results = self.rounds(load, contenders, comparisons, longest)
        return {
            "rows": [comparison.as_load_row() for comparison in comparisons],
            "search": {str(setting): dataclasses.asdict(result) if isinstance(result, client.Result) else result
                       for setting, result in found.items()},
            "results": {name: [dataclasses.asdict(result) for result in runs] for name, runs in results.items()},
        }

    def set_bounds(self, report):
        """Of all rows, those kept from earlier runs too, now that everything is measured."""
        for load in [*loads.all_loads(), *ENGINE_LOADS]:
            rows = report["loads"].get(load.name, {}).get("rows", ())
            if not rows:
                continue
            engine = isinstance(load, EngineLoad)
            bounds = self.engine.bounds_of(load) if engine else [self.bounds.of(load, row.measure) for row in load.rows]
            for row, bound in zip(rows, bounds):
                row["bound"] = bound


def estimate(left, bench, rounds):
    """Seconds on a slow machine for each of the loads: only their ratios matter, the clock corrects the rest."""
    seconds = []
    for load in left:
        if isinstance(load, EngineLoad):
            seconds.append((load.case in bench.engine.our_cases) * 15 * len(bench.engine.settings(load)) * (1 + rounds) / 2)
            continue
        prefilled = load.groups if load.warm else load.requests
        burst = (prefilled * load.prompt / 450 + load.requests * load.out / 150) / (4 if load.slots else 1)
        settings = len(list(bench.settings(load)))
        seconds.append(settings * (5 + 1.5 * burst) + 15 + 1.2 * burst * rounds)
    return seconds


def kept(path, report, resume):
    """The loads of an earlier run to go on from, with its bandwidths and multiply-adds. resume: "" none, "same" commit, "any"."""
    if not resume or not path.exists():
        return {}, {}, 0.0
    old = json.loads(path.read_text())
    if any(old.get(key) != report[key] for key in ("machine", "threads", "model", "rounds")):
        say("the earlier run was on another machine, or with other threads, model or rounds: nothing of it is kept")
        return {}, {}, 0.0
    # Older files say neither for each load.
    found = {name: {"commit": "unknown", "date": old.get("date", "unknown")} | load for name, load in old["loads"].items()}
    others = [name for name, load in found.items() if load["commit"] != report["commit"]]
    if others and resume == "same":
        say(f"measured again, because they are of another commit (--resume any keeps them): {', '.join(others)}")
        found = {name: load for name, load in found.items() if name not in others}
    bandwidths = {int(size): rate for size, rate in old.get("bandwidth_bytes_per_s", {}).items()}
    return found, bandwidths, old.get("multiply_adds_per_s", 0.0)


def choose(names):
    everything = [*loads.all_loads(), *ENGINE_LOADS]
    known = [load.name for load in everything]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Failure(f"there is no load named {unknown[0]}; the loads are: {', '.join(known)}")
    return [load for load in everything if not names or load.name in names], len(everything)


def run(args):
    chosen, everything = choose([name for part in args.only for name in part.split(",")])
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    bench = PeerBench(args)
    now = {"commit": commit(), "date": datetime.date.today().isoformat()}
    report = {"machine": machine(), "threads": args.threads, "model": pathlib.Path(args.model).stem,
              "rounds": args.rounds, "amx": "amx_int8" in cpu_flags(), **now}
    report["loads"], bench.bounds.bandwidths, bench.bounds.peak = kept(path, report, args.resume)
    report["bandwidth_bytes_per_s"], report["multiply_adds_per_s"] = bench.bounds.bandwidths, bench.bounds.peak
    for load in loads.all_loads():
        bench.remember_hopeless(load, report["loads"].get(load.name, {}))
    left = [load for load in chosen if load.name not in report["loads"]]
    costs = estimate(left, bench, args.rounds)
    start = time.monotonic()
    for index, load in enumerate(left, 1):
        done, remaining = sum(costs[:index - 1]), sum(costs[index - 1:])
        if done:
            remaining *= (time.monotonic() - start) / done
        say(f"{load.name} ({index} of {len(left)}); about {max(1, round(remaining / 60))} min left")
        others = OthersShare()
        if isinstance(load, EngineLoad):
            result = bench.engine.run_load(load)
        else:
            result = bench.run_load(load)
            bench.remember_hopeless(load, result)
        report["loads"][load.name] = result | now | {"busy": others.share()}
        report["multiply_adds_per_s"] = bench.bounds.peak
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    order = [load.name for load in [*loads.all_loads(), *ENGINE_LOADS]]
    report["loads"] = {name: report["loads"][name] for name in order if name in report["loads"]}
    bench.set_bounds(report)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    complete = len(report["loads"]) == everything
    write = args.write or complete
    chart = pathlib.Path(args.markdown).with_name("benchmarks-peers.png") if write else path.with_suffix(".png")
    peers_report.draw(report, chart)
    missing = [name for name in order if name not in report["loads"]]
    text = peers_report.markdown(report, chart.name, QUIET, CLOSE, GIVE_UP, LONG, missing)
    if write:
        write_part(args.markdown, "make bench-peers", text)
    print(text)
    say(f"figures: {path}; chart: {chart}"
        + ("" if write else f"; {args.markdown} is written when all loads are there, or with --write"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coppice", "peers", "machine-peak", "model", "json", "markdown"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--peers-no-amx", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]",
                        help="only these loads; docs/benchmarks.md stays as it is. Loads: "
                        + ", ".join(load.name for load in [*loads.all_loads(), *ENGINE_LOADS]))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="runs inside one bench program, after its warm-up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md though loads are missing; it names them")
    parser.add_argument("--resume", nargs="?", choices=("same", "any"), const="same", default="",
                        help="keep the loads that an earlier run of the same commit (any: of any) has in its JSON file")
    args = parser.parse_args()
    if min(args.rounds, args.repeat, args.threads) < 1:
        parser.error("--rounds, --repeat and --threads must be at least 1")
    return run_to_the_end(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
