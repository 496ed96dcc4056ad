"""Errors as the openai package understands them."""

import concurrent.futures
import re
import urllib.error
from pathlib import Path

import openai
import pytest

from coppice_process import Coppice

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type"),
    ],
)
def test_bad_fields_are_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "smol", "messages": HELLO} | fields))
    assert caught.value.param == param
    assert param in caught.value.message


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_over_the_context(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "word " * 10000}], stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_fields_are_ignored(client):
    client.chat.completions.create(model="smol", messages=HELLO, max_tokens=1, extra_body={"no_such_field": [1]})


def status_of(server, body):
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    try:
        server.post(path, body)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_memory_of_large_bodies_is_given_back():
    def rss_mib():
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    large = [{"messages": [{"role": "user", "content": "x"}] * 100_000}, {"prompt": [1] * 1_000_000},
             {"prompt": "a " * 2_000_000}]
    with Coppice("--kv-bytes", "64MiB", "--threads", "1") as server:
        server.post("/v1/completions", {"prompt": list(range(100, 2500)), "max_tokens": 1})  # touches what it will hold
        before = rss_mib()
        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                assert all(status == 400 for status in pool.map(lambda body: status_of(server, body), large * 2))
        assert server.idle_stats()["blocks"]["in_use"] == 0
        assert rss_mib() - before < 24
