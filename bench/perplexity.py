#!/usr/bin/env python3
"""Perplexity of a text by coppice's prompt_logprobs, beside llama.cpp's own tool on the same file and windows: in one go, a
window a request; and token by token through the prefix cache: each request one token longer than another one, in random
order, eight at a time. Ends with status 1 if coppice's is more than 0.3 % above. It may be further below: for K-quants
llama.cpp rounds a row's numbers in groups of 256, coppice in groups of 32, and comes nearer to what F16 gives."""

import argparse
import concurrent.futures
import math
import pathlib
import random
import re
import sys
import tempfile

from process import Failure, Server, output_of, run_to_the_end, say

WINDOW = 512           # tokens; as the tool does, the second half is scored, so that every token has some past
FIRST = WINDOW // 2 + 1
AT_ONCE = 8
MOST = 0.003           # relative


def by_reference(program, model, text, threads):
    """The perplexity of the first window, of the first two, and so on."""
    out = output_of([program, "-m", model, "-f", text, "-c", WINDOW, "-t", threads], limit=3600)
    return [float(value) for value in re.findall(r"\[\d+\]([\d.]+)", out)]


def read_windows(server, text):
    """What the tool makes of a text: windows without overlap, each with the token that begins texts, if there is one."""
    plain, tokens = (server.post("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]
                     for special in (False, True))
    begin = tokens[:1] if len(tokens) > len(plain) else []
    starts = range(0, len(tokens) - WINDOW + 1, WINDOW)
    return [begin + tokens[at + len(begin):at + WINDOW] for at in starts]


def loss(server, prompt, first):
    """Of the prompt's tokens from the `first` on: the sum of -log p, in nats."""
    body = {"prompt": prompt, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_from": first}
    entries = server.post("/v1/completions", body, limit=600)["choices"][0]["prompt_logprobs"]
    if len(entries) != len(prompt) or any(entries[:first]) or not all(entries[first:]):
        raise Failure("the answer has other log-probabilities than were asked for")
    return -sum(entry[str(token)]["logprob"] for token, entry in zip(prompt[first:], entries[first:]))


def perplexity(losses, n_windows):
    return math.exp(sum(losses) / (n_windows * (WINDOW - FIRST)))


def measure(program, reference, model, text, single_windows, threads):
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "serve", "--model", model, "--kv-bytes", "512MiB", "--threads", threads]
        with Server(command, pathlib.Path(folder) / "log") as server:
            windows = read_windows(server, text.read_text(encoding="utf-8"))
            whole = perplexity([loss(server, window, FIRST) for window in windows], len(windows))
            requests = [window[:n + 1] for window in windows[:single_windows] for n in range(FIRST, WINDOW)]
            random.shuffle(requests)
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                losses = list(pool.map(lambda prompt: loss(server, prompt, len(prompt) - 1), requests))
            single = perplexity(losses, single_windows)
            tokens = server.get("/v1/cache/stats")["tokens"]
    theirs = by_reference(reference, model, text, threads)
    if len(theirs) != len(windows):
        raise Failure(f"llama.cpp's tool reads {len(theirs)} windows and coppice {len(windows)}")
    say(f"{model.name}: {tokens['cached']} of {tokens['prompt']} tokens of prompts came from the cache")
    return len(windows), [(theirs[-1], whole), (theirs[single_windows - 1], single)]


def row(model, n_windows, single_windows, pairs):
    cells = [model.stem]
    for n, (theirs, ours) in zip((n_windows, single_windows), pairs):
        cells += [f"{n * (WINDOW - FIRST):,}", f"{theirs:.4f}", f"{ours:.4f}", f"{100 * (ours / theirs - 1):+.2f} %"]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coppice", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="llama-perplexity")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--bytes", type=int, default=24000, help="of the text; its tokens must fit into the model's context")
    parser.add_argument("--single-windows", type=int, default=6, help="that are read token by token, too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    beyond = []

    def work():
        text = options.text.read_bytes()[:options.bytes]
        print("| model | predictions | llama.cpp | coppice, in one go | difference | predictions | llama.cpp "
              "| coppice, token by token | difference |\n|" + "---|" * 9)
        with tempfile.NamedTemporaryFile(suffix=".txt") as cut:
            cut.write(text[:text.rindex(b"\n")])
            cut.flush()
            for model in options.models:
                n_windows, pairs = measure(options.coppice, options.reference, model, pathlib.Path(cut.name),
                                           options.single_windows, options.threads)
                print(row(model, n_windows, options.single_windows, pairs), flush=True)
                beyond.extend(model.stem for theirs, ours in pairs if ours / theirs - 1 > MOST)
        if beyond:
            raise Failure(f"more than {100 * MOST} % above llama.cpp's: {', '.join(dict.fromkeys(beyond))}")

    return run_to_the_end(work)


if __name__ == "__main__":
    sys.exit(main())
