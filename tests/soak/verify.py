"""What is checked while the load rests: nothing is held, and texts are right.

Golden answers: the same requests, alone and in a namespace of their own, must give the very same bytes in each rest: after
an hour of load as before it. Records: a token that a greedy answer got under load must have, computed anew from the whole
text before it, the same likelihood as far as weights of few bits allow. A block that was given to the wrong request, or was
overwritten, would change it by far more."""

import asyncio
import itertools
import json
import time

import texts
from checks import check_answer, hold
from world import Hung

# Quantised weights round by the shape of the batch: 0.135 at most was seen. A wrong past changes a logprob by units.
TOLERANCE = 1.0
COMPLETIONS = "/v1/completions"
ENDED = ("finished", "cancelled", "timed_out", "refused", "failed")
RECORDS_A_REST = 4


class Verifier:
    def __init__(self, world):
        self.world = world
        self.golden, self.verified, self.largest_change = None, 0, 0.0
        self._salts = itertools.count()
        self._rng = world.rng("verifier")
        self._ids = {}

    async def deserted(self):
        """The figures once nobody is connected and every request has ended. Raises Wrong where something is left."""
        world = self.world
        for _ in range(1200):
            metrics = (await world.ask("/metrics", key=world.key())).body.decode()
            stats = await world.stats()
            requests = stats["requests"]
            ended = sum(requests.get(outcome, 0) for outcome in ENDED)
            if "\ncoppice_connections 1\n" in metrics and requests["submitted"] == ended:
                break
            await asyncio.sleep(0.25)
        else:
            raise Hung(f"connections or requests are left: {json.dumps(requests)}")
        blocks = stats["blocks"]
        hold(blocks["in_use"] == 0 and blocks["shared"] == 0 and blocks["max_refs"] == 0 and blocks["reserved"] == 0,
             "blocks are held by nobody:", json.dumps(blocks))
        hold(blocks["total"] == blocks["free"] + blocks["cached"], "blocks are lost:", json.dumps(blocks))
        hold("\ncoppice_http_body_bytes 0\n" in metrics, "bytes of bodies are held by nobody")
        return stats

    async def _complete(self, salt, **body):
        world = self.world
        body |= {"cache_salt": salt, "stream_options": {"include_usage": True} if body.get("stream") else None}
        response = await world.ask(COMPLETIONS, body, world.key())
        return check_answer(COMPLETIONS, body, response)

    async def check_golden(self):
        answers = []
        for body in ({"prompt": texts.preface(5), "max_tokens": 24}, {"prompt": "Once upon a time", "max_tokens": 60},
                     {"prompt": texts.preface(2), "max_tokens": 16, "temperature": 1, "seed": 5, "n": 3}):
            body = {"temperature": 0, "ignore_eos": True} | body
            for stream in (False, True):
                answer = await self._complete(f"golden-{next(self._salts)}", stream=stream, **body)
                answers.append([choice.text for choice in answer.choices])
            hold(answers[-1] == answers[-2], "a stream and a whole answer differ:", answers[-2:])
        if self.golden is None:
            self.golden = answers
        for now, first in zip(answers, self.golden):
            hold(now == first, "the same request gives another text than at first:", first, now)

    async def _token_id(self, piece, key):
        if piece not in self._ids:
            ids = await self.world.tokenize({"content": piece, "parse_special": False}, key)
            self._ids[piece] = ids[0] if len(ids) == 1 else None
        return self._ids[piece]

    async def check_records(self):
        records, world = self.world.records, self.world
        for _ in range(min(RECORDS_A_REST, len(records))):
            key, salt, prompt, entries = records.pop(self._rng.randrange(len(records)))
            i = self._rng.randrange(1, len(entries))
            before = [None if piece.startswith("bytes:") else await self._token_id(piece, key) for piece, _, _ in entries[:i]]
            if None in before:  # its text doesn't tell the token
                continue
            piece, value, _ = entries[i]
            for namespace in (salt, f"anew-{next(self._salts)}"):  # on the cached blocks, and from nothing
                body = {"prompt": prompt + before, "max_tokens": 1, "temperature": 0, "logprobs": 20, "cache_salt": namespace}
                answer = check_answer(COMPLETIONS, body, await world.ask(COMPLETIONS, body, key))
                top = answer.choices[0].logprobs[0][2]
                hold(piece in top, f"under load {piece!r} was the likeliest, now it isn't among 20:", list(top)[:5])
                change = abs(top[piece] - value)
                self.largest_change = max(self.largest_change, change)
                hold(change <= TOLERANCE, f"{piece!r} had a logprob of {value:.3f} under load, now {top[piece]:.3f}")
            self.verified += 1

    async def rest(self):
        """The load is away. Returns the figures at rest."""
        start = time.monotonic()
        await self.deserted()
        await self.check_golden()
        await self.check_records()
        stats = await self.deserted()
        return stats, time.monotonic() - start
