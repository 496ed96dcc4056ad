"""OpenAI's Responses API, by its own client."""

import json

import jsonschema
import openai
import pydantic
import pytest

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
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"truncation": "auto"}, "truncation"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}]}, "input[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
])
def test_what_is_refused_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
