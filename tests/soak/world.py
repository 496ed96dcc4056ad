"""What all actors share: the server's address, the tally, the gate that lets the load rest, the clock."""

import asyncio
import collections
import contextlib
import json
import random
import time

from checks import error_form, hold
from wire import ask

PATIENCE_S = 300  # no answer for so long: it will never come
FROZEN_S = 3      # a gap in the clock: the machine stood still, and timeouts of either side mean nothing


class Hung(Exception):
    """Something took longer than anybody waits."""


async def within(seconds, doing):
    """As wait_for(), but counted in ticks of a second: time in which the whole machine stood still doesn't count."""
    task = asyncio.ensure_future(doing)
    try:
        for _ in range(int(seconds)):
            if (await asyncio.wait({task}, timeout=1))[0]:
                return task.result()
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    raise Hung(f"nothing within {seconds} s")


class Tally:
    """Counts of what was done and how it went; findings in words."""

    def __init__(self):
        self.outcomes = collections.defaultdict(collections.Counter)  # act -> outcome -> times
        self.findings = []
        self.excused = 0

    def count(self, act, outcome):
        self.outcomes[act][outcome] += 1

    def find(self, what):
        self.findings.append(what)
        print(f"FINDING {what}", flush=True)

    def total(self, *outcomes):
        return sum(n for counter in self.outcomes.values() for outcome, n in counter.items()
                   if not outcomes or outcome in outcomes)


class Gate:
    """Open: actors act. Closed: they stop after the act in hand, until it opens again."""

    def __init__(self):
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0
        self._left = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def act(self):
        await self._open.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            async with self._left:
                self._left.notify_all()

    async def close(self):
        self._open.clear()
        async with self._left:
            await self._left.wait_for(lambda: self._inside == 0)

    def open(self):
        self._open.set()


class Features:
    """What this build of the server can do, found out by asking: a known field of a wrong type is refused by name, an
    unknown one is ignored."""

    FIELDS = ("priority", "timeout", "cache_report")

    def __init__(self, help_text):
        self.api_keys = "--api-keys" in help_text
        self.isolate = "--isolate" in help_text
        self.check_every = "--check-every" in help_text
        self.fields = set()

    async def probe(self, world):
        for field in self.FIELDS:
            body = {"prompt": "a", "max_tokens": 1, field: [[]]}
            response = await world.ask("/v1/completions", body, key=world.key())
            if response.status == 400 and response.json()["error"]["param"] == field:
                self.fields.add(field)

    def __str__(self):
        options = [name for name in ("api_keys", "isolate", "check_every") if getattr(self, name)]
        return ", ".join(options + sorted(self.fields)) or "none"


class World:
    def __init__(self, port, seed, features, keys):
        self.port, self.seed, self.features, self.keys = port, seed, features, keys
        self.tally, self.gate = Tally(), Gate()
        self.records = []       # greedy answers whose tokens a rest can verify (verify.py)
        self.context = 0        # tokens of a request; known once the server is up
        self.vocabulary = 0
        self.last_freeze = -1e9
        self.frozen_s = 0.0
        self.ending = False

    def rng(self, *name):
        return random.Random(f"{self.seed}/{'/'.join(map(str, name))}")

    def key(self, rng=None):
        return self.keys.any(rng) if self.keys else None

    async def ask(self, path, body=None, key=None):
        return await ask(self.port, "GET" if body is None else "POST", path, body, key)

    async def stats(self):
        response = await self.ask("/v1/cache/stats", key=self.key())
        hold(response.status == 200, "no stats:", response.status)
        return response.json()

    async def tokenize(self, body, key):
        response = await self.ask("/tokenize", body, key)
        hold(response.status == 200, "no tokens:", response.status, response.body[:200])
        return response.json()["tokens"]

    async def count_vocabulary(self):
        low, high = 1, 1 << 22
        while low < high:
            middle = (low + high) // 2
            response = await self.ask("/detokenize", {"tokens": [middle]}, self.key())
            low, high = (middle + 1, high) if response.status == 200 else (low, middle)
        return low

    async def watch_clock(self):
        """Notes when the whole machine stood still (a laptop that slept, a paused container)."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            if now - last > FROZEN_S:
                self.last_freeze = now
                self.frozen_s += now - last
            last = now

    async def perform(self, name, act, rng, worker):
        """One act behind the gate, its outcome in the tally."""
        async with self.gate.act():
            start = time.monotonic()
            try:
                self.tally.count(name, await within(PATIENCE_S, act(self, rng)))
            except Exception as error:  # of any kind: an answer that an act can't read is a finding, too
                if self.last_freeze >= start:
                    self.tally.excused += 1
                    self.tally.count(name, "excused")
                    return
                self.tally.count(name, "finding")
                self.tally.find(f"{name} (worker {worker}): {type(error).__name__}: {error}")

    async def work(self, worker, acts):
        """Acts by chance, weighted, for ever. acts: {name: (function, weight)}."""
        rng = self.rng("worker", worker)
        names = list(acts)
        weights = [acts[name][1] for name in names]
        while True:
            name = rng.choices(names, weights)[0]
            # Its own source of chance: what an act draws must not depend on how the acts before it went.
            await self.perform(name, acts[name][0], random.Random(rng.random()), worker)


class Pollers:
    """Those who only look: figures must be there at any time, and fit together."""

    def __init__(self, world):
        self.world, self.slowest_s, self.looks = world, 0.0, 0
        self._counters = {}

    async def run(self, path):
        look = {"/metrics": self._metrics, "/health": self._health, "/v1/cache/stats": self._stats}[path]
        rng = self.world.rng("poller", path)
        while True:
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            await self.world.perform(f"look at {path}", lambda world, _: self._timed(path, look), rng, "poller")

    async def _timed(self, path, look):
        start = time.monotonic()
        response = await self.world.ask(path, key=self.world.key())
        hold(response.status == 200, "status", response.status)
        if self.world.last_freeze < start:
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)
        self.looks += 1
        look(response)
        return "ok"

    def _health(self, response):
        hold(response.json() == {"status": "ok"}, response.body)

    def _stats(self, response):
        stats = response.json()
        blocks = stats["blocks"]
        hold(blocks["total"] == blocks["free"] + blocks["cached"] + blocks["in_use"], "blocks don't sum up:", json.dumps(blocks))
        hold(stats.get("integrity_findings", 0) == 0, stats.get("integrity_findings"), "integrity findings")
        hold(stats["requests"]["failed"] == 0, stats["requests"]["failed"], "requests failed in the engine")

    def _metrics(self, response):
        for line in response.body.decode().splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            family = name.partition("{")[0]
            hold(name and float(value) >= 0, "not a sample:", line)
            if family.endswith(("_total", "_count", "_bucket")):
                hold(float(value) >= self._counters.get(name, 0), "a counter went back:", line)
                self._counters[name] = float(value)


class Keys:
    """The file of API keys: three that stay, one that changes."""

    STABLE = ("soak-key-one", "soak-key-two", "soak-key-three")

    def __init__(self, path, reload):
        self.path, self._reload, self._generation = path, reload, 0
        self._write()

    def any(self, rng=None):
        return rng.choice(self.STABLE) if rng else self.STABLE[0]

    def _changing(self, generation):
        return f"soak-key-number-{generation}"

    def _write(self):
        self.path.write_text("# soak\n" + "".join(f"name{i} {key}\n" for i, key in enumerate(self.STABLE))
                             + self._changing(self._generation) + "\n")

    async def change(self, world, rng):
        """Another changing key comes in by SIGHUP, the last one goes. Now and then the file is bad: then nothing changes."""
        async def status(key):
            return await world.ask("/v1/models", key=key)

        if rng.random() < 0.3:
            self.path.write_text("a line of four words\n")
            self._reload()
            await asyncio.sleep(1)
        else:
            old = self._changing(self._generation)
            self._generation += 1
            self._write()
            self._reload()
            for _ in range(60):
                if (await status(self._changing(self._generation))).status == 200:
                    break
                await asyncio.sleep(0.5)
            error_form(await status(old), 401)
        hold((await status(self._changing(self._generation))).status == 200, "a good key is refused")
        hold((await status(self.any(rng))).status == 200, "a key that stayed is refused")
        self._write()
        return "ok"
