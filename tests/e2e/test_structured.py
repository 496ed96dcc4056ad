"""Structured output: what the model writes is read by others' validators."""

import json
import os
import random
import re
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest

from coppice_process import Coppice

ASK = [{"role": "user", "content": "Describe a small town in JSON."}]
TOWN = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "inhabitants": {"type": "integer", "minimum": 100, "maximum": 5000},
        "kind": {"enum": ["village", "town"]},
        "streets": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z][a-z]{2,9} Street$"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "inhabitants", "kind", "streets"],
    "additionalProperties": False,
}


def resident_mib(server):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1]) / 1024


def ask(client, n=1, **fields):
    names = {"response_format", "stream", "logprobs", "top_logprobs", "stop", "temperature", "seed", "max_tokens"}
    plain = {k: v for k, v in fields.items() if k in names}
    return client.chat.completions.create(
        model="smol", messages=ASK, n=n, **({"max_tokens": 400, "seed": 1} | plain),
        extra_body={k: v for k, v in fields.items() if k not in names})


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_json_schema(client):
    answer = ask(client, n=2, response_format=schema_format(TOWN))
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), TOWN)


@pytest.mark.parametrize("fields", [{"json_schema": TOWN}, {"guided_json": TOWN}, {"structured_outputs": {"json": TOWN}},
                                    {"structured_outputs": {"json": json.dumps(TOWN)}},
                                    {"response_format": {"type": "json_object", "schema": TOWN}}], ids=lambda f: "-".join(f))
def test_other_names(client, fields):
    choice = ask(client, temperature=0, **fields).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), TOWN)


def test_json_object(client):
    choice = ask(client, response_format={"type": "json_object"}, temperature=0, max_tokens=600).choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_stream_is_the_same_text(client):
    whole = ask(client, response_format=schema_format(TOWN)).choices[0]
    chunks = list(ask(client, response_format=schema_format(TOWN), stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_choice_and_regex(client):
    colours = ["red", "dark \"blue\"", "caf\u00e9 au lait"]
    for choice in ask(client, n=8, structured_outputs={"choice": colours}, temperature=2).choices:
        assert choice.message.content in colours and choice.finish_reason == "stop"
    for choice in ask(client, n=4, structured_outputs={"regex": r"[0-9]{3}-(abc|xyz)+\."}).choices:
        assert re.fullmatch(r"[0-9]{3}-(abc|xyz)+\.", choice.message.content) or choice.finish_reason == "length"


def test_gbnf(client):
    grammar = 'root ::= item{2,4}\nitem ::= "- " [a-z]+ "\\n"\n'
    choice = ask(client, grammar=grammar, max_tokens=200).choices[0]
    assert choice.finish_reason == "length" or re.fullmatch(r"(- [a-z]+\n){2,4}", choice.message.content)


def test_logprobs_are_raw(client):
    choice = ask(client, structured_outputs={"choice": ["Zebra"]}, logprobs=True, top_logprobs=2, temperature=0).choices[0]
    assert choice.message.content == "Zebra"
    first = choice.logprobs.content[0]
    assert first.logprob < first.top_logprobs[0].logprob, "the model itself would not have said that"


def test_stop_strings_still_stop(client):
    choice = ask(client, structured_outputs={"regex": "[a-z]+ END [a-z]+"}, stop="END", temperature=0, max_tokens=300).choices[0]
    assert "END" not in choice.message.content


def test_completions_too(client):
    answer = client.completions.create(model="smol", prompt="The answer is", max_tokens=20,
                                       extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.choices[0].text in ("yes", "no")


def test_parse_with_pydantic(client):
    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=120)
        mood: Literal["good", "bad"]

    answer = client.chat.completions.parse(model="smol", messages=ASK, response_format=Person, max_tokens=300, temperature=0)
    person = answer.choices[0].message.parsed
    assert person.mood in ("good", "bad") and 0 <= person.age <= 120


@pytest.mark.parametrize("fields, param, word", [
    ({"response_format": schema_format({"not": {"type": "null"}})}, "response_format", "'not' at '#'"),
    ({"json_schema": {"properties": {"a": {"type": "array", "contains": {"type": "null"}}}}}, "json_schema", "'contains' at '#/properties/a'"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "parenthesis"),
    ({"grammar": "root ::= nothing"}, "grammar", "nothing"),
    ({"grammar": "just text"}, "grammar", "GBNF"),
    ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "ignore_eos", "end"),
])
def test_refused_by_name(client, fields, param, word):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
    assert word in caught.value.message


def random_schema(rng, depth=0):
    """Of what is supported, so that a refusal is a failure."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum"] + ["array", "object", "anyOf"] * (depth < 2)
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\"c", 1, 2.5, None, True, {"x": [1]}, "\u00fc/\\"], rng.randint(1, 4))}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    schema = {"type": kind}
    if kind == "string":
        schema |= rng.choice([{"maxLength": rng.randint(0, 8)}, {"minLength": 2, "maxLength": 6}, {"pattern": "^[a-f]{1,4}$"},
                              {"format": "date"}, {"pattern": "^x|y$", }])
    if kind in ("integer", "number"):
        low = rng.randint(-50, 50) + rng.choice([0, 0, -(1 << 63) + 60, (1 << 63) - 60, (1 << 53)] if kind == "integer" else [0])
        schema |= rng.choice([{}, {"minimum": low}, {"minimum": low, "maximum": low + 7}, {"exclusiveMaximum": low}])
    if kind == "array":
        schema |= {"items": random_schema(rng, depth + 1), "maxItems": rng.randint(0, 3)}
    if kind == "object":
        names = rng.sample(string.ascii_lowercase, rng.randint(0, 4))
        schema |= {"properties": {n: random_schema(rng, depth + 1) for n in names}, "required": names[::2],
                   "additionalProperties": rng.choice([False, False, {"type": "boolean"}])}
    return schema


def test_random_schemas(client):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    ended = rounds = 0
    while rounds < 25 or (ended < 10 and rounds < 250):  # a seed may need more until enough have ended
        rounds += 1
        schema = {"type": "object", "properties": {"v": random_schema(rng)}, "required": ["v"]}
        choice = ask(client, response_format=schema_format(schema), max_tokens=150, seed=rng.randrange(1000)).choices[0]
        if choice.finish_reason == "stop":
            ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(choice.message.content))
    assert ended >= 10


# As Qwen's and DeepSeek's: the prompt opens the reasoning, unless the model is told not to think.
THINKING = """
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif -%}
{{ message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}{% endif %}
"""


def test_a_form_holds_behind_the_reasoning(tmp_path):
    """Nearly all tokens are as likely at this temperature, and only those of "</think>", "yes" and "no" may come: a model that
    babbles, and ends its reasoning by chance."""
    template = tmp_path / "thinking.jinja"
    template.write_text(THINKING)
    with Coppice("--kv-bytes", "128MiB", "--threads", "1", "--max-batch", "16", "--chat-template", str(template)) as server:
        def tokens(text):
            return server.post("/tokenize", {"content": text})["tokens"]

        allowed = sorted({token for text in ("</think>", "yes", "no") for token in tokens(text)})
        asked = {"messages": [{"role": "user", "content": "Is it so?"}], "n": 16, "max_tokens": 240, "temperature": 100, "seed": 1,
                 "allowed_token_ids": allowed, "structured_outputs": {"regex": "(yes|no){2}"}}
        thoughtful = server.post("/v1/chat/completions", asked)["choices"]
        ended = [choice["message"] for choice in thoughtful if choice["finish_reason"] == "stop"]
        assert len(ended) >= 8
        for message in ended:
            assert re.fullmatch("(yes|no){2}", message["content"])
        assert sum(not re.fullmatch("(yes|no)*", message["reasoning_content"]) for message in ended) >= 8, "the form isn't for these"
        for choice in thoughtful:
            if choice["finish_reason"] == "length":
                assert re.fullmatch("(yes|no){0,2}", choice["message"]["content"] or "")
        asked["chat_template_kwargs"] = {"enable_thinking": False}
        for choice in server.post("/v1/chat/completions", asked)["choices"]:
            assert choice["finish_reason"] == "stop" and not choice["message"].get("reasoning_content")
            assert re.fullmatch("(yes|no){2}", choice["message"]["content"])


def test_memory_over_many_grammars():
    """Each request has a form that nobody had before; what is kept of them has a budget. COPPICE_GRAMMARS=20000 sends as many, and prints what the server
    holds along the way."""
    count, piece = int(os.environ.get("COPPICE_GRAMMARS", "240")), 40
    with Coppice("--kv-bytes", "64MiB", "--ctx", "512") as server:

        def send(i):
            form = {"regex": f"{i}"} if i % 2 else {"choice": [f"{i}"]}
            body = {"prompt": [1], "max_tokens": 12, "temperature": 0, "structured_outputs": form}
            assert server.post("/v1/completions", body)["choices"][0]["text"] == f"{i}"

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(send, range(piece)))
            before = resident_mib(server)
            for first in range(piece, count, piece):
                list(pool.map(send, range(first, first + piece)))
                held = resident_mib(server) - before
                if first % 1000 == 0:
                    print(f"{first} forms: {held:.1f} MiB more than at first")
                # A few KiB each, until the budgets of compiled grammars and of their masks are used up (docs/operations.md, "Limits").
                assert held < min(8 + first * 16 / 1024, 160), f"{first} forms"
