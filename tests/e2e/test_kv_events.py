"""`--kv-events`: what routers read of a server, with vLLM's structures and ZeroMQ's own clients."""

import os
import random
import time
import urllib.error
import urllib.request

import msgspec
import pytest
import zmq

from coppice_process import Coppice, free_port
from same_text import assert_same
from second_tier import ask, prompt

PATIENCE_MS = 60_000


# What vLLM declares of its events (vllm/distributed/kv_events.py), as of 2026-11.
class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Router:
    """Knows of a server what it was told."""

    def __init__(self, endpoint: str, replay: str):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.socket.connect(endpoint)
        self.replay = replay
        self.media: dict[str, dict[int, list[int]]] = {medium: {} for medium in ("GPU", "CPU", "DISK")}
        self.parents: dict[int, int | None] = {}
        self.extra: dict[int, tuple | None] = {}
        self.last = None
        self.cleared = 0

    @property
    def blocks(self) -> dict[int, list[int]]:
        """Of the pool."""
        return self.media["GPU"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def wait(self, condition):
        end = time.monotonic() + PATIENCE_MS / 1000
        while not condition():
            assert time.monotonic() < end, (len(self.blocks), self.last)
            if self.socket.poll(100):
                self.read(*self.socket.recv_multipart())

    def read(self, topic: bytes, number: bytes, payload: bytes):
        assert topic == b"kv@here@smol" and len(number) == 8
        number = int.from_bytes(number, "big", signed=True)
        if self.last is not None:
            assert number == self.last + 1, "a batch is missing"
        self.last = number
        self.apply(payload)

    def apply(self, payload: bytes):
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert msgspec.msgpack.encode(batch) == payload, "vLLM's encoder writes other bytes"
        assert abs(batch.ts - time.time()) < 600 and batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.cleared += 1
                for blocks in self.media.values():
                    blocks.clear()
            elif isinstance(event, BlockRemoved):
                assert event.group_idx == 0
                for name in event.block_hashes:
                    del self.media[event.medium][name]
            else:
                self.store(event)

    def store(self, event: BlockStored):
        size, blocks = event.block_size, self.media[event.medium]
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert event.parent_block_hash is None or event.medium != "GPU" or event.parent_block_hash in blocks
        parent = event.parent_block_hash
        for i, name in enumerate(event.block_hashes):
            assert name not in blocks and 0 <= name < 1 << 64
            blocks[name] = event.token_ids[i * size : (i + 1) * size]
            self.parents[name] = parent
            self.extra[name] = event.extra_keys[i] if event.extra_keys else None
            parent = name

    def missed(self, first: int) -> list[tuple[int, bytes]]:
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replay)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            assert socket.poll(PATIENCE_MS)
            empty, topic, number, payload = socket.recv_multipart()
            number = int.from_bytes(number, "big", signed=True)
            assert empty == b""
            if number == -1:
                assert (topic, payload) == (b"", b"")
                return batches
            assert topic == b"kv@here@smol"
            batches.append((number, payload))


def texts(router: Router, medium="GPU") -> set[tuple[int, ...]]:
    """All texts that a medium has, in whole blocks: those that begin there."""
    blocks = router.media[medium]

    def text(name):
        if name is None:
            return []
        before = text(router.parents[name]) if name in blocks else None
        return None if before is None else before + blocks[name]

    return {tuple(whole) for name in blocks if (whole := text(name)) is not None}


@pytest.fixture
def places():
    return [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]


def start(places, *arguments, model=None) -> Coppice:
    events, replay = places
    return Coppice("--kv-bytes", "32MiB", "--ctx", "512", "--kv-events", events, "--kv-events-replay", replay,
                   "--kv-events-topic", "kv@here@smol", *arguments, model=model)


def full_blocks(server: Coppice, text: str) -> list[tuple[int, ...]]:
    size = server.stats()["block_size"]
    tokens = server.post("/tokenize", {"content": text, "add_special": True})["tokens"]
    return [tuple(tokens[:n]) for n in range(size, len(tokens) + 1, size)]


def test_a_router_knows_what_is_cached(places):
    with start(places) as server, Router(*places) as router:
        router.wait(lambda: router.cleared > 0)
        assert not router.blocks
        text = prompt(150)
        ask(server, text)
        wanted = full_blocks(server, text)
        assert len(wanted) > 4
        router.wait(lambda: set(wanted) <= texts(router))
        assert all(extra is None for extra in router.extra.values())

        # Long after: an idle server has sent everything. Somebody who comes now is told all, and so is everybody.
        before = texts(router)
        with Router(*places) as late:
            late.wait(lambda: late.cleared > 0 and late.blocks)
            router.wait(lambda: router.last == late.last)
            assert texts(late) == texts(router) == before
            assert late.blocks == router.blocks

        # More than the pool holds: some leave.
        pick = random.Random(7)
        words = prompt(300).split()
        for _ in range(12):
            pick.shuffle(words)
            ask(server, " ".join(words[:200]))
        assert server.stats()["evictions"] > 0
        n_cached = len(router.blocks)
        ask(server, text)
        router.wait(lambda: set(wanted) <= texts(router))
        assert n_cached <= server.stats()["blocks"]["total"]

        # What was sent since can be read again, and comes to the same.
        first = router.missed(0)
        again = Router(*places)
        with again:
            for number, payload in first:
                assert again.last is None or number == again.last + 1
                again.last = number
                again.apply(payload)
            router.wait(lambda: router.last >= again.last)
            assert again.blocks == router.blocks

        with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/cache/reset", b"{}")):
            pass
        router.wait(lambda: not router.blocks)


def test_a_new_server_is_told_apart_from_the_old_one(places):
    with start(places) as server, Router(*places) as router:
        for n in range(100, 40, -10):  # numbers that the next one doesn't reach at once
            ask(server, f"{n} " + prompt(n))
        ask(server, prompt(100))
        router.wait(lambda: router.last is not None and router.last > 4 and set(full_blocks(server, prompt(100))) <= texts(router))
        old, last = texts(router), router.last
        assert server.end() == 0
        router.last = None
        cleared = router.cleared
        with start(places) as successor:
            router.wait(lambda: router.cleared > cleared)
            assert not router.blocks and router.last < last
            ask(successor, prompt(100))
            router.wait(lambda: router.blocks and texts(router) <= old)


def all_on(server: Coppice) -> bool:
    stores = server.stats()["stores"]
    return bool(stores) and all(store["on"] for store in stores.values())


@pytest.mark.parametrize("ends", ["killed", "ended", "sealed"])
def test_a_disk_is_told_for_itself(places, tmp_path, ends):
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    options = ["--kv-dir", str(tmp_path / "kv"), *(["--kv-secret", str(tmp_path / "secret")] if ends == "sealed" else [])]
    text = prompt(150)
    with start(places, *options) as server, Router(*places) as router:
        server.wait(lambda: all_on(server))
        for _ in range(2):  # what is used twice goes to the disk
            ask(server, text)
        wanted = set(full_blocks(server, text))
        router.wait(lambda: wanted <= texts(router) and wanted <= texts(router, "DISK"))
        assert not router.media["CPU"]
        names = {name for name in router.media["DISK"] if name in router.blocks}
        assert len(names) >= len(wanted), "a block has one name wherever it lies"
        server.post("/v1/cache/reset?tier=pool", {})
        router.wait(lambda: not router.blocks)
        assert wanted <= texts(router, "DISK"), "a reset of one tier says nothing of the other"
        if ends == "killed":
            server.kill()
        else:
            assert server.end() == 0
    with start(places, *options) as server, Router(*places) as router:
        # What the folder's scan tells may come ahead of the whole that a newcomer is told.
        router.wait(lambda: router.cleared > 0 and wanted <= texts(router, "DISK"))
        assert not router.blocks
        _, found, _ = ask(server, text)
        assert found["cached"] >= max(map(len, wanted)) - server.stats()["block_size"], "and it is there"
        server.post("/v1/cache/reset?tier=disk", {})
        router.wait(lambda: not router.media["DISK"])
        assert wanted <= texts(router)


def test_the_hosts_memory_is_told_for_itself(places):
    with start(places, "--host-kv-bytes", "64MiB") as server, Router(*places) as router:
        server.wait(lambda: all_on(server))
        text = prompt(150)
        ask(server, text)
        wanted = set(full_blocks(server, text))
        pick = random.Random(7)
        words = prompt(300).split()
        for _ in range(12):  # more than the pool holds: what it gives up goes there
            pick.shuffle(words)
            ask(server, " ".join(words[:200]))
        router.wait(lambda: router.media["CPU"])
        router.wait(lambda: len(router.media["CPU"]) == server.stats()["stores"]["host"]["pieces"])
        assert not router.media["DISK"]
        assert wanted <= texts(router) | texts(router, "CPU")
        server.post("/v1/cache/reset?tier=host", {})
        router.wait(lambda: not router.media["CPU"])
        assert router.blocks


def test_tenants_do_not_meet(places):
    with start(places, "--api-key", "sk-a,sk-b", "--isolate", "keys") as server, Router(*places) as router:

        def send(key, **more):
            request = urllib.request.Request(
                server.url + "/v1/completions",
                msgspec.json.encode({"prompt": prompt(60), "max_tokens": 1, **more}),
                {"Authorization": f"Bearer {key}"},
            )
            urllib.request.urlopen(request).read()

        def salts():
            return {router.extra[name][0] for name, parent in router.parents.items() if parent is None}

        seen = []
        for key, more in [("sk-a", {}), ("sk-b", {}), ("sk-a", {"cache_salt": "mine"})]:
            send(key, **more)
            router.wait(lambda: len(salts()) > len(seen))
            time.sleep(0.2)
            router.wait(lambda: not router.socket.poll(0))
            assert len(salts()) == len(seen) + 1, salts()
            seen.append(salts())
        for salt in seen[-1]:
            assert len(salt) == 32 and int(salt, 16) >= 0
            assert "sk-" not in salt and "mine" not in salt


def test_a_salt_is_told_as_it_is(places):
    with start(places) as server, Router(*places) as router:
        ask(server, prompt(60), cache_salt="tenant-7")
        router.wait(lambda: router.blocks)
        firsts = [name for name, parent in router.parents.items() if parent is None]
        assert [router.extra[name] for name in firsts] == [("tenant-7",)]


def test_text_is_the_same_with_events(places):
    with start(places) as told, Coppice("--kv-bytes", "32MiB", "--ctx", "512") as silent, Router(*places) as router:
        for n in (40, 80, 80, 120):
            assert_same(ask(told, prompt(n))[0], ask(silent, prompt(n))[0])
        router.wait(lambda: router.blocks)


@pytest.mark.parametrize("model", ["COPPICE_GEMMA3"])
def test_windows_leave_the_full_group_alone(places, model):
    with start(places, model=os.environ[model]) as server, Router(*places) as router:
        text = prompt(100)
        ask(server, text)
        wanted = full_blocks(server, text)
        router.wait(lambda: set(wanted) <= texts(router))


@pytest.mark.parametrize("place", ["5557", "tcp://127.0.0.1", "tcp://:5557", "tcp://127.0.0.1:70000", "http://127.0.0.1:5557", "ipc://"])
def test_what_is_no_place_is_refused(place):
    with pytest.raises(RuntimeError, match="where to listen"):
        Coppice("--kv-events", place)
