"""Models with experts and hybrids over HTTP, small and of random weights in f32: what is said on a shared prefix is what is said without
sharing."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coppice_process import Coppice, assert_nothing_held, model_path
from same_text import assert_same
from test_second_tier import end, start

WRITER = Path(__file__).parents[2] / "bench" / "random_model.py"
SMALL = ["--types", "f32", "--layers", "4", "--embd", "64", "--heads", "4", "--kv-heads", "2"]
EXPERTS = ["--head-size", "32", "--experts", "8", "--experts-used", "2", "--expert-ff", "32"]
MODELS = {"qwen3-30b-a3b": EXPERTS, "gpt-oss-20b": EXPERTS, "qwen3.5-4b": ["--head-size", "64", "--ff", "64"]}
SYSTEM = "You know all trees of the wood, and which of them may be cut. " * 12  # longer than gpt-oss' window of 128 tokens
QUESTIONS = ["Which is the oldest?", "Which is the oldest of those by the river?", "May I cut an oak?", "And a hazel?", "Why?"]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    subprocess.run([sys.executable, WRITER, "--shape", request.param, *SMALL, *MODELS[request.param], "--vocabulary", model_path(), path],
                   check=True)
    return path


def chat(server, question, earlier=(), **more):
    messages = [{"role": "system", "content": SYSTEM}, *earlier, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
    return server.post("/v1/chat/completions", body | more)


def said(choice):
    """A chat's log-probabilities in the form of a completion's."""
    content = choice["logprobs"]["content"]
    return {"tokens": [token["token"] for token in content], "token_logprobs": [token["logprob"] for token in content],
            "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in content]}


def test_a_burst_on_one_prefix_says_what_each_says_alone(model):
    with Coppice("--kv-bytes", "256MiB", "--share", "off", model=model) as server:
        alone = [said(chat(server, question)["choices"][0]) for question in QUESTIONS]
    with Coppice("--kv-bytes", "256MiB", "--check-every", "1", model=model) as server:
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            answers = list(pool.map(lambda question: chat(server, question, n=2), QUESTIONS))
        for answer, reference in zip(answers, alone, strict=True):
            for choice in answer["choices"]:
                assert_same(said(choice), reference)
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert sorted(cached)[1] > 128  # all but the one that led
        stats = server.idle_stats()
        assert_nothing_held(stats)
        assert stats["integrity_findings"] == 0


def test_a_growing_transcript_comes_from_the_cache(model):
    with Coppice("--kv-bytes", "256MiB", "--check-every", "1", model=model) as server:
        earlier, turns = [], []
        for question in QUESTIONS:
            answer = chat(server, question, earlier)
            turns.append((list(earlier), question, answer))
            earlier += [{"role": "user", "content": question}, {"role": "assistant", "content": "It is by the river."}]
        assert server.idle_stats()["integrity_findings"] == 0
    with Coppice("--kv-bytes", "256MiB", "--share", "off", model=model) as server:
        for earlier, question, answer in turns:
            assert_same(said(answer["choices"][0]), said(chat(server, question, earlier)["choices"][0]))
    for (_, _, before), (_, _, answer) in zip(turns, turns[1:]):
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= before["usage"]["prompt_tokens"] - 64  # all but what lies behind the last whole block before its end


def test_a_second_tier_says_what_is_said_without_one(model, tmp_path):
    """Blocks, windows and states come back over a restart, and from a pool that is too small."""
    with Coppice("--kv-bytes", "256MiB", "--share", "off", model=model) as server:
        alone = [said(chat(server, question)["choices"][0]) for question in QUESTIONS]
    for _ in range(2):
        with start(tmp_path / "kv", "--kv-bytes", "64MiB", "--check-every", "1", model=model) as server:
            for question, reference in zip(QUESTIONS, alone, strict=True):
                assert_same(said(chat(server, question)["choices"][0]), reference)
            loaded = server.stats()["tokens"]["loaded"]
            end(server)
    assert loaded > 0
