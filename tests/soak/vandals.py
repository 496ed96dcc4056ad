"""Clients that vanish, dawdle, lie and shout. The server may answer or close, as it has reason to; never with a 5xx of its
own making, never with silence for ever, and never at the cost of those who mean well."""

import asyncio
import json

import texts
from actors import CHAT, COMPLETIONS, token_array
from checks import REFUSALS, check_answer, error_form, hold
from wire import Broken, Connection, post_bytes, request_bytes

HARMLESS = {200, 400, 401, 404, 405, 408, 413, 414, 415, 417, 431} | REFUSALS


def generation(world, rng, **more):
    body = {"prompt": texts.words(rng, 60), "max_tokens": 400, "ignore_eos": True, "stream": rng.random() < 0.7} | more
    return body, post_bytes(COMPLETIONS, body, world.key(rng))


async def answer_or_close(connection, *statuses):
    """What comes until the server closes: an error with one of these statuses, or nothing."""
    try:
        response = await connection.response()
    except Broken:
        return "closed"
    error_form(response, *statuses)
    return "refused"


async def leave(connection, rng):
    if rng.random() < 0.5:
        connection.reset()
    return "vanished"


async def vanish_before(world, rng):
    async with Connection(world.port) as connection:
        _, data = generation(world, rng)
        await connection.send(data[:rng.randrange(len(data))])
        await asyncio.sleep(rng.choice((0, 0, 0.1, 1)))
        return await leave(connection, rng)


async def vanish_in_prefill(world, rng):
    prompt = token_array(world, rng, rng.randrange(100, world.context - 500))
    async with Connection(world.port) as connection:
        await connection.send(generation(world, rng, prompt=prompt, n=rng.choice((1, 1, 3)))[1])
        await asyncio.sleep(rng.random() * rng.choice((0.05, 0.5, 2)))
        return await leave(connection, rng)


async def vanish_in_stream(world, rng):
    async with Connection(world.port) as connection:
        await connection.send(generation(world, rng, stream=True, n=rng.choice((1, 1, 2)))[1])
        events = rng.randrange(1, 40)
        while events > 0 and (data := await connection.read()):
            events -= data.count(b"data: ")
        return await leave(connection, rng)


async def vanish_together(world, rng):
    """A crowd that comes and goes at once, most of it from the queue."""
    await asyncio.gather(*(vanish_in_stream(world, rng) for _ in range(rng.randrange(10, 60))))
    return "vanished"


async def half_close(world, rng):
    """Who shuts its sending side counts as gone (docs/api.md)."""
    async with Connection(world.port) as connection:
        await connection.send(generation(world, rng)[1])
        connection.shut_sending()
        while await connection.read():
            pass
        return "closed"


async def silent(world, rng):
    """Connects and says nothing, or stops in the middle of the body; leaves later."""
    async with Connection(world.port) as connection:
        data = generation(world, rng)[1]
        await connection.send(data[:rng.choice((0, 5, len(data) - 10))])
        await asyncio.sleep(rng.uniform(2, 15))
        return await leave(connection, rng)


async def slow_reader(world, rng):
    """A full answer, read in sips through a small buffer."""
    async with Connection(world.port, receive_buffer=4096) as connection:
        body, data = generation(world, rng, stream=True, max_tokens=60, n=1, stream_options={"include_usage": True})
        await connection.send(data)
        response = await connection.head()
        async for piece in connection.pieces(response):
            response.body += piece
            await asyncio.sleep(0.02 + rng.random() * 0.05)
        check_answer(COMPLETIONS, body, response)
        return "answered"


async def never_reads(world, rng):
    async with Connection(world.port, receive_buffer=2048) as connection:
        await connection.send(generation(world, rng, stream=True, n=2, logprobs=5)[1])
        await asyncio.sleep(rng.uniform(3, 12))
        return await leave(connection, rng)


async def slowloris(world, rng):
    """A head that drips. After 10 s the server has had enough."""
    async with Connection(world.port) as connection:
        reply = asyncio.ensure_future(answer_or_close(connection, 408))
        try:
            for byte in request_bytes("GET", "/health", more="X-Drip: " + "d" * 200 + "\r\n"):
                try:
                    await connection.send(bytes([byte]))
                except OSError:
                    break
                if (await asyncio.wait({reply}, timeout=0.3))[0]:
                    break
            return await reply
        finally:
            reply.cancel()


async def send_until_closed(connection, pieces):
    try:
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0)
    except OSError:
        pass


async def huge_body(world, rng):
    """Announced, and then sent or not."""
    async with Connection(world.port) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {rng.choice((17 << 20, 1 << 40))}\r\n"
        key = world.key(rng)
        head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
        await connection.send(head.encode())
        if rng.random() < 0.5:
            await send_until_closed(connection, (b"x" * 65536 for _ in range(64)))
        return await answer_or_close(connection, 413, 503)


async def endless_body(world, rng):
    async with Connection(world.port) as connection:
        key = world.key(rng)
        more = (f"Authorization: Bearer {key}\r\n" if key else "") + "Transfer-Encoding: chunked\r\n"
        await connection.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
        reply = asyncio.ensure_future(answer_or_close(connection, 413, 503))
        chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"
        await send_until_closed(connection, (chunk for _ in range(300) if not reply.done()))
        return await reply


async def large_body(world, rng):
    """Some MiB that are good JSON, and never a prompt."""
    async with Connection(world.port) as connection:
        kind = rng.choice(("text", "list", "messages"))
        size = rng.randrange(1 << 18, 4 << 20)
        body = {"text": {"prompt": "a " * (size // 2)}, "list": {"prompt": [1] * (size // 4)},
                "messages": {"messages": [{"role": "user", "content": "x"}] * (size // 40)}}[kind]
        await connection.send(post_bytes(CHAT if kind == "messages" else COMPLETIONS, body, world.key(rng)))
        error_form(await connection.response(), 400, *REFUSALS)
        return "refused"


async def bad_json(world, rng):
    body = rng.choice((b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xc3"}', b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
                       b"", b"nul", b"{", b'{"prompt": "a", "max_tokens": 1e999}', b'{"prompt": "\\ud800"}', b"\x00" * 50))
    paths = (CHAT, COMPLETIONS) if b"max_tokens" in body else (CHAT, COMPLETIONS, "/tokenize")  # which knows no such field
    async with Connection(world.port) as connection:
        await connection.send(request_bytes("POST", rng.choice(paths), body, world.key(rng)))
        error_form(await connection.response(), 400)
        return "refused"


async def mutated(world, rng):
    """A good request with some bytes of its body changed: still an answer, whatever it says."""
    good = json.dumps({"messages": [{"role": "user", "content": texts.question(rng)}], "max_tokens": 3, "temperature": 0.5,
                       "stop": [" "], "n": 1, "logit_bias": {"5": 1}, "stream_options": None, "seed": 3, "logprobs": False})
    body = bytearray(good.encode())
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        body[rng.randrange(len(body))] = rng.choice(b'0123456789{}[]",:\\ntf-e.') if rng.random() < 0.7 else rng.randrange(256)
    async with Connection(world.port) as connection:
        await connection.send(request_bytes("POST", CHAT, bytes(body), world.key(rng)))
        response = await connection.response()
        hold(response.status in HARMLESS, f"status {response.status} to {bytes(body)!r}:", response.body[:300])
        if response.status != 200:
            error_form(response, *HARMLESS)
        return "answered" if response.status == 200 else "refused"


async def garbage(world, rng):
    data = rng.choice((rng.randbytes(rng.randrange(1, 3000)), b"\r\n\r\n", b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00" + rng.randbytes(200),
                       b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                       b"GET /health HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"))
    async with Connection(world.port) as connection:
        try:
            await connection.send(data)
            connection.shut_sending()  # else it would wait for more of a head
        except OSError:
            return "closed"
        return await answer_or_close(connection, *(HARMLESS - {200}))


async def long_head(world, rng):
    async with Connection(world.port) as connection:
        lines = b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(1000))
        try:
            await connection.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines)
        except OSError:
            return "closed"
        return await answer_or_close(connection, 431)


async def pipelined(world, rng):
    """Several requests in one breath: answers in order."""
    key = world.key(rng)
    kinds = [rng.choice(("health", "models", "complete", "lost")) for _ in range(rng.randrange(2, 9))]
    body = {"prompt": "One, two,", "max_tokens": 2}
    data = {"health": request_bytes("GET", "/health"), "models": request_bytes("GET", "/v1/models", key=key),
            "complete": post_bytes(COMPLETIONS, body, key), "lost": request_bytes("GET", "/lost", key=key)}
    async with Connection(world.port) as connection:
        await connection.send(b"".join(data[kind] for kind in kinds))
        for kind in kinds:
            response = await connection.response()
            if kind == "complete":
                check_answer(COMPLETIONS, body, response)
            elif kind == "lost":
                error_form(response, 404)
            else:
                hold(response.status == 200, "status", response.status)
                hold(("status" if kind == "health" else "data") in response.json(), "answers out of order")
    return "answered"


async def cut(world, rng):
    """Every byte is a place where a request may end."""
    data = rng.choice((generation(world, rng, max_tokens=2)[1], request_bytes("GET", "/v1/models", key=world.key(rng))))
    async with Connection(world.port) as connection:
        await connection.send(data[:rng.randrange(1, len(data))])
        connection.shut_sending()
        return await answer_or_close(connection, *(HARMLESS - {200}))


async def page(world, rng):
    """Who looks at the page: a file of it comes to the end and without a key, or the client leaves in the middle."""
    async with Connection(world.port) as connection:
        await connection.send(request_bytes("GET", rng.choice(("/", "/page/main.js"))))
        if rng.random() < 0.2:
            return await leave(connection, rng)
        response = await connection.response()
        hold(response.status == 200 and response.headers["content-type"].startswith("text/"), "no page:", response.status, response.headers)
        hold(response.body.strip(), "an empty page")
    return "answered"


async def lost(world, rng):
    async with Connection(world.port) as connection:
        method = rng.choice(("GET", "DELETE", "PUT", "OPTIONS", "POST"))
        path = rng.choice(("/main.jsx", "/v1/nothing", "/v1/completions/..", "/%00", "/" + "p" * 5000, "/metrics/x"))
        await connection.send(request_bytes(method, path, key=world.key(rng)))
        error_form(await connection.response(), 404, 405)
        return "refused"


def acts():
    """Name -> (act, weight)."""
    return {"vanish before": (vanish_before, 3), "vanish in prefill": (vanish_in_prefill, 3), "vanish in stream": (vanish_in_stream, 3),
            "vanish together": (vanish_together, 0.3), "half close": (half_close, 2), "silent": (silent, 1),
            "slow reader": (slow_reader, 1), "never reads": (never_reads, 1), "slowloris": (slowloris, 1), "huge body": (huge_body, 1),
            "endless body": (endless_body, 0.3), "large body": (large_body, 0.5), "bad JSON": (bad_json, 3), "mutated": (mutated, 3),
            "garbage": (garbage, 3), "long head": (long_head, 1), "pipelined": (pipelined, 2), "cut": (cut, 4), "page": (page, 1),
            "lost": (lost, 2)}
