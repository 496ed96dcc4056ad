"""What a stream pays for a neighbour that follows a grammar.

beside.py COPPICE MODEL [ROUNDS]

Two streams run together: one is timed, the other is its neighbour. In turn the neighbour writes plain text, or a document of a JSON
schema, and everything else is the same. The figure of a burst is the timed stream's median gap between two pieces while both write.
Bursts are short, so that a machine that gets slower does so for both kinds: a round is plain, schema, plain or plain, plain, schema.
Printed are the median over the ROUNDS (40) of schema against plain with its 95 % interval, and what plain bursts differ by among
themselves.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import client
from process import Failure, Server

LIMIT = 1.03  # what we want: a gap at most so many times as long
TOKENS = 64
PROMPT = "Write a list of a hundred people, each with a name, a city, an age and a hobby.\n"
SCHEMA = {"type": "array", "minItems": 100, "items": {
    "type": "object", "additionalProperties": False, "required": ["name", "city", "age", "hobbies"],
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 40}, "city": {"type": "string"}, "age": {"type": "integer"},
                   "hobbies": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 30}}}}}


def body(number, neighbour):
    """Each prompt begins in its own way: nothing of it is cached."""
    fixed = {"prompt": f"{number}. {PROMPT}", "max_tokens": TOKENS, "temperature": 0, "stream": True,
             "stream_options": {"include_usage": True}}
    return fixed | ({"guided_json": SCHEMA} if neighbour == "schema" else {"ignore_eos": True})


def burst(port, number, neighbour):
    """The timed stream's answer and its neighbour's."""
    bodies = [body(2 * number, "plain"), body(2 * number + 1, neighbour)]
    start, received = client.receive_all(port, [client.request_bytes(port, "/v1/completions", b) for b in bodies], 120)
    timed, other = (client.answer_of(pieces, start) for pieces in received)
    if min(timed.completion_tokens, other.completion_tokens) < TOKENS:
        raise Failure(f"an answer ended after {other.completion_tokens} tokens")
    return timed, other


def median_gap(port, number, neighbour):
    """Seconds; of the timed stream, while both write."""
    timed, other = burst(port, number, neighbour)
    begin, end = max(timed.first, other.first), min(timed.last, other.last)
    whiles = [when for when in timed.texts if begin <= when <= end]
    return statistics.median(b - a for a, b in zip(whiles, whiles[1:]))


def median_interval(values):
    """Of the median, 95 %, whatever the distribution: order statistics, by the binomial distribution's normal limit."""
    ordered, n = sorted(values), len(values)
    out = int(n / 2 - 0.98 * n ** 0.5)
    return ordered[max(out, 0)], ordered[min(n - 1 - out, n - 1)]


def main():
    coppice, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    ratios, noise = [], []
    with tempfile.TemporaryDirectory() as folder, \
            Server([coppice, "serve", "--model", model, "--kv-bytes", "256MiB"], Path(folder) / "log") as server:
        for warm_up in ("plain", "schema"):  # the graphs are made, the grammar is compiled: the timed stream may end before that
            burst(server.port, 10 ** 6, warm_up)
        for i in range(rounds):
            kinds = ["plain", "schema", "plain"] if i % 2 == 0 else ["plain", "plain", "schema"]
            gaps = {"plain": [], "schema": []}
            for j, kind in enumerate(kinds):
                gaps[kind].append(median_gap(server.port, 3 * i + j, kind))
            ratios.append(gaps["schema"][0] / statistics.mean(gaps["plain"]))
            noise.append(gaps["plain"][1] / gaps["plain"][0])
    ratio = statistics.median(ratios)
    low, high = median_interval(ratios)
    print(f"a stream's gap beside one with a schema, over beside a plain one: median {ratio:.3f} (95 % interval {low:.3f} to {high:.3f}) "
          f"of {rounds} rounds; plain over plain: {statistics.median(noise):.3f} ({median_interval(noise)[0]:.3f} to "
          f"{median_interval(noise)[1]:.3f}); at most {LIMIT} is wanted")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
