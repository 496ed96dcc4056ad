"""Errors as the openai package understands them."""

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
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
