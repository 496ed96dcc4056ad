"""The hostile neighbour: one key sends hostile requests (hostile_requests.py), another short chats. Whatever the first does, the second waits
little longer than alone, the process lives, and its memory stays inside its budgets.

`make hostile ARGS="--seconds 3600 --seed N"`; the seed repeats what each attacker draws, not how they interleave. The last line is one
sentence with the figures, the exit status 0 only when nothing was found. Chats are judged by their 99th percentile only with --judge: a
machine that does other things breaks it. Otherwise a chat that stalls for seconds is a finding."""

import argparse
import asyncio
import collections
import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
import hostile_requests  # noqa: E402
import slow_chats  # noqa: E402
import vision_model  # noqa: E402
from coppice_process import Coppice  # noqa: E402
from memory import resident_mib  # noqa: E402
from wire import Broken, Connection, ask, request_bytes  # noqa: E402

ATTACKERS = 12        # at once, each with one request or one crowd of them
PATIENCE_S = 60       # an attacker's
WAITS_LONGER_S = 0.25
PAUSE_S = 0.05        # between chats
STALL_S = 8           # longer than alone: no machine is that busy
# What docs/operations.md lets clients take with the options below: connections 49 MiB, bodies 64 and what parsing makes of one, 75 of biases,
# 128 that isn't read, logits 64, stored responses 16, texts 16, and what the allocator keeps.
BUDGET_MIB = 640
# Short prompts: how long a step of a large model takes is not what is tried here. What prompts cost before they are refused as too long is.
# Fewer places than the attackers can fill: keys share them (docs/operations.md, "Under pressure").
OPTIONS = ["--kv-bytes", "512MiB", "--max-connections", "256", "--max-body", "4MiB", "--response-store", "16MiB", "--max-queue", "1024",
           "--max-batch", "16", "--step-tokens", "64", "--ctx", "512", "--isolate", "keys"]
# Bounds that are taken out: of a body's size; of what a step computes of prompts, and who gets it, since without keys all are one.
UNBOUND = {"bodies": ["--max-body", "1000GB"], "steps": ["--ctx", "8192", "--step-tokens", "8192", "--isolate", "none"]}


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Attack:
    """Runs in a process of its own, so that what it takes to make requests is not the victim's time."""

    def __init__(self, port, args, last):
        self.port, self.seed, self.last = port, args.seed, last  # last: folder for what each attacker sent last
        self.without = set(filter(None, args.without.split(",")))
        # Shares of requests that show the fault: left to chance, a machine that does other things may see too few of them.
        self.long_prompts, self.endless = (0.2 if args.plant == fault else 0 for fault in ("steps", "bodies"))
        self.tally = collections.Counter()

    async def send(self, connection, rng, data):
        """At once, in drips, only half of it, or with a half-closed end."""
        how = rng.random()
        if how < 0.8:
            await connection.send(data)
        elif how < 0.9:
            await connection.send(data[:rng.randrange(1, len(data))])
            await asyncio.sleep(rng.random() * 3)
            return False
        elif how < 0.95:
            await connection.send(data)
            connection.shut_sending()
        else:
            cuts = sorted(rng.randrange(len(data)) for _ in range(5))
            for begin, end in zip([0, *cuts], [*cuts, len(data)]):
                await connection.send(data[begin:end])
                await asyncio.sleep(rng.random())
        return True

    @staticmethod
    async def send_padded(connection, data, padding):
        """Until the server closes, or has all."""
        head, _, body = data.partition(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            await connection.send(head + b"\r\n\r\n")
            while padding:
                piece = min(padding, 1 << 20)
                await connection.send(b" " * piece)
                padding -= piece
            await connection.send(body)

    async def one(self, rng, data, padding):
        async with Connection(self.port, receive_buffer=rng.choice((None, None, None, 2048))) as connection:
            if padding:
                await self.send_padded(connection, data, padding)
            elif not await self.send(connection, rng, data):
                return "left"
            how = rng.random()
            if how < 0.1:
                await asyncio.sleep(rng.random() * 2)
                connection.reset()
                return "left"
            if how < 0.15:
                await asyncio.sleep(rng.random() * 10)
                return "unread"
            response = await connection.head()
            begun = b""
            with contextlib.suppress(Broken):
                async for piece in connection.pieces(response):
                    begun = (begun + piece)[:4096]
            if found := re.search(rb'"(resp_\w{8,60})"', begun):
                hostile_requests.STORED[:] = [*hostile_requests.STORED[-200:], found[1].decode()]
            return str(response.status)

    async def work(self, worker):
        rng = random.Random(f"{self.seed}/{worker}")
        while True:
            path, body = hostile_requests.request(rng, self.without)
            if rng.random() < self.long_prompts:
                path, body = "/v1/completions", json.dumps({"prompt": [rng.randrange(1000, 49000) for _ in range(2000)], "max_tokens": 1}).encode()
            padding = 0 if body is None else 1 << 30 if rng.random() < self.endless else hostile_requests.padding(rng)
            data = (request_bytes("GET", path, key="hostile") if body is None else
                    request_bytes("POST", path, body, "hostile", "Content-Type: application/json\r\n", padding))
            (self.last / str(worker)).write_bytes(data)
            often = 1 if padding else rng.choice((1, 1, 1, 1, 1, 4))
            draws = [random.Random(rng.random()) for _ in range(often)]
            done = await asyncio.gather(*(asyncio.wait_for(self.one(draw, data, padding), PATIENCE_S) for draw in draws), return_exceptions=True)
            for result in done:
                self.tally[result if isinstance(result, str) else type(result).__name__] += 1
            await asyncio.sleep(0.01)

    async def run(self, seconds):
        tasks = [asyncio.create_task(self.work(worker)) for worker in range(ATTACKERS)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print("attackers: " + ", ".join(f"{count} {what}" for what, count in self.tally.most_common()), flush=True)


def attack(port, args, last):
    asyncio.run(Attack(port, args, last).run(args.seconds))


class Neighbour:
    """Who sends short chats, and looks at /health, and how long both take."""

    def __init__(self, server, find, pictures=False):
        self.server, self.find, self.pictures = server, find, pictures
        self.chats, self.looks = [], []  # seconds
        self.slow = slow_chats.SlowChats(server.process.pid)
        self.peak_mib = 0.0

    def content(self, i):
        if not self.pictures:
            return f"Name tree number {i % 7}."
        words = {"type": "text", "text": vision_model.words(30, 31, 40 + i % 7)}
        return [vision_model.image_part(vision_model.picture(i)), words] if i % 2 == 0 else [words]

    async def chat(self, i):
        body = {"messages": [{"role": "user", "content": self.content(i)}], "max_tokens": 2, "temperature": 0}
        self.slow.begin()
        start = time.monotonic()
        response = await ask(self.server.port, "POST", "/v1/chat/completions", body, "neighbour")
        self.chats.append(time.monotonic() - start)
        self.slow.end(self.chats[-1], response.headers.get("x-request-id"))
        if response.status != 200:
            self.find(f"a short chat got {response.status}: {response.body[:300]!r}")

    async def look(self):
        while True:
            start = time.monotonic()
            with contextlib.suppress(OSError, Broken):
                if (await ask(self.server.port, "GET", "/health")).status == 200:
                    self.looks.append(time.monotonic() - start)
            with contextlib.suppress(OSError):
                self.peak_mib = max(self.peak_mib, resident_mib(self.server.process.pid)[1])
            start = time.monotonic()
            await asyncio.sleep(0.1)
            self.slow.woke_late(time.monotonic() - start - 0.1)

    async def live(self, seconds, stall, enough=lambda: False, patience=120):
        """Chats for so long, or until `enough` says so; the process's end, or a chat that takes `stall` s, is a finding. One that takes
        `patience` s has failed."""
        self.chats, self.looks = [], []
        self.slow.clear()
        look = asyncio.create_task(self.look())
        end, i = time.monotonic() + seconds, 0
        while time.monotonic() < end and self.server.process.poll() is None and not enough():
            try:
                await asyncio.wait_for(self.chat(i), patience)
            except asyncio.TimeoutError:
                self.chats.append(patience)
            except (OSError, Broken) as error:
                self.find(f"a short chat failed: {type(error).__name__} {error}")
                self.chats.append(patience)
                await asyncio.sleep(0.5)
            if self.chats and self.chats[-1] >= stall:
                self.find(f"a short chat took {self.chats[-1]:.1f} s")
            i += 1
            await asyncio.sleep(PAUSE_S)
        look.cancel()
        if self.server.process.poll() is not None:
            self.find(f"the process ended with status {self.server.process.returncode}: {self.server.log.read_text(errors='replace')[-500:]}")


async def plant(fault, pid):
    """A fault that the test must find."""
    await asyncio.sleep(1)
    if fault == "crash":
        os.kill(pid, signal.SIGSEGV)
    else:  # everybody stands still, as when a bound on work is missing
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STALL_S + 4)
        os.kill(pid, signal.SIGCONT)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--quiet", type=float, default=15, help="seconds in which the neighbour is alone")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("COPPICE_SEED", random.randrange(1 << 30))))
    parser.add_argument("--judge", action="store_true", help="the 99th percentile, too: on a machine that does nothing else")
    parser.add_argument("--without", default="", help="fields that no request has, with commas: to look behind what is known")
    parser.add_argument("--pictures", action="store_true", help="a tiny model that sees: most chats have pictures, and every second one of the neighbour's")
    parser.add_argument("--plant", choices=("crash", "stall", *UNBOUND), help="a fault that must be found")
    parser.add_argument("--budget-mib", type=int, default=BUDGET_MIB, help="memory that clients may take; the pool is there from the start")
    parser.add_argument("--out", type=Path, help="folder for the log, and what each attacker sent last")
    parser.add_argument("server", nargs="*", help="more options of coppice serve, after --")
    return parser.parse_args()


async def run(args, server, findings):
    def find(what):
        findings.append(what)
        print(f"FINDING {what}", flush=True)

    neighbour = Neighbour(server, find, args.pictures)
    await neighbour.chat(0)
    await neighbour.live(args.quiet, STALL_S)
    alone, alone_looks, rss = neighbour.chats, neighbour.looks, neighbour.peak_mib
    slowest = max(alone)
    last = args.out / "hostile-last"
    last.mkdir(parents=True, exist_ok=True)
    attackers = multiprocessing.Process(target=attack, args=(server.port, args, last))
    attackers.start()
    planted = asyncio.create_task(plant(args.plant, server.process.pid)) if args.plant in ("crash", "stall") else None
    allowed, before = rss + args.budget_mib, percentile(alone, 0.99)

    def found():  # a planted bound's fault: nobody needs to look on
        if args.plant not in UNBOUND:
            return False
        # More than a hundredth of all the chats that fit into the time: whatever comes, the 99th percentile is one of these.
        late = sum(chat > before + WAITS_LONGER_S for chat in neighbour.chats)
        return findings or neighbour.peak_mib > allowed or (args.judge and late > 0.01 * args.seconds / PAUSE_S + 1)

    stall = slowest + STALL_S
    await neighbour.live(args.seconds, stall, found, patience=stall if args.plant in UNBOUND else 120)
    if planted:
        await planted
    if not found():
        attackers.join(30)
    if attackers.is_alive():
        attackers.terminate()
    under, looks = neighbour.chats, neighbour.looks
    if neighbour.peak_mib > allowed:
        find(f"too much memory: {neighbour.peak_mib:.0f} MiB, alone {rss:.0f}, and {args.budget_mib} more are allowed")
    after = percentile(under, 0.99) if under else float("inf")
    if args.judge and after > before + WAITS_LONGER_S:
        find(f"the 99th percentile of short chats is {after:.2f} s, alone {before:.2f} s")
    if server.process.poll() is None and not found():
        try:
            for _ in range(300):  # what attackers left behind ends
                stats = (await ask(server.port, "GET", "/v1/cache/stats", key="neighbour")).json()
                if stats["requests"]["running"] == stats["requests"]["waiting"] == 0:
                    break
                await asyncio.sleep(0.2)
            else:
                find(f"requests go on without clients: {json.dumps(stats['requests'])}")
        except (OSError, Broken) as error:
            find(f"at the end: {error!r}")
    for line in server.log.read_text(errors="replace").splitlines():  # what its own fault was; a grammar that nothing satisfies is a 400
        if re.search(r"^\S+ \S+ (error|critical) |: 500 ", re.sub(r"\x1b\[\d*m", "", line)):
            find(f"in the server's log: {line[:300]}")
    for line in neighbour.slow.explained(args.out / "hostile-requests.log"):
        print(line)
    print(f"hostile {'failed' if findings else 'passed'}: {args.seconds:.0f} s with seed {args.seed}, {len(under)} short chats took "
          f"{percentile(under, 0.5) if under else 0:.2f} s in the median, {after:.2f} s at the 99th percentile, {max(under, default=0):.2f} s at most (alone "
          f"{percentile(alone, 0.5):.2f}, {before:.2f}, {max(alone):.2f}); /health {percentile(looks or [0], 0.99):.2f} s at the 99th percentile, "
          f"{max(looks, default=0):.2f} s at most (alone {max(alone_looks, default=0):.2f}); {neighbour.peak_mib:.0f} MiB of its own at most (alone {rss:.0f}).")


def main():
    args = arguments()
    findings = []
    with tempfile.TemporaryDirectory(prefix="coppice-hostile-") as folder:
        args.out = args.out or Path(folder)
        keys = Path(folder) / "keys"
        keys.write_text("hostile hostile\nneighbour neighbour\n")
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "hostile-requests.log").unlink(missing_ok=True)
        options = [*OPTIONS, "--request-log", str(args.out / "hostile-requests.log"), "--threads", str(max(1, os.cpu_count() - 1)), *UNBOUND.get(args.plant, []), *args.server]
        if args.plant != "steps":
            options += ["--api-keys", str(keys)]
        options += ["--kv-dir", str(Path(folder) / "tier"), "--kv-dir-bytes", "64MiB", "--kv-dir-free", "0"]  # it is soon full
        print(f"seed {args.seed}; coppice serve {' '.join(options)}", flush=True)
        model = None
        if args.pictures:
            hostile_requests.PICTURES_SHARE = 0.6
            model = str(vision_model.write_model("gemma3", Path(folder)))
        with Coppice(*options, model=model) as server:
            try:
                asyncio.run(run(args, server, findings))
            finally:
                (args.out / "hostile-server.log").write_bytes(server.log.read_bytes())
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
