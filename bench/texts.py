#!/usr/bin/env python3
"""What it costs that prompts come as text: the same burst as token arrays, as texts and as chats, in turns.

    bench/texts.py --coppice build/coppice --model M.gguf [--requests 8] [--shared 1500] [--rounds 5] [--serve=--device,cuda] [--json FILE]

Requests come at once; each begins with --shared tokens of text, which nobody has seen (cold) or which were served before (warm), and has 20 of
its own. Prints medians of the slowest first token and of the whole burst, how many times the arrays' that is, and how long the server took to
prepare a request of the burst, on average (coppice_request_preparation_time_seconds: from a body's last byte to its tokens). Each burst has a text
of its own; of arrays the server is asked for the tokens beforehand.
"""
import argparse
import json
import re
import statistics
import tempfile
import urllib.request
from pathlib import Path

import client
from machine import machine
from process import Server, run_to_the_end, say
from text import Text, usable_words

OWN = 20
FORMS = ("arrays", "texts", "chats")


def bodies(server, form, head, tails):
    if form == "chats":
        return [{"messages": [{"role": "system", "content": head}, {"role": "user", "content": tail}]} for tail in tails]
    if form == "texts":
        return [{"prompt": head + tail} for tail in tails]
    return [{"prompt": server.post("/tokenize", {"content": head + tail})["tokens"]} for tail in tails]


def preparing(server):
    """Seconds that all requests so far took to prepare, together."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=20) as answer:
        return float(re.search(rb"^coppice_request_preparation_time_seconds_sum(?:{.*})? (\S+)", answer.read(), re.MULTILINE)[1])


def burst(server, form, head, text, o):
    path = "/v1/chat/completions" if form == "chats" else "/v1/completions"
    asked = bodies(server, form, head, [text.tokens(OWN) for _ in range(o.requests)])
    before = preparing(server)
    figures = client.run_burst(server.port, path, asked, o.out, 600)
    return figures | {"prepare_s": (preparing(server) - before) / o.requests}


def measured(o, server):
    """{(form, warm): [figures]}"""
    text, found = Text(usable_words(server)), {}
    for i in range(o.rounds + 1):  # the first one warms up
        for form in FORMS[i % 3:] + FORMS[:i % 3]:
            head = text.tokens(o.shared)
            for warm in (False, True):
                figures = burst(server, form, head, text, o)
                if i > 0:
                    found.setdefault((form, warm), []).append(figures)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", type=lambda name: Path(name).resolve(), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--shared", type=int, default=1500, help="tokens")
    parser.add_argument("--out", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=lambda text: text.split(","), default=[], help="options of the server, with commas between them")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [o.coppice, "serve", "--model", o.model, "--max-batch", o.requests, *o.serve]
        with Server(command, Path(folder) / "log") as server:
            found = measured(o, server)
    rows = [{"form": form, "warm": warm, "first_s": statistics.median(one["ttft_max_s"] for one in runs),
             "wall_s": statistics.median(one["wall_s"] for one in runs),
             "prepare_s": statistics.median(one["prepare_s"] for one in runs)} for (form, warm), runs in sorted(found.items())]
    print(f"{o.requests} at once on {o.shared:,} tokens\n| | slowest first token, s | times arrays | total, s | times arrays | preparing, s |\n|---|---|---|---|---|---|")
    for row in rows:
        arrays = next(other for other in rows if other["form"] == "arrays" and other["warm"] == row["warm"])
        print(f"| {row['form']}, {'warm' if row['warm'] else 'cold'} | " +
              " | ".join(f"{row[name]:.3f} | {row[name] / arrays[name]:.2f}" for name in ("first_s", "wall_s")) + f" | {row['prepare_s']:.4f} |")
    if o.json:
        o.json.write_text(json.dumps({"machine": machine(), "model": o.model.stem, "requests": o.requests, "shared": o.shared, "rows": rows}, indent=1) + "\n")
    say("done")


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
