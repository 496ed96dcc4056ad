#!/usr/bin/env python3
"""Perplexity of a text by coppice's prompt_logprobs: in one go, a window a request; and token by token through the prefix
cache: each request one token longer than another one, in random order, eight at a time. Beside it llama.cpp's own tool on the
same file and windows. Ends with status 1 if coppice's is more than 0.3 % above. It may be further below: for K-quants
llama.cpp rounds a row's numbers in groups of 256, coppice in groups of 32, and comes nearer to what F16 gives.

With --against DEVICE (cpu, say) coppice on that device takes the tool's place, and must agree within 0.3 % either way.

Without both the two ways are compared with each other, and must agree within 0.3 %. So must each single prediction, on the
average: a model of random weights has the same perplexity whatever it read."""

import argparse
import concurrent.futures
import itertools
import math
import pathlib
import random
import re
import statistics
import sys
import tempfile

from process import Failure, Server, output_of, run_to_the_end, say

WINDOW = 512           # tokens; as the tool does, the second half is scored, so that every token has some past
FIRST = WINDOW // 2 + 1
AT_ONCE = 8
MOST = 0.003           # relative
BYTES, SINGLE_WINDOWS = 24000, 6  # what MOST holds for


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


def losses(server, prompt, first):
    """Of the prompt's tokens from the `first` on: -log p, in nats."""
    body = {"prompt": prompt, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_from": first}
    entries = server.post("/v1/completions", body, limit=600)["choices"][0]["prompt_logprobs"]
    if len(entries) != len(prompt) or any(entries[:first]) or not all(entries[first:]):
        raise Failure("the answer has other log-probabilities than were asked for")
    return [-entry[str(token)]["logprob"] for token, entry in zip(prompt[first:], entries[first:])]


def perplexity(of_windows):
    return math.exp(statistics.fmean(itertools.chain(*of_windows)))


def read_both_ways(program, model, text, single_windows, threads, device="auto"):
    """-log p of each window's second half, in one go; and of the first windows' token by token."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "serve", "--model", model, "--kv-bytes", "512MiB", "--threads", threads, "--device", device]
        with Server(command, pathlib.Path(folder) / "log") as server:
            windows = read_windows(server, text.read_text(encoding="utf-8"))
            if len(windows) < single_windows:
                raise Failure(f"the text has {len(windows)} windows of {WINDOW} tokens")
            whole = [losses(server, window, FIRST) for window in windows]
            places = [(w, n) for w in range(single_windows) for n in range(FIRST, WINDOW)]
            random.shuffle(places)
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                found = dict(zip(places, pool.map(lambda at: losses(server, windows[at[0]][:at[1] + 1], at[1])[0], places)))
            tokens = server.get("/v1/cache/stats")["tokens"]
    say(f"{model.name}: {tokens['cached']} of {tokens['prompt']} tokens of prompts came from the cache")
    return whole, [[found[w, n] for n in range(FIRST, WINDOW)] for w in range(single_windows)]


def beside_reference(program, reference, model, text, single_windows, threads):
    whole, single = read_both_ways(program, model, text, single_windows, threads)
    theirs = by_reference(reference, model, text, threads)
    if len(theirs) != len(whole):
        raise Failure(f"llama.cpp's tool reads {len(theirs)} windows and coppice {len(whole)}")
    return len(whole), [(theirs[-1], perplexity(whole)), (theirs[single_windows - 1], perplexity(single))]


def beside_device(program, device, other, model, text, single_windows, threads):
    theirs, ours = (read_both_ways(program, model, text, single_windows, threads, which) for which in (other, device))
    return len(ours[0]), [(perplexity(a), perplexity(b)) for a, b in zip(theirs, ours)]


def beside_itself(program, model, text, single_windows, threads):
    """A row of the table; whether the two ways agree."""
    whole, single = read_both_ways(program, model, text, single_windows, threads)
    one_go, by_token = perplexity(whole[:single_windows]), perplexity(single)
    apart = statistics.fmean(abs(a - b) for a, b in zip(itertools.chain(*whole), itertools.chain(*single)))
    row = (f"| {model.stem} | {single_windows * (WINDOW - FIRST):,} | {one_go:.4f} | {by_token:.4f} | {100 * (by_token / one_go - 1):+.4f} % "
           f"| {apart:.1e} |")
    return row, abs(by_token / one_go - 1) <= MOST and apart <= MOST


def row(model, n_windows, single_windows, pairs):
    cells = [model.stem]
    for n, (theirs, ours) in zip((n_windows, single_windows), pairs):
        cells += [f"{n * (WINDOW - FIRST):,}", f"{theirs:.4f}", f"{ours:.4f}", f"{100 * (ours / theirs - 1):+.2f} %"]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coppice", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path, help="llama-perplexity; without it coppice is compared with itself")
    parser.add_argument("--device", default="auto", help="serve's")
    parser.add_argument("--against", metavar="DEVICE", help="compare with coppice on this device")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--bytes", type=int, default=BYTES, help="of the text; its tokens must fit into the model's context")
    parser.add_argument("--single-windows", type=int, default=SINGLE_WINDOWS, help="that are read token by token, too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    beyond = []
    # By how much two roundings are apart falls with the root of the predictions' number.
    allowed = [MOST * max(1, whole / max(1, part)) ** 0.5
               for whole, part in ((BYTES, options.bytes), (SINGLE_WINDOWS, options.single_windows))]

    def compare(model, text):
        if options.against is not None:
            n_windows, pairs = beside_device(options.coppice, options.device, options.against, model, text, options.single_windows,
                                             options.threads)
            line = row(model, n_windows, options.single_windows, pairs)
            right = all(abs(ours / theirs - 1) <= MOST for theirs, ours in pairs)
        elif options.reference is None:
            line, right = beside_itself(options.coppice, model, text, options.single_windows, options.threads)
        else:
            n_windows, pairs = beside_reference(options.coppice, options.reference, model, text, options.single_windows,
                                                options.threads)
            line = row(model, n_windows, options.single_windows, pairs)
            right = all(ours / theirs - 1 <= most for (theirs, ours), most in zip(pairs, allowed))
        print(line, flush=True)
        if not right:
            beyond.append(model.stem)

    def work():
        text = options.text.read_bytes()[:options.bytes]
        other = "llama.cpp" if options.against is None else options.against
        print("| model | predictions | in one go | token by token | difference | of one prediction, mean |\n|" + "---|" * 6
              if options.reference is None and options.against is None else
              f"| model | predictions | {other} | coppice, in one go | difference | predictions | {other} "
              "| coppice, token by token | difference |\n|" + "---|" * 9)
        with tempfile.NamedTemporaryFile(suffix=".txt") as cut:
            cut.write(text[:text.rindex(b"\n")])
            cut.flush()
            for model in options.models:
                compare(model, pathlib.Path(cut.name))
        if beyond:
            raise Failure(f"more off than is allowed ({100 * MOST} % of the text of {BYTES} bytes): {', '.join(beyond)}")

    return run_to_the_end(work)


if __name__ == "__main__":
    sys.exit(main())
