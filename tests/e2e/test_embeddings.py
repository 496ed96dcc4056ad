"""Embeddings by OpenAI's client, and how the operator or the file chooses what they are made from."""

import math
import urllib.error

import openai
import pytest

from coppice_process import Coppice, model_path
from gguf_edit import Gguf

TEXTS = ["A man is feeding his dog in the garden.", "Someone gives food to a dog outside the house.",
         "The central bank raised its interest rate by half a percent."]
UINT32 = 4


def embed(client, texts, **extra):
    return client.embeddings.create(model="default", input=texts, **extra)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_the_client_gets_vectors(client, salt):
    """It asks for base64 by itself, and decodes it."""
    salted = {"extra_body": {"cache_salt": salt}}
    answer = embed(client, TEXTS, **salted)
    assert [item.index for item in answer.data] == [0, 1, 2] and answer.model.startswith("smol")
    vectors = [item.embedding for item in answer.data]
    for vector in vectors:
        assert len(vector) == 576 and math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-5)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 20
    plain = embed(client, TEXTS[0], encoding_format="float", extra_body={"cache_salt": salt + "b"})
    assert cosine(plain.data[0].embedding, vectors[0]) > 0.9999


def test_a_text_that_begins_as_an_earlier_one_is_computed_from_there(client, salt):
    salted = {"extra_body": {"cache_salt": salt}}
    text = "The sea, the sun and the wind. " * 20
    first, longer = (embed(client, t, **salted) for t in (text, text + "The end."))
    assert first.usage.prompt_tokens_details["cached_tokens"] == 0
    assert longer.usage.prompt_tokens_details["cached_tokens"] >= first.usage.prompt_tokens - 2
    chat = client.completions.create(model="default", prompt=text + "And", max_tokens=1, **salted)
    assert chat.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 2


def test_errors(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(client, "word " * 9000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="576"):
        embed(client, "a", dimensions=64)
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert refused.value.code == 501


@pytest.fixture(scope="module")
def vectors_of(tmp_path_factory):
    """Of the first text, by a server with these options, whose file says this of pooling."""
    path = tmp_path_factory.mktemp("models") / "pooled.gguf"

    def run(options, said):
        model = Gguf(model_path())
        if said is not None:
            model.set("llama.pooling_type", (UINT32, said))
        model.write(path)
        with Coppice("--kv-bytes", "64MiB", *options, model=path) as server:
            vector = server.post("/v1/embeddings", {"input": TEXTS[0]})["data"][0]["embedding"]
            assert server.end() == 0
            return vector

    return run


def test_the_option_goes_before_the_file_and_the_file_before_last(vectors_of):
    last, mean = vectors_of(["--pooling", "last"], 1), vectors_of([], 1)
    assert cosine(last, mean) < 0.99
    assert vectors_of([], None) == last == vectors_of([], 3)
    assert vectors_of(["--pooling", "mean"], 3) == mean
