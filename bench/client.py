"""Sends a burst of streaming requests to a server and measures it at the client, where it counts."""

import contextlib
import dataclasses
import json
import selectors
import socket
import statistics
import time

from process import Failure


class TooSlow(Failure):
    """The burst wasn't done within the time it was given."""


@dataclasses.dataclass
class Answer:
    """One request; times in seconds since the burst was sent."""
    first: float
    last: float
    texts: list            # when each piece of text came
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def request_bytes(port, path, body):
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n")
    return head.encode() + data


def receive_all(port, requests, limit):
    """Sends requests at once, and returns when that began and the pieces of each answer, (time, bytes). Raises TooSlow
    after `limit` seconds. While a server is being timed nothing is encoded, connected or parsed, and one wait serves all
    answers: the client runs on the server's cores."""
    received = [[] for _ in requests]
    too_slow = TooSlow(f"a burst of {len(requests)} took more than {limit:.0f} s")
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), limit)) for _ in requests]
        start = time.perf_counter()
        for connection, request, pieces in zip(connections, requests, received):
            try:
                connection.sendall(request)
            except TimeoutError as error:
                raise too_slow from error
            selector.register(connection, selectors.EVENT_READ, pieces)
        while selector.get_map():
            left = start + limit - time.perf_counter()
            if left <= 0:
                raise too_slow
            for key, _ in selector.select(left):
                if piece := key.fileobj.recv(1 << 16):
                    key.data.append((time.perf_counter(), piece))
                else:
                    selector.unregister(key.fileobj)
    return start, received


def _lines(pieces):
    """(time, line) of a whole answer, its chunked encoding undone."""
    raw, ends = b"".join(piece for _, piece in pieces), []
    for when, piece in pieces:
        ends.append(((ends[-1][0] if ends else 0) + len(piece), when))
    head, separator, _ = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        answer = raw[-300:].decode(errors="replace").strip() or "it closed the connection"
        raise Failure(f"a server refused a request: {answer}")
    chunked = b"transfer-encoding: chunked" in head.lower()
    at, part, cursor = len(head) + len(separator), b"", 0
    while at < len(raw):
        end = len(raw)
        if chunked:
            line_end = raw.find(b"\r\n", at)
            size = int(raw[at:line_end] or b"0", 16) if line_end >= 0 else 0
            if size == 0:
                break
            at, end = line_end + 2, line_end + 2 + size
        part += raw[at:end]
        while ends[cursor][0] < min(end, len(raw)):
            cursor += 1
        *lines, part = part.split(b"\n")
        yield from ((ends[cursor][1], line) for line in lines)
        at = end + 2 if chunked else end


def answer_of(pieces, start):
    texts, usage, complete = [], None, False
    for when, line in _lines(pieces):
        if not line.startswith(b"data: "):
            continue
        if line[6:].strip() == b"[DONE]":
            complete = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise Failure(f"a server broke off an answer: {event['error']}")
        if any(choice.get("text") or choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
            texts.append(when - start)
        usage = event.get("usage") or usage
    if not complete or usage is None or not texts:
        raise Failure("a server's answer ended early, or without text or usage")
    return Answer(texts[0], pieces[-1][0] - start, texts, usage["prompt_tokens"], usage["completion_tokens"],
                  (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def _decode_rate(answers):
    """Tokens a second of all streams together, from the last stream's first token to the first stream's end. None: there was
    no such time."""
    begin, end = max(answer.first for answer in answers), min(answer.texts[-1] for answer in answers)
    if end - begin < 0.05:
        return None
    # A piece may hold several tokens, or a token no text: pieces stand for the answer's tokens evenly.
    tokens = sum(sum(begin < when <= end for when in answer.texts) * answer.completion_tokens / len(answer.texts)
                 for answer in answers)
    return tokens / (end - begin)


def run_burst(port, path, bodies, out, limit=1800):
    """Sends all bodies at once, a connection each, as greedy streams of `out` tokens. Returns the figures by their names.
    Raises TooSlow after `limit` seconds."""
    fixed = {"max_tokens": out, "temperature": 0, "ignore_eos": True, "cache_prompt": True, "stream": True,
             "stream_options": {"include_usage": True}}
    start, received = receive_all(port, [request_bytes(port, path, body | fixed) for body in bodies], limit)
    answers = [answer_of(pieces, start) for pieces in received]
    short = [answer for answer in answers if answer.completion_tokens != out]
    if short:
        raise Failure(f"a server wrote {short[0].completion_tokens} tokens where {out} were asked for")
    firsts = [answer.first for answer in answers]
    return {"wall_s": max(answer.last for answer in answers), "ttft_median_s": statistics.median(firsts),
            "ttft_max_s": max(firsts), "decode_tokens_per_s": _decode_rate(answers),
            "prompt_tokens": [answer.prompt_tokens for answer in answers],
            "cached_tokens": sum(answer.cached_tokens for answer in answers)}
