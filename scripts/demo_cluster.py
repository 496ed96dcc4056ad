"""Two servers behind a router while agents work: what events and a shared Redis are worth, and that nothing breaks when a server leaves and another joins.

Each agent sends turn after turn, each with all of the turns before. The agents share a system prompt, and each has files of its own in it. Halfway one server is
taken out of the router and ends; then a new, empty one takes its address."""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 300
BLOCK = 16
MODEL = "demo"
WORDS = ("branch stump shoot light shade cut year wood hazel oak ash bundle fence charcoal season rot root ring path deer frost spring field "
         "village tool hook axe rope cart stack pole").split()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def text(seed: int, n: int) -> str:
    """n words that begin and go on otherwise for each seed."""
    state, words = seed * 2654435761 % 2**32 or 1, []
    for _ in range(n):
        state = (1103515245 * state + 12345) % 2**31
        words.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(words)


class Process:
    """A child and its log. Leaving it ends it."""

    def __init__(self, folder: Path, name: str, command: list[str], executable: str | None = None):
        self.log = folder / f"{name}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, executable=executable, stdout=out, stderr=subprocess.STDOUT)
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def wait(self, condition):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                if condition():
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} isn't ready: {self.log.read_text(errors='replace')[-2000:]}")

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.status == 200


class Place:
    """An address that one server after the other has."""

    def __init__(self, setup, tier: list[str]):
        self.setup, self.tier = setup, tier
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.server = None

    def start(self):
        o = self.setup.options
        self.server = Process(self.setup.folder, "coppice", [
            o.binary, "serve", "--model", o.model, "--alias", MODEL, "--port", str(self.port), "--block-size", str(BLOCK), "--ctx", "4096",
            "--threads", str(o.threads), "--kv-bytes", o.kv_bytes, "--kv-events", self.events, "--kv-events-replay", self.replay, *self.tier])

    def ready(self):
        self.server.wait(lambda: answers(self.url + "/health"))


@dataclass
class Row:
    """What came of one way to run them."""

    name: str
    tier: str
    prompt: int = 0
    cached: int = 0
    failed: int = 0
    firsts: list[float] = field(default_factory=list)  # seconds to each first token
    turns: list[tuple[float, int, int, int]] = field(default_factory=list)  # when it began, which turn, tokens, cached ones
    changed: tuple[float, float] = (0, 0)  # when the change began and ended

    def share(self, is_of) -> str:
        """Of these turns' tokens, how many were cached. The first turns aren't counted: nobody can have them."""
        those = [(n, cached) for at, turn, n, cached in self.turns if turn > 0 and is_of(at, turn)]
        return f"{sum(cached for _, cached in those) / sum(n for n, _ in those):.0%}" if those else "-"


class Setup:
    def __init__(self, options, folder: Path):
        self.options, self.folder = options, folder

    def router(self, places: list[Place], policy: str) -> tuple[Process, str]:
        port, metrics = free_port(), free_port()
        command = [str(Path(sys.executable).with_name("vllm-router")), "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics),
                   "--policy", policy, "--worker-urls", *(place.url for place in places)]
        if policy == "kv_aware":
            command += ["--kv-event-model", MODEL, "--kv-event-block-size", str(BLOCK)]
            for place in places:
                command += ["--kv-event-source", f"{place.url}={place.events}", "--kv-event-replay-source", f"{place.url}={place.replay}"]
        return Process(self.folder, "vllm-router", command), f"http://127.0.0.1:{port}"

    def redis(self) -> tuple[Process, str]:
        """Debian's redis-tools has the server's program under another name; it goes by its first argument."""
        program = os.environ.get("COPPICE_REDIS", "/usr/bin/redis-check-rdb")
        port = free_port()
        server = Process(self.folder, "redis", ["redis-server", "--port", str(port), "--save", "", "--dir", str(self.folder)], executable=program)

        def pings():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")

        server.wait(pings)
        return server, f"redis://127.0.0.1:{port}"

    def run(self, name: str, policy: str, with_tier: bool) -> Row:
        row = Row(name, "Redis" if with_tier else "none")
        with contextlib.ExitStack() as stack:
            tier = []
            if with_tier:
                redis, url = self.redis()
                stack.enter_context(redis)
                tier = ["--kv-url", url, "--kv-trust-store"]
            places = [Place(self, tier) for _ in range(2)]
            for place in places:
                place.start()
                stack.callback(lambda place=place: place.server.end())
            for place in places:
                place.ready()
            router, url = self.router(places, policy)
            stack.enter_context(router)
            router.wait(lambda: answers(url + "/health"))
            Agents(self.options, url, row).work(lambda: self.change(url, places[1], row))
        return row

    def change(self, url: str, place: Place, row: Row):
        """One server leaves: the router sends it nothing more, it finishes what it has, stores what it may. Then one joins."""
        began = time.monotonic()
        post(f"{url}/remove_worker?url={place.url}")
        place.server.end()
        place.start()
        place.ready()
        post(f"{url}/add_worker?url={place.url}")
        row.changed = began, time.monotonic()


def post(url: str):
    urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=60).read()


class Agents:
    def __init__(self, options, url: str, row: Row):
        self.options, self.url, self.row = options, url, row
        self.lock = threading.Lock()
        self.turns_left = options.agents * options.turns // 2  # until the change
        self.halfway = threading.Event()

    def work(self, change):
        agents = [threading.Thread(target=self.agent, args=(i,)) for i in range(self.options.agents)]
        for agent in agents:
            agent.start()
        self.halfway.wait()
        change()
        for agent in agents:
            agent.join()

    def agent(self, i: int):
        shared = "You are an agent who works in a wood. " + text(1, 250)
        messages = [{"role": "system", "content": f"{shared} Your files: {text(100 + i, 350)}"}]
        for turn in range(self.options.turns):
            messages.append({"role": "user", "content": f"Step {turn} of agent {i}: {text(1000 * (turn + 1) + i, 40)}"})
            answer = self.ask(messages, turn)
            messages.append({"role": "assistant", "content": answer or "Nothing."})
            with self.lock:
                self.turns_left -= 1
                if self.turns_left <= 0:
                    self.halfway.set()
            time.sleep(self.options.pause)  # its tool runs

    def ask(self, messages, turn: int) -> str:
        body = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        begun, first, answer, usage = time.monotonic(), None, "", None
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                for line in reply:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        if piece := choice["delta"].get("content"):
                            first = first or time.monotonic() - begun
                            answer += piece
        except (OSError, ValueError, KeyError) as error:
            print(f"    a request failed: {error}", file=sys.stderr)
        with self.lock:
            if usage is None:
                self.row.failed += 1
                return answer
            prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            self.row.prompt += prompt
            self.row.cached += cached
            self.row.firsts.append(first or time.monotonic() - begun)
            self.row.turns.append((begun, turn, prompt, cached))
        return answer


def show(rows: list[Row], options):
    print(f"\n  {options.agents} agents of {options.turns} turns on two servers; one leaves halfway, and a new one joins. {Path(options.model).stem}\n")
    print("  routed by   second  failed     tokens    tokens   first token       cached, of the turns")
    print("              tier            in prompts  computed   median  slowest   before  meanwhile   last")
    for row in rows:
        begin, end = row.changed
        shares = [row.share(lambda at, _, begin=begin: at < begin), row.share(lambda at, _, begin=begin, end=end: begin <= at < end),
                  row.share(lambda _, turn: turn == options.turns - 1)]
        firsts = sorted(row.firsts)
        print(f"  {row.name:<10}  {row.tier:<6}  {row.failed:6d}  {row.prompt:10,d}  {row.prompt - row.cached:8,d}"
              f"   {statistics.median(firsts):4.2f} s   {firsts[-1]:4.2f} s   {shares[0]:>6}  {shares[1]:>9}  {shares[2]:>5}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True, help="coppice")
    parser.add_argument("--model", required=True)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds that a tool runs between two turns")
    parser.add_argument("--kv-bytes", default="256MiB", help="the pool of each server")
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="of each server")
    parser.add_argument("--keep-logs", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="coppice-cluster-"))
    rows = []
    try:
        for tier in (False, True):
            for name, policy in (("turns", "round_robin"), ("events", "kv_aware")):
                print(f"==> routed by {name}, {'with' if tier else 'without'} Redis", file=sys.stderr)
                rows.append(Setup(options, folder).run(name, policy, tier))
    finally:
        if not options.keep_logs:
            for log in folder.iterdir():
                log.unlink()
            folder.rmdir()
    show(rows, options)
    failed = sum(row.failed for row in rows)
    if failed:
        sys.exit(f"{failed} requests failed")


if __name__ == "__main__":
    main()
