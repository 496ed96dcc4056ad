"""The slowest chats of a run, and what stood at their moments: in which phase of a request the time went (the request log says), how much of it the
server computed, how late the client itself woke up, and which requests of others ended meanwhile."""

import contextlib
import datetime
import heapq
import json
import os
import time
from pathlib import Path

KEPT = 5
OTHERS = 3


def cpu_seconds(pid):
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class SlowChats:
    def __init__(self, pid):
        self.pid = pid
        self.clear()

    def clear(self):
        self.kept = []  # a heap: (seconds, name, end in the clock's time, seconds computed, seconds that the client was late)
        self.late = 0.0

    def begin(self):
        self.late, self.cpu = 0.0, cpu_seconds(self.pid)

    def woke_late(self, seconds):
        self.late = max(self.late, seconds)

    def end(self, seconds, name):
        if len(self.kept) < KEPT or seconds > self.kept[0][0]:
            heapq.heappush(self.kept, (seconds, name or "", time.time(), cpu_seconds(self.pid) - self.cpu, self.late))
            if len(self.kept) > KEPT:
                heapq.heappop(self.kept)

    def explained(self, log):
        """A line for each, the slowest first."""
        requests = []  # (end, line)
        with contextlib.suppress(OSError):
            for line in log.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError):
                    request = json.loads(line)
                    requests.append((datetime.datetime.fromisoformat(request["time"]).timestamp(), request))
        for seconds, name, end, cpu, late in sorted(self.kept, reverse=True):
            own = next((request for _, request in requests if request["id"] == name), {})
            meanwhile = [request for at, request in requests if end - seconds <= at <= end + 0.5 and request.get("key") == "hostile"]
            meanwhile.sort(key=lambda request: -(request["total_seconds"] or 0))
            others = ", ".join(f"{request['route']} {request['status']} of {request['total_seconds']} s with {request['prompt_tokens']} tokens"
                               for request in meanwhile[:OTHERS])
            yield (f"slow: a chat of {seconds:.2f} s that ended at {datetime.datetime.fromtimestamp(end, datetime.UTC):%H:%M:%S.%f}: {own.get('queue_seconds')} s until "
                   f"it was admitted, {own.get('first_token_seconds')} until its first token, {own.get('total_seconds')} in all; meanwhile the server "
                   f"computed {cpu:.2f} s, the client woke up {late:.2f} s late, and of others' requests {len(meanwhile)} ended: {others}")
