"""The server's memory over time, and whether it is flat."""

import asyncio
import dataclasses
import statistics
import time
from pathlib import Path

INTERVAL_S = 0.5


@dataclasses.dataclass
class Verdict:
    first_mib: float
    last_mib: float

    @property
    def growth(self):
        return self.last_mib / self.first_mib - 1


def rss_mib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no VmRSS of process {pid}")


async def open_files(pid):
    """At rest: the fewest of a second, since the connection that asked last may still be closing."""
    counts = []
    for _ in range(10):
        counts.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        await asyncio.sleep(0.1)
    return min(counts)


class Memory:
    """Samples (seconds since start, MiB), all the time; and one sample for each rest."""

    def __init__(self, pid):
        self.pid, self.start = pid, time.monotonic()
        self.samples, self.at_rest = [], []

    async def watch(self):
        while True:
            self.samples.append((time.monotonic() - self.start, rss_mib(self.pid)))
            await asyncio.sleep(INTERVAL_S)

    def rest(self):
        self.at_rest.append((time.monotonic() - self.start, rss_mib(self.pid)))

    @property
    def peak_mib(self):
        return max(mib for _, mib in self.samples)

    def verdict(self, warm_up):
        """The medians of the first and of the last quarter of what is left without the first `warm_up` (a share) of the
        samples. Counted in samples: while the whole machine stands still, nobody takes any."""
        kept = [mib for _, mib in self.samples[int(len(self.samples) * warm_up):]]
        quarter = max(1, len(kept) // 4)
        return Verdict(statistics.median(kept[:quarter]), statistics.median(kept[-quarter:]))
