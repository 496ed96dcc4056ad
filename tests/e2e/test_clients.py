"""Many clients, and clients that vanish."""

import concurrent.futures
import json
import random
import resource
import socket
import time

import pytest

STORY = [{"role": "user", "content": "Tell a story."}]


def test_thirty_two_at_once(client, server):
    def ask(i):
        stream = i % 2 == 0
        answer = client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": f"Say something about the number {i}."}], max_tokens=8,
            seed=i, stream=stream, extra_body={"ignore_eos": True})
        if not stream:
            return answer.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)

    before = server.stats()["requests"]["finished"]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        texts = list(pool.map(ask, range(32)))
    assert all(texts)
    assert server.idle_stats()["requests"]["finished"] - before == 32


def post_bytes(body: dict) -> bytes:
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def generation(stream: bool, **more) -> bytes:
    return post_bytes({"messages": STORY, "max_tokens": 2000, "ignore_eos": True, "stream": stream} | more)


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def running(server):
    return server.stats()["requests"]["running"]


def cancelled(server):
    return server.stats()["requests"]["cancelled"]


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), 180)


@pytest.mark.parametrize("stream", [False, True])
def test_vanishing_while_it_runs(server, stream):
    before = cancelled(server)
    with connect(server) as c:
        c.sendall(generation(stream))
        wait_until(lambda: running(server) == 1)
    wait_until(lambda: cancelled(server) == before + 1)


def test_vanishing_in_mid_stream(server):
    before = cancelled(server)
    with connect(server) as c:
        c.sendall(generation(True, n=3))
        received = b""
        while received.count(b"data:") < 12:
            received += c.recv(4096)
    wait_until(lambda: cancelled(server) == before + 1)


def test_vanishing_in_a_long_prefill(server):
    before = cancelled(server)
    with connect(server) as c:
        text = " ".join(str(i) for i in range(900))
        c.sendall(post_bytes({"messages": [{"role": "user", "content": text}], "stream": True}))
        wait_until(lambda: running(server) == 1)
    wait_until(lambda: cancelled(server) == before + 1)


def test_vanishing_in_the_queue(server):
    before = cancelled(server)
    clients = [connect(server) for _ in range(40)]  # more than --max-batch
    for i, c in enumerate(clients):
        c.sendall(generation(i % 2 == 0, cache_salt=str(i)))
    wait_until(lambda: server.stats()["requests"]["waiting"] >= 8)
    for c in reversed(clients):  # the waiting ones first
        c.close()
    wait_until(lambda: cancelled(server) == before + 40)


@pytest.fixture(scope="module", autouse=True)
def many_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_a_thousand_open_streams(server):
    before = cancelled(server)
    clients = [connect(server) for _ in range(1000)]
    for c in clients:
        c.sendall(generation(True))
    wait_until(lambda: server.stats()["requests"]["waiting"] + running(server) == 1000)
    assert server.get("/health") == (200, {"status": "ok"})
    for c in reversed(clients):
        c.close()
    wait_until(lambda: cancelled(server) == before + 1000)


def test_a_thousand_streams_complete(server):
    clients = [connect(server) for _ in range(1000)]
    for c in clients:
        c.settimeout(900)
        c.sendall(generation(True, max_tokens=2))
    for c in clients:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = c.recv(65536)
            assert piece, received
            received += piece
        assert received.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in received
        assert received.count(b'"finish_reason":"length"') == 1
        c.close()


def test_vanishing_at_random_moments(server):
    rng = random.Random(3)
    for i in range(20):
        with connect(server) as c:
            data = generation(rng.random() < 0.5)
            c.sendall(data[: rng.randrange(1, len(data) + 1)] if rng.random() < 0.3 else data)
            time.sleep(rng.random() * 0.1)
            if rng.random() < 0.5:  # a reset instead of a polite end
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.get("/health") == (200, {"status": "ok"})


def test_stream_closed_by_the_client_library(client, server):
    before = cancelled(server)
    stream = client.chat.completions.create(model="smol", messages=STORY, stream=True, max_tokens=2000,
                                            extra_body={"ignore_eos": True})
    next(stream)
    stream.close()
    wait_until(lambda: cancelled(server) == before + 1)
