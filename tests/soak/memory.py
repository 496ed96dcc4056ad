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


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


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

    def verdict(self, warm_up_s):
        """The medians of the first and of the last quarter of the time after the warm-up."""
        begin, end = warm_up_s, self.samples[-1][0]
        quarter = (end - begin) / 4
        first = [mib for t, mib in self.samples if begin <= t <= begin + quarter]
        last = [mib for t, mib in self.samples if t >= end - quarter]
        return Verdict(statistics.median(first), statistics.median(last))
