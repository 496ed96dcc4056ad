"""Two servers behind routers from PyPI: a router that reads KV events sends a session where its prefix is, also after a restart."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from coppice_process import Coppice, assert_nothing_held, free_port
from second_tier import WOODS

PATIENCE_S = 90
BLOCK = 16


def start(port, events, replay, *arguments):
    return Coppice("--kv-bytes", "96MiB", "--ctx", "2048", "--alias", "smol", "--block-size", str(BLOCK), "--port", str(port),
                   "--kv-events", events, "--kv-events-replay", replay, *arguments)


class Worker:
    """One of the servers, which may be started again in its place."""

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.server = None
        self.start()

    def start(self):
        self.server = start(self.port, self.events, self.replay)

    def restart(self):
        assert self.server.end() == 0
        self.start()

    def finished(self) -> int:
        stats = self.server.idle_stats()
        assert_nothing_held(stats)
        return stats["requests"]["finished"]


@pytest.fixture
def workers():
    with contextlib.ExitStack() as stack:
        both = []
        for _ in range(2):
            both.append(Worker())
            stack.callback(lambda worker=both[-1]: worker.server.kill())
        yield both


class Router:
    def __init__(self, log, *command):
        self.port = free_port()
        self.log = log
        self.process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(self.port)], stdout=log.open("wb"),
                                        stderr=subprocess.STDOUT)

    def __enter__(self):
        try:
            self.wait(self._answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answers(self):
        try:
            return self.chat([{"role": "user", "content": "hi"}])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def wait(self, condition):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the router ended: {self.log.read_text()[-3000:]}")
            if value := condition():
                return value
            time.sleep(0.2)
        raise TimeoutError(self.log.read_text()[-3000:])

    def chat(self, messages) -> dict:
        body = {"model": "smol", "messages": messages, "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)


class Session:
    """An agent's: each turn sends all of the turns before."""

    def __init__(self, name: str, words: int):
        text = " ".join(WOODS.split()[:words])
        self.messages = [{"role": "system", "content": f"You are {name}. {text}"}]

    def turn(self, router: Router, text: str) -> tuple[int, int]:
        """The prompt's tokens, and how many of them were cached."""
        self.messages.append({"role": "user", "content": text})
        answer = router.chat(self.messages)
        self.messages.append(answer["choices"][0]["message"])
        usage = answer["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def vllm_router(log, workers, *more) -> Router:
    command = [os.path.join(os.path.dirname(sys.executable), "vllm-router"), "--policy", "kv_aware", "--kv-event-model", "smol",
               "--kv-event-block-size", str(BLOCK), "--worker-urls", *(worker.url for worker in workers)]
    for worker in workers:
        command += ["--kv-event-source", f"{worker.url}={worker.events}", "--kv-event-replay-source", f"{worker.url}={worker.replay}"]
    return Router(log, *command, *more)


def test_vllm_router_sends_prompts_where_events_say_they_are(workers, tmp_path):
    """Each server gets a prefix behind the router's back: only by events can it know where that is."""
    with vllm_router(tmp_path / "log", workers) as router:

        def chat(name, question):
            text = " ".join(WOODS.split()[:150])
            return [{"role": "system", "content": f"You are {name}. {text}"}, {"role": "user", "content": question}]

        def seed(worker, name):
            worker.server.post("/v1/chat/completions", {"messages": chat(name, "What?"), "max_tokens": 1})

        def goes_to(worker, name) -> bool:
            before = worker.finished()
            usage = router.chat(chat(name, "And then?"))["usage"]
            went = worker.finished() == before + 1
            return went and usage["prompt_tokens_details"]["cached_tokens"] >= 10 * BLOCK

        for i, name in enumerate(["Ada", "Bob", "Cy", "Dee"]):  # now the one, now the other: no habit of the router passes
            worker = workers[i % 2]
            seed(worker, name)
            time.sleep(1)
            assert goes_to(worker, name), (name, router.log.read_text()[-3000:])
        workers[1].restart()  # what it had is gone
        seed(workers[0], "Eve")
        seed(workers[1], "Fay")
        time.sleep(3)
        assert goes_to(workers[0], "Eve") and goes_to(workers[1], "Fay"), router.log.read_text()[-3000:]
        assert "noncontiguous" not in router.log.read_text()


class Indexer:
    """Dynamo's, as a service of its own: its tree of what workers hold."""

    def __init__(self, log, workers, size):
        self.port = free_port()
        places = ",".join(f"{i}={worker.events}" for i, worker in enumerate(workers))
        self.log = log
        self.process = subprocess.Popen([sys.executable, "-m", "dynamo.indexer", "--port", str(self.port), "--block-size", str(size),
                                         "--model-name", "smol", "--workers", places],
                                        stdout=log.open("wb"), stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def query(self, tokens) -> dict | None:
        """Of each worker: tokens of the prompt that it holds."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/query", json.dumps({"token_ids": tokens, "model_name": "smol"}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                answer = json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            return None
        return {int(worker): ranks["0"] for worker, ranks in answer["scores"].items()}

    def wait(self, tokens, wanted):
        end = time.monotonic() + PATIENCE_S
        while (found := self.query(tokens)) != wanted:
            assert time.monotonic() < end, (found, wanted, self.log.read_text()[-2000:])
            time.sleep(0.1)


def test_dynamos_indexer_knows_who_holds_what(workers, tmp_path):
    words = WOODS.split()
    texts = [" ".join(words[:120]), " ".join(words[:60] + words[200:260]), " ".join(words[100:220])]
    with Indexer(tmp_path / "log", workers, BLOCK) as indexer:
        tokens = [workers[0].server.post("/tokenize", {"content": text, "add_special": True})["tokens"] for text in texts]
        whole = [len(of) // BLOCK * BLOCK for of in tokens]
        indexer.wait(tokens[0], {})

        def complete(worker, text):
            worker.server.post("/v1/completions", {"prompt": text, "max_tokens": 1})

        complete(workers[0], texts[0])
        indexer.wait(tokens[0], {0: whole[0]})
        complete(workers[1], texts[1])
        indexer.wait(tokens[1], {1: whole[1], 0: common(tokens[0], tokens[1])})
        complete(workers[1], texts[0])
        indexer.wait(tokens[0], {0: whole[0], 1: whole[0]})
        complete(workers[0], texts[2])
        indexer.wait(tokens[2], {0: whole[2]})

        workers[0].server.post("/v1/cache/reset", {})
        indexer.wait(tokens[0], {1: whole[0]})
        indexer.wait(tokens[2], {})
        # No restart here: numbers begin at 0 again, which vllm-router wants and this indexer takes for batches it has read (ADR 0074).


def common(a, b) -> int:
    """Tokens of whole blocks that both begin with."""
    n = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
    return n // BLOCK * BLOCK


def test_sglang_router_knows_the_model(workers, tmp_path):
    command = [sys.executable, "-m", "sglang_router.launch_router", "--policy", "cache_aware", "--worker-urls", *(worker.url for worker in workers)]
    with Router(tmp_path / "log", *command, "--prometheus-port", str(free_port())) as router:
        with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/workers") as reply:
            listed = json.load(reply)["workers"]
        assert {worker["model_id"] for worker in listed} == {"smol"}, listed
        session = Session("an agent", 300)
        session.turn(router, "What is a coppice?")
        prompt, cached = session.turn(router, "And then?")
        assert cached >= prompt - 40, (prompt, cached)
