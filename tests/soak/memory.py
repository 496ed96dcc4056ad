"""The server's memory over time, and whether it is flat."""

import asyncio
import dataclasses
import statistics
import time
from pathlib import Path

INTERVAL_S = 0.5


@dataclasses.dataclass
class Sample:
    seconds: float  # since start
    rss_mib: float
    own_mib: float  # of it, not backed by a file: the rest is the mapped model, as far as it was read


@dataclasses.dataclass
class Verdict:
    first_mib: float
    last_mib: float

    @property
    def growth(self):
        return self.last_mib / self.first_mib - 1


def resident_mib(pid):
    """All of it, and what of it is the process's own."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))


async def open_files(pid):
    """At rest: the fewest of a second, since the connection that asked last may still be closing."""
    counts = []
    for _ in range(10):
        counts.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        await asyncio.sleep(0.1)
    return min(counts)


class Memory:
    """Samples all the time, and one of each rest."""

    def __init__(self, pid):
        self.pid, self.start = pid, time.monotonic()
        self.samples, self.at_rest = [], []

    async def watch(self):
        while True:
            self.samples.append(self.sample())
            await asyncio.sleep(INTERVAL_S)

    def sample(self):
        return Sample(time.monotonic() - self.start, *resident_mib(self.pid))

    def rest(self):
        self.at_rest.append(self.sample())

    @property
    def peak_mib(self):
        return max(sample.rss_mib for sample in self.samples)

    def verdict(self, warm_up):
        """The medians of the first and of the last quarter of what is left without the first `warm_up` (a share) of the
        samples. Counted in samples: while the whole machine stands still, nobody takes any."""
        kept = [sample.rss_mib for sample in self.samples[int(len(self.samples) * warm_up):]]
        quarter = max(1, len(kept) // 4)
        return Verdict(statistics.median(kept[:quarter]), statistics.median(kept[-quarter:]))
