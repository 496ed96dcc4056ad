"""The soak: all kinds of load at once against the real binary, for a stated time, and what must hold at the end.

Its last line is one sentence with the figures. Exit status 0 only when nothing was found: every answer in its form, no
block in use at rest, no integrity finding, the same text for the same request, memory flat after the warm-up, and an
orderly end. `make soak MINUTES=60` runs it; --seed repeats what every actor draws (not how the actors interleave)."""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
import actors  # noqa: E402
import vandals  # noqa: E402
from checks import Wrong, check_answer, error_form, hold  # noqa: E402
from coppice_process import Coppice, binary, model_path  # noqa: E402
from memory import Memory, open_files  # noqa: E402
from verify import ENDED, Verifier  # noqa: E402
from wire import Broken, Connection, post_bytes  # noqa: E402
from world import Features, Hung, Keys, Pollers, World, within  # noqa: E402

KINDLY, ROUGH = 14, 8          # workers that mean well, and others
WARM_UP = 0.25                 # of the time, before memory must be flat
RESTS = 10                     # at equal distances, beside those at both ends
FLAT = 0.02
JUDGED_MINUTES = 30            # shorter runs only print memory: graphs of new batch shapes are still being made
DRAIN_S = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("COPPICE_SEED", random.randrange(1 << 30))))
    parser.add_argument("--only", default="", help="acts to perform, with commas; default: all")
    parser.add_argument("--kv-bytes", default="64MiB", help="so small that eviction and preemption never end")
    parser.add_argument("--threads", default=str(max(1, os.cpu_count() - 1)), help="default: a core is left for the clients")
    parser.add_argument("--out", type=Path, help="folder for soak.json and the server's log")
    parser.add_argument("server", nargs="*", help="more options of coppice serve, after --")
    return parser.parse_args()


def server_options(args, features, keys_file):
    options = ["--kv-bytes", args.kv_bytes, "--max-batch", "16", "--threads", args.threads, "--max-queue", "256",
               "--drain-seconds", str(DRAIN_S)]
    if features.check_every:
        options += ["--check-every", "1"]
    if features.api_keys:
        options += ["--api-keys", str(keys_file)] + (["--isolate", "keys"] if features.isolate else [])
    return options + args.server


class Soak:
    def __init__(self, args, server, world):
        self.args, self.server, self.world = args, server, world
        self.verifier, self.pollers, self.memory = Verifier(world), Pollers(world), Memory(server.process.pid)
        self.start = time.monotonic()
        self.tasks, self.files, self.stats = [], [], {}

    def seconds(self):
        return time.monotonic() - self.start

    async def rest(self):
        """Lets the load come to rest, checks, and lets it go on."""
        world = self.world
        await world.gate.close()
        try:
            self.stats, took = await self.verifier.rest()
            self.memory.rest()
            self.files.append(await open_files(self.server.process.pid))
            self.say(f"at rest, checked in {took:.0f} s: nothing is held")
        except (Wrong, Broken, Hung, OSError, KeyError, ValueError) as error:
            world.tally.find(f"at rest: {type(error).__name__}: {error}")
        world.gate.open()

    def say(self, what):
        tally = self.world.tally
        print(f"{self.seconds():7.0f} s  {tally.total():7,} acts  RSS {self.memory.samples[-1].rss_mib:7.1f} MiB  "
              f"{len(tally.findings)} findings  {what}", flush=True)

    def spawn(self):
        world = self.world
        only = set(filter(None, self.args.only.split(",")))
        kindly, rough = actors.acts(world.features), vandals.acts()
        unknown = only - set(kindly) - set(rough)
        if unknown:
            raise SystemExit(f"No such act: {', '.join(unknown)}. There are: {', '.join([*kindly, *rough])}")
        for table, workers in ((kindly, range(KINDLY)), (rough, range(KINDLY, KINDLY + ROUGH))):
            table = {name: act for name, act in table.items() if not only or name in only}
            self.tasks += [asyncio.create_task(world.work(worker, table)) for worker in workers if table]
        self.tasks += [asyncio.create_task(self.pollers.run(path)) for path in ("/metrics", "/health", "/v1/cache/stats")]
        if world.keys:
            self.tasks.append(asyncio.create_task(self.change_keys()))

    async def change_keys(self):
        rng = self.world.rng("keys")
        while True:
            await asyncio.sleep(rng.uniform(2, 20))
            await self.world.perform("change keys", self.world.keys.change, rng, "keys")

    async def load(self):
        """The load, with its rests, until the time is up. The last rest is the end."""
        world = self.world
        self.spawn()
        if not self.args.only:  # the pool must overflow, however short the run
            self.tasks.append(asyncio.create_task(world.perform("crowd", actors.crowd, world.rng("crowd"), "first")))
        length = self.args.minutes * 60
        every = length / (RESTS + 1) if length >= 300 else length / 2
        end = self.seconds() + length
        while self.seconds() < end:
            goal = min(self.seconds() + every, end)
            while self.seconds() < goal:
                await asyncio.sleep(min(30, goal - self.seconds()))
                if self.server.process.poll() is not None:
                    world.tally.find(f"the server ended with status {self.server.process.returncode}")
                    return
                self.say(await self.figures())
            if self.seconds() < end:
                await self.rest()
        await world.gate.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        world.gate.open()
        await self.rest()

    async def figures(self):
        try:
            stats = await within(60, self.world.stats())
        except (Wrong, Broken, Hung, OSError, ValueError) as error:
            return f"no figures: {error!r}"
        blocks, requests = stats["blocks"], stats["requests"]
        return (f"{requests['running']} running, {requests['waiting']} waiting, {blocks['in_use']} of {blocks['total']} blocks "
                f"in use, {stats['evictions']:,} evictions, {stats['preemptions']:,} preemptions")

    async def end(self):
        """SIGTERM while streams run: they finish, new requests are refused, the status is 0."""
        world, process = self.world, self.server.process

        async def stream(connection, body):
            response = await connection.response()
            answer = check_answer(actors.COMPLETIONS, body, response)
            hold(answer and answer.usage["completion_tokens"] == body["max_tokens"], "a stream was cut by the drain")

        body = {"prompt": "The end is", "max_tokens": 80, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        async with Connection(world.port) as first, Connection(world.port) as second:
            for connection in (first, second):
                await connection.send(post_bytes(actors.COMPLETIONS, body, world.key()))
            while (await world.stats())["requests"]["running"] < 2:
                await asyncio.sleep(0.02)
            running = asyncio.gather(stream(first, body), stream(second, body))
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            try:
                late = await world.ask(actors.COMPLETIONS, body, world.key())
                error_form(late, 503)
            except (OSError, Broken):
                pass  # the port is closed already: as good
            await within(DRAIN_S, running)
        for _ in range(200):
            if process.poll() is not None:
                break
            await asyncio.sleep(0.1)
        hold(process.poll() == 0, f"the server's exit status is {process.poll()}")

    async def run(self):
        world = self.world
        watchers = [asyncio.create_task(self.memory.watch()), asyncio.create_task(world.watch_clock())]
        await asyncio.sleep(0)
        await world.features.probe(world)
        print(f"features: {world.features}", flush=True)
        world.context = (await world.stats())["context_length"]
        world.vocabulary = await world.count_vocabulary()
        await self.rest()  # the golden answers of an untouched server
        await self.load()
        watchers[0].cancel()
        self.conclude()
        if self.server.process.poll() is None:
            try:
                await self.end()
            except (Wrong, Broken, Hung, OSError, ValueError) as error:
                world.tally.find(f"at the end: {type(error).__name__}: {error}")

    def conclude(self):
        """What the figures at the end must say."""
        find, stats = self.world.tally.find, self.stats
        self.verdict = self.memory.verdict(WARM_UP)
        if abs(self.verdict.growth) > FLAT and self.args.minutes >= JUDGED_MINUTES:
            find(f"RSS is not flat: {self.verdict}")
        if not stats:
            return
        if not self.args.only:
            for name in ("evictions", "preemptions", "cow_forks"):
                if stats[name] == 0:
                    find(f"the load was too light: no {name}")
        if stats.get("integrity_findings", 0):
            find(f"{stats['integrity_findings']} integrity findings")
        if stats["requests"]["failed"]:
            find(f"{stats['requests']['failed']} requests failed in the engine")
        if self.files and self.files[-1] > self.files[0]:
            find(f"open files at rest grew from {self.files[0]} to {self.files[-1]}")
        for line in self.server.log.read_text(errors="replace").splitlines():
            expected = self.world.keys is not None and str(self.world.keys.path) in line  # its file was made bad on purpose
            if re.search(r"\b(error|critical)\b", re.sub(r"\x1b\[\d*m", "", line)[:40]) and not expected:
                find(f"in the server's log: {line}")

    def report(self):
        tally, stats, verdict = self.world.tally, self.stats, self.verdict
        columns = ("answered", "no room", "refused", "timed out", "vanished", "closed", "ok", "excused", "finding")
        print(f"\n{'act':20}" + "".join(f"{c:>11}" for c in columns))
        for act, outcomes in sorted(tally.outcomes.items()):
            print(f"{act:20}" + "".join(f"{outcomes[c] or '':>11}" for c in columns))
        rests = ", ".join(f"{sample.rss_mib:.1f} ({sample.own_mib:.1f})" for sample in self.memory.at_rest)
        requests = stats.get("requests", {})
        print(f"\nRSS in MiB: {verdict.first_mib:.1f} is the median of the first quarter after the warm-up ({WARM_UP:.0%} of the time), "
              f"{verdict.last_mib:.1f} of the last, {self.memory.peak_mib:.1f} the peak; at each rest (without the mapped model): {rests}")
        print("engine: " + ", ".join(f"{requests.get(o, 0):,} {o}" for o in ENDED)
              + f"; {stats.get('evictions', 0):,} evictions, {stats.get('preemptions', 0):,} preemptions, "
              f"{stats.get('cow_forks', 0):,} forks")
        print(f"verified: {self.verifier.verified} tokens that were chosen under load (largest change of a logprob "
              f"{self.verifier.largest_change:.3f}); slowest look at figures {self.pollers.slowest_s:.2f} s; the machine stood still "
              f"for {self.world.frozen_s:.0f} s, {tally.excused} acts were excused for it")
        for finding in tally.findings[:20]:
            print(f"FINDING {finding}")
        if self.args.out:
            self.args.out.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.server.log, self.args.out / "soak-server.log")
            (self.args.out / "soak.json").write_text(json.dumps({
                "seed": self.world.seed, "minutes": self.args.minutes, "outcomes": tally.outcomes, "findings": tally.findings,
                "stats": stats, "memory": list(map(dataclasses.asdict, self.memory.samples)),
                "memory_at_rest": list(map(dataclasses.asdict, self.memory.at_rest))}))
        self.sentence()

    def sentence(self):
        tally, stats, verdict = self.world.tally, self.stats, self.verdict
        blocks = stats.get("blocks", {})
        print(f"\nsoak {'failed' if tally.findings else 'passed'}: {self.seconds() / 60:.1f} minutes with seed {self.world.seed}, "
              f"{stats.get('requests', {}).get('submitted', 0):,} requests in the engine, {tally.total('vanished'):,} clients that "
              f"vanished, {len(tally.findings)} findings, {stats.get('integrity_findings', 0)} of "
              f"{stats.get('integrity_checks', 0):,} integrity checks failed, {blocks.get('in_use', '?')} of "
              f"{blocks.get('total', '?')} blocks in use at the end, RSS {verdict.first_mib:.1f} MiB after warm-up and "
              f"{verdict.last_mib:.1f} MiB at the end ({verdict.growth:+.2%}).")


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server goes, too
    help_text = subprocess.run([binary(), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    features = Features(help_text)
    with tempfile.TemporaryDirectory(prefix="coppice-soak-") as folder:
        server = None
        keys = Keys(Path(folder) / "keys", lambda: server.process.send_signal(signal.SIGHUP)) if features.api_keys else None
        options = server_options(args, features, keys.path if keys else None)
        print(f"seed {args.seed}; coppice serve --model {model_path()} {' '.join(options)}", flush=True)
        with Coppice(*options) as server:
            soak = Soak(args, server, World(server.port, args.seed, features, keys))
            asyncio.run(soak.run())
            soak.report()
            return 1 if soak.world.tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
