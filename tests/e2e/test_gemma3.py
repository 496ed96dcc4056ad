"""Gemma 3 270M, whose layers slide but for every sixth: a long conversation, of which most blocks leave the windows.

What a block holds is the pool's affair: only how counts relate is asserted.
"""

import os
import random

import openai
import pytest

from coppice_process import Coppice, assert_nothing_held
from same_text import assert_same

TOKENS = 6000  # of the conversation
WINDOW = 512
PLACES = ["harbour", "library", "orchard", "station", "theatre", "bakery", "garden", "museum", "tower", "market"]
THINGS = ["lamp", "violin", "map", "kettle", "ladder", "statue", "ring", "chair", "mirror", "lantern", "anchor", "clock"]
COLOURS = ["red", "blue", "green", "silver", "golden", "black", "white", "yellow", "brown", "purple"]


def gemma3():
    return os.environ["COPPICE_GEMMA3"]


def question(colour, thing):
    return f"User: Where is the {colour} {thing}?\nAssistant: The {colour} {thing} is in the"


def turns():
    """Questions and answers, each pair of colour and thing once, in an order of their own."""
    rng = random.Random(3)
    pairs = [(colour, thing) for colour in COLOURS for thing in THINGS]
    while True:
        rng.shuffle(pairs)
        for colour, thing in pairs:
            yield f"{question(colour, thing)} {rng.choice(PLACES)}.\n"


@pytest.fixture(scope="module")
def server():
    with Coppice("--kv-bytes", "512MiB", "--drain-seconds", "1", model=gemma3()) as server:
        yield server
        assert_nothing_held(server.idle_stats())
        assert server.end() == 0


@pytest.fixture(scope="module")
def unshared():
    """The same model without a cache: what is said there is right."""
    with Coppice("--kv-bytes", "512MiB", "--share", "off", model=gemma3()) as server:
        yield server


@pytest.fixture(scope="module")
def conversation(server):
    text, more = "", turns()
    while len(text) < 8 * TOKENS:
        text += next(more)
    tokens = tokens_of(server, text)
    assert len(tokens) >= TOKENS and tokens[0] == 2
    return tokens[:TOKENS]


def tokens_of(server, text, beginning=True):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": beginning})["tokens"]


def body(prompt, salt, **more):
    return {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 2, "cache_salt": salt} | more


def stream(server, prompt, salt, **more):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)
    more = {"max_tokens": 8} | more
    return client.completions.create(model="default", prompt=prompt, temperature=0, stream=True, logprobs=2, **more,
                                     extra_body={"cache_salt": salt, "ignore_eos": True})


def alone(unshared, prompt, n):
    """What is said where nothing is shared."""
    return unshared.post("/v1/completions", body(prompt, "", max_tokens=n))["choices"][0]["logprobs"]


def test_blocks_behind_the_windows_come_back_while_the_request_runs(server, conversation):
    def running(n, salt, out):
        """Blocks after the first token, and after `out` of many more."""
        chunks = stream(server, conversation[:n], salt, max_tokens=out + 500)
        next(chunks)
        first = server.stats()["blocks"]
        for i, _ in enumerate(chunks, 2):
            if i == out:
                break
        last = server.stats()["blocks"]
        chunks.close()
        server.idle_stats()
        return first, last

    few = WINDOW - 60
    young = running(few, "young", 3)[0]["in_use"] / few  # blocks a token before any leaves a window
    first, last = running(TOKENS, "conversation", 100)
    assert first["in_use"] < 0.6 * young * TOKENS
    assert 0 < last["in_use"] and last["in_use"] - first["in_use"] < 0.6 * young * 100
    # They weren't lost: the tree has what is no longer in use.
    assert first["cached"] + first["in_use"] > 0.9 * young * (few + TOKENS)
    for blocks in (first, last):
        assert blocks["total"] == blocks["free"] + blocks["cached"] + blocks["in_use"]


def test_a_prefix_longer_than_the_window_is_shared_to_the_token(server, unshared, conversation):
    salt, shared = "conversation", 1711
    server.post("/v1/completions", body(conversation, salt))  # known already, unless this test runs alone
    prompt = conversation[:shared] + tokens_of(server, ".\n" + next(turns()) + question("golden", "anchor"), False)
    assert prompt[shared] != conversation[shared]
    answer = server.post("/v1/completions", body(prompt, salt))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == shared
    assert_same(answer["choices"][0]["logprobs"], alone(unshared, prompt, 8))


def test_a_running_sequence_whose_windows_have_moved_is_forked(server, unshared, conversation):
    salt, shared = "conversation", 1203
    assert shared % server.stats()["block_size"] != 0  # in the middle of a block
    before = server.stats()["cow_forks"]
    prompt = conversation[:shared]
    running, said = stream(server, prompt, salt, max_tokens=1000), {"tokens": [], "token_logprobs": []}

    def read(n):
        for chunk in running:
            for name, values in said.items():
                values.extend(getattr(chunk.choices[0].logprobs, name))
            if len(said["tokens"]) >= n:
                return

    read(64)  # the block in which the prompt ends is full
    other = prompt + tokens_of(server, "\n" + question("silver", "clock"), False)
    fork = server.post("/v1/completions", body(other, salt, n=3))
    assert server.stats()["requests"]["running"] == 1
    assert fork["usage"]["prompt_tokens_details"]["cached_tokens"] == shared
    reference = alone(unshared, other, 8)
    for choice in fork["choices"]:
        assert_same(choice["logprobs"], reference)
    read(96)
    running.close()
    assert server.idle_stats()["cow_forks"] - before >= 3  # the one that leaves the running one, and two of its samples
    assert_same({name: values[:96] for name, values in said.items()}, alone(unshared, prompt, 96))
