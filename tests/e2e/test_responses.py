"""OpenAI's Responses API, by its own client."""

import json
import urllib.request

import jsonschema
import openai
import pydantic
import pytest

from coppice_process import Coppice

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 20}}, "required": ["city"],
          "additionalProperties": False}
TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA, "strict": True}
ASK = "What is the weather in Paris?"


def ask(client, **fields):
    return client.responses.create(**({"model": "smol", "input": ASK, "max_output_tokens": 40, "temperature": 0} | fields))


def test_text_and_usage(client):
    first, again = ask(client, instructions="Be brief."), ask(client, instructions="Be brief.")
    assert first.output_text and first.output_text == again.output_text
    assert again.usage.input_tokens_details.cached_tokens == again.usage.input_tokens - 1
    cut = ask(client, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_equals_the_whole_answer(client):
    whole = ask(client)
    with client.responses.stream(model="smol", input=ASK, max_output_tokens=40, temperature=0) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == f"response.{whole.status}"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_tools_are_called_and_answered(client, choice):
    answer = ask(client, tools=[TOOL, {"type": "web_search"}], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=200)
    assert answer.status == "completed" and answer.tool_choice
    call = answer.output[0]
    assert call.name == "get_weather"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    turn = [{"role": "user", "content": ASK}, call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    after = ask(client, input=turn, tools=[TOOL])
    assert after.output and after.usage.input_tokens_details.cached_tokens > 50


def test_calls_are_streamed(client):
    with client.responses.stream(model="smol", input=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200,
                                 temperature=0) as stream:
        parts = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        call = stream.get_final_response().output[0]
    assert len(parts) > 2 and "".join(parts) == call.arguments
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_the_form_of_an_answer(client):
    class Pair(pydantic.BaseModel):
        number: int
        good: bool

    answer = client.responses.parse(model="smol", input="A number, and whether it is good.", max_output_tokens=200, temperature=0, text_format=Pair)
    assert isinstance(answer.output_parsed, Pair)


@pytest.mark.parametrize("fields, param", [
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"truncation": "all"}, "truncation"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}]}, "input[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
])
def test_what_is_refused_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param


TURNS = [f"This is remark {i} of a long talk about trees, coppicing, timber, charcoal and the people who live from the wood." for i in range(6)]


def test_a_stored_response_goes_on_as_if_all_were_sent_again(client, salt):
    """The second turn finds the first in the cache; what comes out is what the whole conversation gives."""
    own = {"extra_body": {"cache_salt": salt}}
    first = ask(client, input=" ".join(TURNS), **own)
    assert first.store and first.previous_response_id is None
    second = ask(client, input="Go on.", previous_response_id=first.id, **own)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= 0.9 * second.usage.input_tokens
    whole = [{"role": "user", "content": " ".join(TURNS)}, *(item.model_dump(exclude_none=True) for item in first.output), {"role": "user", "content": "Go on."}]
    again = ask(client, input=whole, store=False, **own)
    assert again.output_text == second.output_text
    assert again.usage.input_tokens == second.usage.input_tokens
    assert again.usage.input_tokens_details.cached_tokens == again.usage.input_tokens - 1, "the same tokens"


def test_calls_and_their_results_go_on(client):
    fields = {"tools": [TOOL], "parallel_tool_calls": False, "max_output_tokens": 200}
    first = ask(client, tool_choice="required", **fields)
    call = first.output[0]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second = ask(client, input=[result], previous_response_id=first.id, **fields)
    whole = [{"role": "user", "content": ASK}, call.model_dump(exclude_none=True), result]
    again = ask(client, input=whole, store=False, **fields)
    assert (again.output_text, again.usage.input_tokens) == (second.output_text, second.usage.input_tokens)
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]
    assert items[1].id == call.id and items[2].output == "Sunny."


def test_a_response_is_read_again_listed_and_deleted(client):
    with client.responses.stream(model="smol", input=ASK, max_output_tokens=10, temperature=0, instructions="Be brief.") as stream:
        streamed = list(stream)[-1].response
    assert streamed.store
    again = client.responses.retrieve(streamed.id)
    assert again.output_text == streamed.output_text and again.usage == streamed.usage and again.instructions == "Be brief."
    last = streamed.id
    for text in TURNS:
        last = ask(client, input=text, max_output_tokens=1, previous_response_id=last).id
    texts = [item.content[0].text for item in client.responses.input_items.list(last, limit=5) if item.role == "user"]
    assert texts == [*reversed(TURNS), ASK], "all pages, the newest first"
    client.responses.delete(streamed.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            gone(streamed.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, previous_response_id=streamed.id)
    assert caught.value.code == "previous_response_not_found"
    assert ask(client, input="More?", max_output_tokens=1, previous_response_id=last), "later turns keep what they stand on"


def test_keys_see_their_own_and_share_the_room():
    keys = [f"key-{name}" for name in "ab"]
    with Coppice("--kv-bytes", "64MiB", "--alias", "smol", "--api-key", ",".join(keys), "--response-store", "40KiB") as server:
        a, b = (openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=300) for key in keys)
        fields = {"max_output_tokens": 1}
        kept = ask(b, **fields)
        first = ask(a, **fields)
        for reach in (a.responses.retrieve, a.responses.delete, a.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                reach(kept.id)
        with pytest.raises(openai.BadRequestError):
            ask(a, previous_response_id=kept.id, **fields)
        for _ in range(40):
            last = ask(a, **fields)
        assert a.responses.retrieve(last.id).id == last.id
        with pytest.raises(openai.NotFoundError):
            a.responses.retrieve(first.id)
        assert b.responses.retrieve(kept.id).id == kept.id, "whoever holds little loses nothing to a busy key"
        metrics = urllib.request.urlopen(urllib.request.Request(server.url + "/metrics", headers={"X-Api-Key": keys[0]})).read().decode()
        figures = dict(line.split() for line in metrics.splitlines() if line.startswith("coppice_stored_"))
        assert 0 < int(figures["coppice_stored_response_bytes"]) <= 40 * 1024
        assert 2 < int(figures["coppice_stored_responses"]) < 41
        assert int(figures["coppice_stored_response_evictions_total"]) == 42 - int(figures["coppice_stored_responses"])
