"""The real binary as a child process, and the few things that tests ask of it."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 180  # generous: the machine may be busy with other things


def binary() -> str:
    return os.environ["COPPICE_BINARY"]


def model_path() -> str:
    return os.environ["COPPICE_MODEL"]


def device() -> list[str]:
    """COPPICE_DEVICE: cuda, say, on a machine with a GPU. Tests that have to do with devices know it."""
    name = os.environ.get("COPPICE_DEVICE")
    return ["--device", name] if name else []


def free_port() -> int:
    """Of those that the system gives to nobody who takes any: what runs beside this one can't get it first."""
    while True:
        port = random.SystemRandom().randrange(16384, 32768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Coppice:
    """A running `coppice serve`. Use as a context manager; leaving it ends the process."""

    def __init__(self, *arguments: str, wait_ready: bool = True, log_to=None, model=None, preexec_fn=None):
        """log_to: the file that gets the log instead of self.log, which then tells nothing, the port least of all."""
        self.log = Path(tempfile.mkstemp(prefix="coppice-e2e-", suffix=".log")[1])
        self.port = 0 if log_to is None else free_port()
        command = [binary(), "serve", "--model", model or model_path(), "--port", str(self.port), *arguments, *device()]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=log_to or out, stderr=subprocess.STDOUT, preexec_fn=preexec_fn)
        try:
            self.url = f"http://127.0.0.1:{self.port}" if self.port else self.wait(self._listening)
            self.port = int(self.url.rsplit(":", 1)[1])
            if wait_ready:
                self.wait(self._healthy)
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def _listening(self):
        found = re.search(r"listening on (http://\S+?),", self.log.read_text())
        return found and found.group(1)

    def _healthy(self):
        try:
            return self.get("/health")[0] == 200
        except ConnectionError:  # it isn't listening yet
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return False
            raise

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self, condition):
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"coppice ended: {self.log.read_text()}")
            if value := condition():
                return value
            time.sleep(0.02)
        raise TimeoutError(self.log.read_text())

    def get(self, path: str) -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return json.load(reply)

    def converse(self, *questions: str) -> list[str]:
        """What a conversation's questions are answered; the cache knows each of its prompts but the first in part."""
        messages, answers = [], []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 16, "temperature": 0})
            assert not answers or answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, answer
            messages.append(answer["choices"][0]["message"])
            answers.append(messages[-1]["content"])
        return answers

    def request_log(self, path: Path, number: int) -> list[dict]:
        """The lines of --request-log's file once there are so many: a line comes behind the reply that it is about."""
        self.wait(lambda: path.exists() and path.read_text().count("\n") >= number)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def stats(self) -> dict:
        return self.get("/v1/cache/stats")[1]

    def idle_stats(self) -> dict:
        """The figures once every request that was handed to the engine has ended.

        A request counts as submitted before the engine knows of it, so this cannot pass between the two.
        """

        def idle():
            stats = self.stats()
            requests = stats["requests"]
            ended = sum(requests[outcome] for outcome in ("finished", "cancelled", "timed_out", "refused", "failed"))
            if requests["submitted"] != ended:
                return None
            assert requests["running"] == requests["waiting"] == 0, stats
            return stats

        return self.wait(idle)

    def deserted_stats(self) -> dict:
        """As idle_stats(), once nobody else is connected: then no request can be on its way to the engine either."""

        def deserted():
            with urllib.request.urlopen(self.url + "/metrics", timeout=TIMEOUT_S) as reply:
                return "\ncoppice_connections 1\n" in reply.read().decode()  # the one that asks

        self.wait(deserted)
        return self.idle_stats()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signals, waits, returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.unlink(missing_ok=True)


def assert_nothing_held(stats: dict):
    blocks = stats["blocks"]
    assert blocks["in_use"] == 0, stats
    assert blocks["shared"] == blocks["max_refs"] == 0, stats
    assert blocks["total"] == blocks["free"] + blocks["cached"], stats
