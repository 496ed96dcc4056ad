#!/usr/bin/env python3
"""What a stranger learns about other people's prompts, with and without --isolate keys.

    make build && bench/isolation.py --model FILE

A victim with one key sends a prompt nobody has sent before; a stranger with another key then times the first token of
the same prompt (a right guess) and of another one of the same length (a wrong guess), in random order. `told apart` is
how often a right guess is faster than a wrong one: 50 % means that timing tells nothing. Standard library only. Keep
the machine quiet.
"""

import argparse
import http.client
import itertools
import json
import pathlib
import random
import statistics
import tempfile
import time

from common import Failure, Server, machine, run_to_the_end, say

VICTIM, STRANGER = "key-of-the-victim", "key-of-the-stranger"


class KeyedServer(Server):
    def ask(self, key, prompt):
        """(seconds to the first token, cached tokens) of one request on a connection of its own."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.connect()
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {key}"})
        reply = connection.getresponse()
        first, usage = None, None
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.perf_counter() - start
            usage = json.loads(line[6:]).get("usage") or usage
        connection.close()
        if reply.status != 200 or usage is None:
            raise Failure(f"the server answered {reply.status}")
        return first, usage["prompt_tokens_details"]["cached_tokens"]


def trial(server, tokens, rng, salt):
    """One victim's prompt: (right, wrong) guesses as ask() tells them."""
    def prompt():  # token ids: every prompt has the same length; the first differs in all of them
        return [1000 + salt()] + [rng.randrange(1000, 40000) for _ in range(tokens - 1)]
    secret, other = prompt(), prompt()
    server.ask(VICTIM, secret)
    guesses = [("right", secret), ("wrong", other)]
    rng.shuffle(guesses)
    told = {name: server.ask(STRANGER, text) for name, text in guesses}
    return told["right"], told["wrong"]


def measure(args, isolate, folder):
    keys = folder / "keys"
    keys.write_text(f"victim {VICTIM}\nstranger {STRANGER}\n")
    rng = random.Random(args.seed)
    salts = itertools.count()
    with KeyedServer([args.coppice, "serve", "--model", args.model, "--kv-bytes", args.kv_bytes, "--api-keys", keys,
                      "--isolate", isolate, "--log-level", "warn",
                      *(["--threads", args.threads] if args.threads else [])], folder / "server.log") as server:
        for tokens in args.prompt:
            for _ in range(2):
                trial(server, tokens, rng, lambda: next(salts))  # warms up
            right, wrong = zip(*(trial(server, tokens, rng, lambda: next(salts)) for _ in range(args.trials)))
            wins = sum((r[0] < w[0]) + (r[0] == w[0]) / 2 for r in right for w in wrong) / args.trials ** 2
            print(f"| {isolate} | {tokens} | {statistics.median(r[0] for r in right) * 1000:.1f} ms "
                  f"| {statistics.median(w[0] for w in wrong) * 1000:.1f} ms | {wins:.0%} "
                  f"| {statistics.median(r[1] for r in right):.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--coppice", default="build/coppice")
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 512, 2048], help="tokens")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kv-bytes", default="3GiB")
    parser.add_argument("--threads", help="for the server; default: all cores")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{machine()}; {args.trials} guesses of each kind\n")
    print("| --isolate | prompt tokens | right guess | wrong guess | told apart | `cached_tokens` of a right guess |\n"
          "|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for isolate in ("none", "keys"):
            say(f"--isolate {isolate} ...")
            measure(args, isolate, pathlib.Path(name))


if __name__ == "__main__":
    raise SystemExit(run_to_the_end(main))
