#!/usr/bin/env python3
"""Agents' traffic on one server: growing transcripts of several sessions, interleaved, half way each parts into branches. Three
servers get it: one with room for everything, one with half of that, and one without sharing, which is sent the second one's
prompts again. Ends with status 1 if less than nine tenths of the prompts' tokens came from the half's cache, or if it said
something else than the server without sharing. The text is random tokens: what is cached doesn't hang on their sense."""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import sys
import tempfile

from process import Failure, Server, run_to_the_end, say

LEAST_CACHED = 0.9
# Batches of other shapes add in another order, and may round a key to another f16. Beyond these two answers differ.
SAME_LOGPROB, TIE = 0.02, 0.02  # nats: of one token; between two tokens of which either may be said


@dataclasses.dataclass
class Turn:
    prompt: list
    answer: list        # token ids
    logprobs: list      # of the answer's tokens
    tops: list          # of each of its places: {id: log-probability} of the likeliest tokens
    cached: int


def ask(server, prompt, n_predict):
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "return_tokens": True, "n_probs": 5}
    answer = server.post("/completion", body, limit=600)
    places = answer["completion_probabilities"]
    if len(answer["tokens"]) != n_predict or len(places) != n_predict or answer["tokens_evaluated"] != len(prompt):
        raise Failure(f"of {len(prompt)} and {n_predict} tokens the server read {answer['tokens_evaluated']} and wrote "
                      f"{len(answer['tokens'])}")
    return Turn(prompt, answer["tokens"], [place["logprob"] for place in places],
                [{top["id"]: top["logprob"] for top in place["top_logprobs"]} for place in places], answer["tokens_cached"])


def run_sessions(server, o):
    """All turns, in the order in which they were answered. A session's next turn waits behind the others' turns."""
    rng = random.Random(o.seed)
    tokens = lambda n: [rng.randrange(o.first_token, o.last_token) for _ in range(n)]
    waiting = collections.deque((0, tokens(0)) for _ in range(o.sessions))  # turns so far, transcript
    system, turns, running = tokens(o.system), [], {}
    with concurrent.futures.ThreadPoolExecutor(o.at_once) as pool:
        while waiting or running:
            while waiting and len(running) < o.at_once:
                n, transcript = waiting.popleft()
                prompt = (transcript or system) + tokens(rng.randint(o.least, o.most))
                running[pool.submit(ask, server, prompt, o.answer)] = n + 1
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                n, turn = running.pop(future), future.result()
                turns.append(turn)
                branches = o.branches if n == o.turns // 2 else 1
                if n < o.turns:
                    waiting.extend([(n, turn.prompt + turn.answer)] * branches)
    return turns


def cached_part(turns):
    return sum(turn.cached for turn in turns) / sum(len(turn.prompt) for turn in turns)


def difference(turn, other):
    """The farthest difference between two answers' log-probabilities, and whether they part at a tie. Raises Failure where they
    say different things."""
    farthest = 0.0
    for ours, theirs, logprob, tops in zip(turn.answer, other.answer, turn.logprobs, other.tops):
        if ours not in tops:
            raise Failure(f"behind {len(turn.prompt)} tokens, {turn.cached} of them cached, {ours} was said, and without sharing {theirs}")
        farthest = max(farthest, abs(logprob - tops[ours]))
        if farthest > SAME_LOGPROB or tops[theirs] - tops[ours] > TIE:
            raise Failure(f"behind {len(turn.prompt)} tokens, {turn.cached} of them cached, {ours} has {logprob:.4f}, and without "
                          f"sharing {tops[ours]:.4f}; the best there is {theirs} with {tops[theirs]:.4f}")
        if ours != theirs:
            return farthest, True
    return farthest, False


def measure(o):
    def server(name, kv_bytes, *more):
        command = [o.coppice, "serve", "--model", o.model, "--threads", o.threads, "--kv-bytes", kv_bytes, *more]
        return Server(command, pathlib.Path(o.logs) / f"{name}.log")

    with server("all", o.kv_bytes) as all_room:
        everything = run_sessions(all_room, o)
        stats = all_room.get("/v1/cache/stats")
    if stats["evictions"]:
        raise Failure(f"{o.kv_bytes} bytes are too few for everything: {stats['evictions']} evictions")
    blocks, states = stats["blocks"], stats["states"]
    used = blocks["total"] - blocks["free"]
    total_bytes = used * stats["bytes"]["budget"] // blocks["total"]
    with server("half", total_bytes // 2, "--check-every", o.check_every) as half_room:
        turns = run_sessions(half_room, o)
        half = half_room.get("/v1/cache/stats")
    if half["integrity_findings"]:
        raise Failure(f"the cache's check found {half['integrity_findings']} faults")
    with server("alone", total_bytes // 2, "--share", "off") as alone, concurrent.futures.ThreadPoolExecutor(o.at_once) as pool:
        others = list(pool.map(lambda turn: ask(alone, turn.prompt, o.answer), turns))
    if any(turn.cached for turn in others):
        raise Failure("the server without sharing found tokens in its cache")
    differences = [difference(turn, other) for turn, other in zip(turns, others)]
    return {"requests": len(turns), "prompt_tokens": sum(len(turn.prompt) for turn in turns),
            "longest_prompt": max(len(turn.prompt) for turn in turns),
            "everything_bytes": total_bytes, "everything_states": states["cached"],
            "state_part": states["cached"] * states["blocks_each"] / used,
            "cached_with_all_room": cached_part(everything), "half_bytes": total_bytes // 2, "cached_with_half": cached_part(turns),
            "evictions": half["evictions"], "integrity_checks": half["integrity_checks"],
            "same_texts": sum(not tie for _, tie in differences), "ties": sum(tie for _, tie in differences),
            "farthest_logprob": max(farthest for farthest, _ in differences)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coppice", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv-bytes", default="4GiB", help="room for everything, default 4GiB")
    parser.add_argument("--threads", default=2)
    numbers = {"sessions": 8, "turns": 40, "branches": 3, "at-once": 8, "answer": 8, "system": 200, "seed": 1,
               "least": 5, "most": 25, "first-token": 1000, "last-token": 40000, "check-every": 16}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    o = parser.parse_args()

    def work():
        with tempfile.TemporaryDirectory() as o.logs:
            found = measure(o)
        print(json.dumps(found, indent=2))
        if found["cached_with_half"] < LEAST_CACHED:
            raise Failure(f"only {100 * found['cached_with_half']:.1f} % of the prompts' tokens came from the cache")
        say(f"{100 * found['cached_with_half']:.1f} % of the prompts' tokens came from the cache in half the room")

    return run_to_the_end(work)


if __name__ == "__main__":
    sys.exit(main())
