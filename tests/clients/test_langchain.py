"""langchain-openai: chats, streams, tools, and with_structured_output in its three ways; chats also through /v1/responses."""

import asyncio
import functools
import json
import operator

import pytest
from forecast import QUESTION, Weather, check
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI


@tool("get_weather", args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """Weather of a city"""
    return f"Sunny in {city} for {days} days."


@pytest.fixture(params=["chat", "responses"])
def model(request, url):
    return functools.partial(ChatOpenAI, model="smol", base_url=url, api_key="none", temperature=0, max_retries=0, max_tokens=24,
                             use_responses_api=request.param == "responses")


def joined(chunks):
    return functools.reduce(operator.add, chunks)


def test_text_usage_and_streams(model):
    chat = model(stream_usage=True)
    first, whole = chat.invoke(QUESTION), chat.invoke(QUESTION)
    assert whole.text and whole.text == first.text
    usage = whole.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"]["cache_read"] == usage["input_tokens"] - 1
    streamed = joined(chat.stream(QUESTION))
    assert (streamed.text, streamed.usage_metadata) == (whole.text, usage)


def test_many_at_once(model, run):
    async def ask():
        return await asyncio.gather(*[model().ainvoke(QUESTION) for _ in range(4)])

    for answer in [*model().batch([QUESTION] * 4), *run(ask())]:
        assert answer.text and 0 < answer.usage_metadata["output_tokens"] <= 24


def test_tools_are_called_and_answered(model):
    chat = model(max_tokens=200).bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    for _ in range(2):  # the compared ones find the same prompt cached
        call = chat.invoke(QUESTION)
    assert [c["name"] for c in call.tool_calls] == ["get_weather"]
    check(json.dumps(call.tool_calls[0]["args"]))
    streamed = joined(chat.stream(QUESTION))
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [(c["name"], c["args"]) for c in call.tool_calls]
    result = get_weather.invoke(call.tool_calls[0])
    after = model().bind_tools([get_weather], tool_choice="none").invoke([HumanMessage(QUESTION), call, result])
    assert after.text and after.usage_metadata["input_token_details"]["cache_read"] > 100


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output(model, method):
    asker = model(max_tokens=200).with_structured_output(Weather, method=method, include_raw=True)
    answer = asker.invoke(QUESTION)
    assert answer["parsing_error"] is None
    check(answer["parsed"])
    assert bool(answer["raw"].tool_calls) == (method == "function_calling")
    check(list(model(max_tokens=200).with_structured_output(Weather, method=method).stream(QUESTION))[-1])


def test_structured_output_as_any_json(model):
    """json_mode: any object; what it holds is up to the prompt, and such a small model needs to be shown."""
    asker = model(max_tokens=200).with_structured_output(Weather, method="json_mode", include_raw=True)
    answer = asker.invoke('Write in JSON: {"city": "Paris", "days": 3}')
    assert isinstance(json.loads(answer["raw"].text), dict)
    check(answer["parsed"])


def test_log_probabilities_and_completions(url):
    place = {"model": "smol", "base_url": url, "api_key": "none", "temperature": 0, "max_tokens": 8}
    answer = ChatOpenAI(**place, logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens) == answer.text
    assert all(t["logprob"] == t["top_logprobs"][0]["logprob"] for t in tokens), "the most likely token was drawn"
    assert OpenAI(**place).invoke("The sea is") == "".join(OpenAI(**place).stream("The sea is"))
