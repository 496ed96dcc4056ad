"""Child processes that always end, and servers among them. Standard library only."""

import contextlib
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request


class Failure(Exception):
    """Ends the benchmark with one sentence."""


def say(text):
    print(f"    {text}", file=sys.stderr, flush=True)


def die_with_parent():
    """Runs in a new child: the kernel kills it when this program goes, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def output_of(command, limit=900):
    """Standard output of a program that must succeed."""
    command = list(map(str, command))
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              preexec_fn=die_with_parent)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} took more than {limit} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Failure(f"{' '.join(command[:3])} failed: {last}")
    return done.stdout


def free_port():
    """None of those that the system gives to whoever asks for any: another program might have it before the server does."""
    while True:
        port = random.randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A server as a child process, with those that it starts, on a free port of this machine; ended on leaving the `with`."""

    def __init__(self, command, log, ready_s=120, environment=None):
        self.ready_s = ready_s  # so long it may take to begin
        self.environment = os.environ | (environment or {})
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        self.log = pathlib.Path(log)
        self.name = pathlib.Path(self.command[0]).name

    def __enter__(self):
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                                            process_group=0, preexec_fn=die_with_parent)
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_ready(self):
        end = time.monotonic() + self.ready_s
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failure(f"{self.name} did not start: {self.last_words()}")
            time.sleep(0.05)

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1].strip() if lines else 'it wrote nothing'} (log: {self.log})"

    def hold(self):
        """Stops its processes, so that they take no time from another server's turn."""
        self._send(signal.SIGSTOP)

    def resume(self):
        self._send(signal.SIGCONT)

    def _send(self, number):
        with contextlib.suppress(ProcessLookupError):  # none is left
            os.killpg(self.process.pid, number)

    def get(self, path):
        return self._ask(path, None, 60)

    def post(self, path, body, limit=60):
        return self._ask(path, json.dumps(body).encode(), limit)

    def _ask(self, path, data, limit):
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=limit) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Failure(f"{self.name} answered {path} with {error.code}: {error.read(300).decode(errors='replace')}") from error
        except OSError as error:
            raise Failure(f"{self.name} broke off ({error}): {self.last_words()}") from error

    def __exit__(self, *_):
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        self._send(signal.SIGKILL)  # also to those that it leaves behind
        self.process.wait()


def run_to_the_end(work):
    """Runs `work`; returns the exit status. Every failure is one sentence; SIGTERM ends the children as Ctrl-C does."""
    assert threading.current_thread() is threading.main_thread()  # die_with_parent: the parent is a *thread*
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
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
