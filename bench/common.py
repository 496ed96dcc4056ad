"""What the benchmarks share: children that always end, comparisons with the peer's best setting, the machine, and the
parts of docs/benchmarks.md. Standard library only."""

import ctypes
import dataclasses
import json
import os
import pathlib
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

FLASH = ("on", "off")
UNIFIED = {"unified": "--kv-unified", "split": "--no-kv-unified"}
HOPELESS = 1.4  # a peer's setting this much slower than its best is run in the first round only


class Failure(Exception):
    """Ends the benchmark with one sentence."""


def say(text):
    print(f"    {text}", file=sys.stderr, flush=True)


def die_with_parent():
    """Runs in a new child: the kernel kills it when this program goes, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def output_of(command, limit=900):
    """Standard output of a program that must succeed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              preexec_fn=die_with_parent)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} took more than {limit} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Failure(f"{' '.join(map(str, command[:3]))} failed: {last}")
    return done.stdout


class Server:
    """A server as a child process on a free port of this machine; ended on leaving the `with`."""

    def __init__(self, command, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        self.log = pathlib.Path(log)
        self.name = pathlib.Path(self.command[0]).name

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=die_with_parent)
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_ready(self):
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failure(f"{self.name} did not start (log: {self.log}): {self.last_words()}")
            time.sleep(0.05)

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it wrote nothing"

    def hold(self):
        """Stops the process, so that it can't take time from the other server's run."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path, body, limit=60):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=limit) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Failure(f"{self.name} answered {path} with {error.code}: {error.read(300).decode(errors='replace')}") from error
        except OSError as error:
            raise Failure(f"{self.name} broke off ({error}; log: {self.log}): {self.last_words()}") from error

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclasses.dataclass(frozen=True)
class Setting:
    """One way to run llama.cpp's programs."""
    build: str    # "" where only one build makes sense
    flash: str
    unified: str  # a key of UNIFIED; "" with one sequence, where it makes no difference
    slots: int = 0

    def __str__(self):
        return ", ".join(filter(None, [self.build, f"-fa {self.flash}", UNIFIED.get(self.unified, ""),
                                       f"-np {self.slots}" if self.slots else ""]))

    def options(self):
        return ["-fa", self.flash, *([UNIFIED[self.unified]] if self.unified else [])]


def figure(value, unit):
    return f"{value:.2f} {unit}" if unit == "s" else f"{value:.0f} {unit}"


class Comparison:
    """One row of a table: ours and each peer setting's values, in the order of the rounds."""

    def __init__(self, name, unit, goal, higher_is_better=True):
        self.name, self.unit, self.goal, self.higher = name, unit, goal, higher_is_better
        self.ours, self.peers = [], {}

    def add(self, ours, peers):
        self.ours.append(ours)
        for setting, value in peers.items():
            self.peers.setdefault(setting, []).append(value)

    def hopeful(self, setting):
        """False when the first round showed that a setting can't be the best: it isn't run again."""
        if setting not in self.peers:
            return True
        first = {name: values[0] for name, values in self.peers.items()}
        if self.higher:
            return first[setting] * HOPELESS >= max(first.values())
        return first[setting] <= min(first.values()) * HOPELESS

    def best_setting(self):
        pick = max if self.higher else min
        return pick(filter(self.hopeful, self.peers), key=lambda setting: statistics.median(self.peers[setting]))

    def ratio(self):
        """Ours over the peer's best, per round; the median over the rounds."""
        return statistics.median(ours / peer for ours, peer in zip(self.ours, self.peers[self.best_setting()]))

    def faster(self):
        """How many times better than the peer's best, per round; the median over the rounds."""
        pairs = zip(self.ours, self.peers[self.best_setting()])
        return statistics.median(ours / peer if self.higher else peer / ours for ours, peer in pairs)

    def reached(self):
        return self.ratio() >= self.goal if self.higher else self.ratio() <= self.goal

    def as_json(self):
        return {
            "name": self.name, "unit": self.unit, "goal": self.goal, "ratio": self.ratio(), "reached": self.reached(),
            "peer_setting": self.best_setting(), "coppice": self.ours, "peers": self.peers,
        }

    def as_load_row(self):
        """For the table of loads, whose last column is a bound that is known later."""
        best = self.best_setting()
        return {
            "title": self.name, "unit": self.unit, "higher_is_better": self.higher,
            "coppice": statistics.median(self.ours), "peer": statistics.median(self.peers[best]), "setting": best,
            "faster": self.faster(), "goal": self.goal, "all_coppice": self.ours, "all_peers": self.peers,
        }

    def as_row(self, bound):
        """bound: the best that memory and multiplication allow, in the row's unit."""
        best, ours = self.best_setting(), statistics.median(self.ours)
        sign = "≥" if self.higher else "≤"
        share = ours / bound if self.higher else bound / ours
        return (f"| {self.name} | {figure(ours, self.unit)} "
                f"| {figure(statistics.median(self.peers[best]), self.unit)} ({best}) "
                f"| **{self.ratio():.2f}** | {sign} {self.goal} | {'yes' if self.reached() else 'no'} "
                f"| {figure(bound, self.unit)} ({100 * share:.0f} %) |")


class OthersShare:
    """How much of the machine others used since construction: all processor time but this program's and its children's.
    Only children that have ended are known, so the share is asked for between children."""

    def __init__(self):
        self.begin = self._times()

    @staticmethod
    def _times():
        """Seconds: in use by anybody, in use by us, in all."""
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        ticks = os.sysconf("SC_CLK_TCK")
        ours = os.times()
        return ((sum(fields) - fields[3] - fields[4]) / ticks,  # 3, 4: idle, waiting for a disk
                ours.user + ours.system + ours.children_user + ours.children_system, sum(fields) / ticks)

    def share(self):
        used, ours, total = (now - before for now, before in zip(self._times(), self.begin))
        return max(0.0, (used - ours) / total) if total > 0 else 0.0


def commit():
    """The commit of this checkout, "+" behind it when sources were changed since."""
    here = pathlib.Path(__file__).resolve().parent.parent

    def git(*arguments):
        done = subprocess.run(["git", "-C", here, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(done.stderr)
        return done.stdout.strip()
    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "cmake", "CMakeLists.txt")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except OSError:  # no git, or sources without it
        return "unknown"


def cpu_flags():
    return set(pathlib.Path("/proc/cpuinfo").read_text().split())


def machine():
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    flags = cpu_flags()
    extras = [name for name, flag in (("AVX2", "avx2"), ("AVX-512", "avx512f"), ("VNNI", "avx512_vnni"),
                                      ("AMX", "amx_int8")) if flag in flags]
    return f"{model}, {os.cpu_count()} cores ({', '.join(extras) or 'no SIMD extension'})"


def write_part(path, part, text):
    """Replaces one generated part of a Markdown file, between its markers, and leaves all else as it is."""
    path = pathlib.Path(path)
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    old = path.read_text() if path.exists() else "# Benchmarks\n"
    new = f"{begin}\n{text.strip()}\n{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if found.search(old):
        path.write_text(found.sub(lambda _: new, old, count=1))
    else:
        path.write_text(f"{old.rstrip()}\n\n{new}\n")


def run_to_the_end(work):
    """Runs `work`; returns the exit status. Every failure is one sentence; SIGTERM ends the children as Ctrl-C does."""
    assert threading.current_thread() is threading.main_thread()  # die_with_parent: the parent is a *thread*
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # asyncio knows how to end by SIGINT
    try:
        work()
    except KeyError as error:
        print(f"\ncoppice: the benchmark stopped: a figure is missing from a program's output: {error}", file=sys.stderr)
        return 1
    except (Failure, OSError, json.JSONDecodeError) as error:
        print(f"\ncoppice: the benchmark stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncoppice: the benchmark was interrupted", file=sys.stderr)
        return 130
    return 0
