#!/usr/bin/env python3
"""What pictures cost, on random weights of bench/vision_model.py.

    bench/pictures.py streams --coppice build/coppice FOLDER [--rounds 3]
    bench/pictures.py burst --coppice build/coppice --llama-server PATH FOLDER [--rounds 1] [--slots 1 8]

streams: eight streams write, and pictures come one by one that nobody has seen. Printed is the streams' rate while one is encoded against that
before it comes; the aim is 60 %. The exit status says whether it was reached.

burst: eight requests at once ask about one picture, each with a text of its own, and get 32 tokens. Cold: nobody has seen the picture; warm: the
same again with other questions. The encoder's seconds are taken off both sides: coppice's are measured by it; of the peer they are a picture's
time to the first token less that of a text of as many tokens. Both servers stand still while it is the other's turn.
"""

import argparse
import base64
import datetime
import json
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request
import zlib

import client
import page
import pictures_page
import results
from machine import commit, file_name, machine
from process import Failure, Server, run_to_the_end, say

STREAMS, STREAM, ANSWER = 8, 400, 32  # streams, and tokens of each; of an answer
LEAST = 0.6  # of the streams' rate


def picture(seed, width, height):
    """A data URL of smooth colours. Its lines say how they differ from the one above, so that the file is small."""
    first = b"".join(bytes(((x + 7 * seed) & 255, 13 * seed & 255, x >> 3 & 255)) for x in range(width))
    differences = [b"".join(b"\0\1\1" if (x + y) % 8 == 0 else b"\0\1\0" for x in range(width)) for y in range(8)]
    lines = [b"\0" + first, *(b"\2" + differences[y % 8] for y in range(1, height))]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(lines))
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


def words(seed, n):
    """Some n tokens of text, of another seed others."""
    list_ = "time year way day man thing woman life child world school state family student group country problem hand part place".split()
    return " ".join(random.Random(seed).choices(list_, k=n))


def chat(parts, out):
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": out, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}


def text(string):
    return {"type": "text", "text": string}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def metric(server, name):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise Failure(f"{server.name} has no {name}")


def coppice_command(o):
    return [o.coppice, "serve", "--model", o.folder / "model.gguf", "--mmproj", o.folder / "mmproj.gguf", "--kv-bytes", "1GiB", "--ctx", 4096,
            *(["--threads", o.threads] if o.threads else []), *o.options.split()]


# Streams

def between(times, begin, end):
    return sum(begin < when <= end for when in times) / (end - begin)


def encode_beside(server, url):
    """When the encoding of a picture began and ended, and how many seconds it took by the encoder's own account."""
    before, seconds = (metric(server, f"coppice_image_encode{name}_total") for name in ("s", "_seconds"))
    done, seen = threading.Event(), []

    def ask():
        try:
            client.receive_all(server.port, [client.request_bytes(server.port, "/v1/chat/completions", chat([image(url)], 1))], 900)
        finally:
            done.set()

    begin = time.perf_counter()
    thread = threading.Thread(target=ask)
    thread.start()
    last = before
    while not done.wait(0.1):
        now = metric(server, "coppice_image_encodes_total")
        if now > last:
            seen.append(time.perf_counter())
            last = now
    thread.join()
    if not seen:
        raise Failure("the picture was not encoded")
    return begin + 0.3, seen[-1], metric(server, "coppice_image_encode_seconds_total") - seconds  # its file was decoded first


def streams(o):
    ratios = []
    with tempfile.TemporaryDirectory() as logs, Server(coppice_command(o), pathlib.Path(logs) / "log") as server:
        pieces = [[] for _ in range(STREAMS)]
        ending = threading.Event()

        def write(i, times):  # again and again: the rate falls with the depth
            while not ending.is_set():
                body = {"prompt": words(i, 60), "max_tokens": STREAM, "temperature": 0, "ignore_eos": True, "stream": True,
                        "stream_options": {"include_usage": True}}
                request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=900) as answer:
                    for line in answer:
                        if line.startswith(b"data: {"):
                            times.append(time.perf_counter())
                        if ending.is_set():
                            return

        threads = [threading.Thread(target=write, args=both, daemon=True) for both in enumerate(pieces)]
        for thread in threads:
            thread.start()
        while not all(pieces):
            time.sleep(0.1)
        time.sleep(1)
        for i in range(o.rounds):
            alone_from = time.perf_counter()
            time.sleep(o.alone)
            alone_to = time.perf_counter()
            begin, end, seconds = encode_beside(server, picture(i + 1, *o.size))
            all_times = [when for times in pieces for when in list(times)]
            alone, beside = between(all_times, alone_from, alone_to), between(all_times, begin, end)
            ratios.append(beside / alone)
            say(f"alone {alone:.1f} tokens/s, beside the encoder {beside:.1f}: {100 * beside / alone:.0f} % ({seconds:.1f} s of encoding)")
            time.sleep(0.5)
        ending.set()
        for thread in threads:
            thread.join(30)
    share = statistics.median(ratios)
    print(f"eight streams keep {100 * share:.0f} % of their rate while a picture is encoded ({len(ratios)} pictures, "
          f"{100 * min(ratios):.0f} to {100 * max(ratios):.0f} %); at least {100 * LEAST:.0f} % is wanted")
    if share < LEAST:
        raise Failure("the streams lose too much")


# Bursts

def asked(url, seed):
    return [text("Look at this picture."), image(url), text(words(seed, 24))]


def burst(server, url, first):
    bodies = [chat(asked(url, first + i), ANSWER) for i in range(STREAMS)]
    start, received = client.receive_all(server.port, [client.request_bytes(server.port, "/v1/chat/completions", body) for body in bodies], 1800)
    answers = [client.answer_of(pieces, start) for pieces in received]
    return {"wall_s": max(a.last for a in answers), "ttft_median_s": statistics.median(a.first for a in answers),
            "decode_tokens_per_s": client._decode_rate(answers), "prompt_tokens": answers[0].prompt_tokens}


def first_token(server, body):
    start, received = client.receive_all(server.port, [client.request_bytes(server.port, "/v1/chat/completions", body)], 1800)
    answer = client.answer_of(received[0], start)
    return answer.first, answer.prompt_tokens


def peer_encoding(server, url):
    """Seconds; and of the prefill."""
    with_picture, n = first_token(server, chat([text("Here:"), image(url), text("What?")], 2))
    one = words(3, 1)
    prefill, tokens = first_token(server, chat([text(" ".join([one] * (n - 30)))], 2))
    return with_picture - prefill * n / tokens, prefill * n / tokens


def measure(o, name, server, encoding):
    """encoding: of a burst, seconds."""
    figures = {}
    for kind, first in (("cold", 0), ("warm", 100)):
        before = metric(server, "coppice_image_encode_seconds_total") if encoding is None else 0
        figures[kind] = burst(server, picture(o.seed, *o.size), first)
        if encoding is None:
            figures[kind]["encode_s"] = metric(server, "coppice_image_encode_seconds_total") - before
        else:
            figures[kind]["encode_s"] = encoding if kind == "cold" else 0.0
        f = figures[kind]
        say(f"{name}, {kind}: {f['wall_s']:.2f} s in all, {f['encode_s']:.2f} s of it encoding; first token {f['ttft_median_s']:.2f} s (median), "
            f"{f['decode_tokens_per_s'] or 0:.0f} tokens/s, {f['prompt_tokens']} prompt tokens")
    return figures


def bursts(o):
    with tempfile.TemporaryDirectory() as logs:
        rows = []
        for _ in range(o.rounds):
            with Server(coppice_command(o), pathlib.Path(logs) / "coppice.log") as server:
                client.run_burst(server.port, "/v1/completions", [{"prompt": words(i, 200)} for i in range(STREAMS)], 4)
                rows.append({"side": "coppice"} | measure(o, "coppice", server, None))
            for slots in o.slots:
                name = f"llama-server, {slots} {'slots' if slots > 1 else 'slot'}"
                command = [o.llama_server, "-m", o.folder / "model.gguf", "--mmproj", o.folder / "mmproj.gguf", "-np", slots, "-c", slots * 4096,
                           "--cache-ram", 0, "--no-mmproj-offload", "-fa", "on", *(["-t", o.threads] if o.threads else []), *o.peer_options.split()]
                with Server(command, pathlib.Path(logs) / "peer.log") as server:
                    encode, prefill = peer_encoding(server, picture(o.seed + 1, *o.size))
                    say(f"{name}: {encode:.2f} s of encoding, {prefill:.2f} s of prefill")
                    rows.append({"side": name, "prefill_s": prefill} |
                                measure(o, name, server, encode))
    content = {"machine": machine(), "date": datetime.date.today().isoformat(), "commit": commit(), "model": o.about or o.folder.name,
               "threads": o.threads or "each program's own choice of", "rounds": o.rounds, "peer_options": o.peer_options,
               "prompt_tokens": rows[0]["cold"]["prompt_tokens"], "sides": summary(rows)}
    print("\n".join(pictures_page.table(content)))
    if o.save:
        path = page.REPO / "bench/results/pictures" / f"{file_name()}-{o.save}.json"
        results.write(path, content)
        page.write(page.REPO / "bench/results", page.REPO / "bench/README.md")
        say(f"figures: {path}")


def summary(rows):
    """{side: {cold, warm: {wall_s, encode_s, ttft_median_s}}}, medians of the rounds."""
    sides = {}
    for side in dict.fromkeys(row["side"] for row in rows):
        its = [row for row in rows if row["side"] == side]
        sides[side] = {kind: {figure: results.rounded(statistics.median(row[kind][figure] for row in its)) for figure in ("wall_s", "encode_s", "ttft_median_s")}
                       for kind in ("cold", "warm")}
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "burst"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--coppice", required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--threads", type=int, help="default: each program's own choice")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, nargs="*", default=[1])
    parser.add_argument("--size", type=int, nargs=2, default=[2048, 2048], help="of a picture; default 2048 2048")
    parser.add_argument("--alone", type=float, default=3, help="seconds that the streams are timed alone, default 3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="NAME", help="a burst's figures become a table of bench/README.md, by machine and this name")
    parser.add_argument("--about", default="", help="what the table calls the model; default: the folder's name")
    parser.add_argument("--options", default="", help="further ones of coppice's")
    parser.add_argument("--peer-options", default="", help="further ones of llama-server's: --peer-options=--swa-full for a model with windows, "
                        "or it encodes the picture for each request again")
    o = parser.parse_args()
    if o.what == "burst" and not o.llama_server:
        parser.error("burst wants --llama-server")
    return run_to_the_end(lambda: streams(o) if o.what == "streams" else bursts(o))


if __name__ == "__main__":
    sys.exit(main())
