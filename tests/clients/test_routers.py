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

    def __init__(self, *arguments: str):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.arguments = arguments
        self.server = None
        self.start()

    def start(self):
        self.server = start(self.port, self.events, self.replay, *self.arguments)

    def restart(self):
        assert self.server.end() == 0
        self.start()

    def stores_are_on(self):
        self.server.wait(lambda: (stores := self.server.stats()["stores"]) and all(store["on"] for store in stores.values()))

    def seed(self, messages):
        """Behind a router's back."""
        self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})

    def finished(self) -> int:
        stats = self.server.idle_stats()
        assert_nothing_held(stats)
        return stats["requests"]["finished"]


@contextlib.contextmanager
def two_workers(*arguments_of_each):
    with contextlib.ExitStack() as stack:
        both = []
        for arguments in arguments_of_each or ((), ()):
            both.append(Worker(*arguments))
            stack.callback(lambda worker=both[-1]: worker.server.kill())
        yield both


@pytest.fixture
def workers():
    with two_workers() as both:
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
               "--kv-event-block-size", str(BLOCK), "--prometheus-port", str(free_port()), "--worker-urls", *(worker.url for worker in workers)]
    for worker in workers:
        command += ["--kv-event-source", f"{worker.url}={worker.events}", "--kv-event-replay-source", f"{worker.url}={worker.replay}"]
    return Router(log, *command, *more)


def chat(name, question="What?"):
    text = " ".join(WOODS.split()[:150])
    return [{"role": "system", "content": f"You are {name}. {text}"}, {"role": "user", "content": question}]


def goes_to(router: Router, worker: Worker, name: str, cached=10 * BLOCK) -> bool:
    before = worker.finished()
    usage = router.chat(chat(name, "And then?"))["usage"]
    went = worker.finished() == before + 1
    return went and usage["prompt_tokens_details"]["cached_tokens"] >= cached


def test_vllm_router_sends_prompts_where_events_say_they_are(workers, tmp_path):
    """Each server gets a prefix behind the router's back: only by events can it know where that is."""
    with vllm_router(tmp_path / "log", workers) as router:

        for i, name in enumerate(["Ada", "Bob", "Cy", "Dee"]):  # now the one, now the other: no habit of the router passes
            worker = workers[i % 2]
            worker.seed(chat(name))
            time.sleep(1)
            assert goes_to(router, worker, name), (name, router.log.read_text()[-3000:])
        workers[1].restart()  # what it had is gone
        workers[0].seed(chat("Eve"))
        workers[1].seed(chat("Fay"))
        time.sleep(3)
        assert goes_to(router, workers[0], "Eve") and goes_to(router, workers[1], "Fay"), router.log.read_text()[-3000:]
        assert "noncontiguous" not in router.log.read_text()


def on_disk_alone(worker: Worker, name: str):
    """Twice asked for, so it is stored; then the pool is emptied."""
    pieces = worker.server.stats()["stores"]["disk"]["pieces"]
    for _ in range(2):
        worker.seed(chat(name))
    worker.server.wait(lambda: (disk := worker.server.stats()["stores"]["disk"])["pieces"] >= pieces + 10 and not disk["pending"])
    worker.server.post("/v1/cache/reset?tier=pool", {})


def test_vllm_router_weighs_what_lies_on_a_disk(tmp_path):
    """What a disk has is worth something, and less than a pool: after resets and a restart, too."""
    with two_workers(*(("--kv-dir", str(tmp_path / f"kv{i}")) for i in range(2))) as workers:
        for worker in workers:
            worker.stores_are_on()
        with vllm_router(tmp_path / "log", workers) as router:
            for i, name in enumerate(["Ada", "Bob", "Cy", "Dee"]):
                on_disk_alone(workers[i % 2], name)
                time.sleep(1)
                assert goes_to(router, workers[i % 2], name), (name, router.log.read_text()[-3000:])
            for i, name in enumerate(["Eve", "Fay"]):  # the one has it on its disk, the other in its pool
                on_disk_alone(workers[i], name)
                workers[1 - i].seed(chat(name))
                time.sleep(1)
                assert goes_to(router, workers[1 - i], name), (name, router.log.read_text()[-3000:])
            for i, name in enumerate(["Gus", "Hal"]):
                on_disk_alone(workers[i], name)
                workers[i].restart()
                workers[i].stores_are_on()
                time.sleep(3)
                assert goes_to(router, workers[i], name), (name, router.log.read_text()[-3000:])
            for i, name in enumerate(["Ida", "Joe"]):  # a reset of the disk says nothing of the pool
                workers[i].seed(chat(name))
                workers[i].server.post("/v1/cache/reset?tier=disk", {})
                time.sleep(1)
                assert goes_to(router, workers[i], name), (name, router.log.read_text()[-3000:])


def evict_all(worker: Worker, name: str):
    """By other prompts."""
    stats = worker.server.stats()
    for n in range(200):
        worker.seed(chat(f"other {n} of {name}"))
        if worker.server.stats()["evictions"] > stats["evictions"] + stats["blocks"]["total"]:
            return
    raise AssertionError("the pool holds too much")


def test_vllm_router_weighs_what_lies_in_the_hosts_memory(tmp_path):
    """That is worth less than a pool, and more than a disk. A busy machine may compute what it could load."""
    tiers = [("--kv-bytes", "48MiB", "--host-kv-bytes", "1GiB", "--kv-dir", str(tmp_path / f"kv{i}")) for i in range(2)]
    with two_workers(*tiers) as workers:
        for worker in workers:
            worker.stores_are_on()
        with vllm_router(tmp_path / "log", workers) as router:
            for i, name in enumerate(["Ada", "Bob"]):  # the one has it there alone, the other not at all
                workers[i].seed(chat(name))
                evict_all(workers[i], name)
                time.sleep(1)
                assert goes_to(router, workers[i], name, cached=0), (name, router.log.read_text()[-3000:])
            for i, name in enumerate(["Cy", "Dee"]):  # the other has it in its pool
                workers[i].seed(chat(name))
                evict_all(workers[i], name)
                workers[1 - i].seed(chat(name))
                time.sleep(1)
                assert goes_to(router, workers[1 - i], name, cached=0), (name, router.log.read_text()[-3000:])
            for i, name in enumerate(["Eve", "Fay"]):  # the other has it on its disk
                on_disk_alone(workers[1 - i], name)
                workers[1 - i].server.post("/v1/cache/reset?tier=host", {})  # what is stored goes there, too
                workers[i].seed(chat(name))
                evict_all(workers[i], name)
                time.sleep(1)
                assert goes_to(router, workers[i], name, cached=0), (name, router.log.read_text()[-3000:])


def test_vllm_router_forgets_what_was_evicted(workers, tmp_path):
    """Both had it, one no more. That one has had fewer requests, so nothing else speaks for the other."""
    with vllm_router(tmp_path / "log", workers) as router:
        for i, name in enumerate(["Ada", "Bob"]):
            for worker in workers:
                worker.seed(chat(name))
            evict_all(workers[i], name)
            time.sleep(1)
            assert goes_to(router, workers[1 - i], name), (name, router.log.read_text()[-3000:])


def test_agents_turns_go_where_their_prefix_is(workers, tmp_path):
    with vllm_router(tmp_path / "log", workers) as router:
        agents = [Session(f"agent {i}", 200) for i in range(4)]
        for turn in range(5):
            for agent in agents:
                prompt, cached = agent.turn(router, f"Step {turn}: what next?")
                time.sleep(0.3)  # events come by and by
                assert turn == 0 or cached >= prompt - 60, (turn, prompt, cached, router.log.read_text()[-3000:])


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
        # No restart here: numbers begin at 0 again, which vllm-router wants and this indexer takes for batches it has read (docs/decisions.md, "Routers are told by vLLM's events").


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
