"""litellm, through OpenAI's API and through Anthropic's."""

import asyncio

import litellm
import pytest
from forecast import ASK, TOOL, Weather, check

WAYS = ["openai", "hosted_vllm", "anthropic"]


@pytest.fixture(params=WAYS)
def to(request, server):
    """The provider's name for the model, and where it is."""
    base = server.url if request.param == "anthropic" else server.url + "/v1"
    return {"model": f"{request.param}/smol", "api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 24}


def test_text_usage_and_streams(to):
    for _ in range(2):  # the compared ones find the same prompt cached
        whole = litellm.completion(**to, messages=ASK)
    assert whole.choices[0].message.content and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    parts = list(litellm.completion(**to, messages=ASK, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(parts, messages=ASK)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert built.usage[count] == whole.usage[count]
    assert built.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_many_at_once(to, run):
    async def ask():
        return await asyncio.gather(*[litellm.acompletion(**to | {"temperature": 1}, messages=ASK) for _ in range(4)])

    for answer in run(ask()):
        assert answer.choices[0].message.content and 0 < answer.usage.completion_tokens <= 24


def test_tools(to):
    ask = to | {"max_tokens": 200, "messages": ASK, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    for _ in range(2):  # the compared ones find the same prompt cached
        whole = litellm.completion(**ask)
    assert whole.choices[0].finish_reason == "tool_calls"
    call = whole.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    check(call.function.arguments)
    parts = list(litellm.completion(**ask, stream=True))
    streamed = litellm.stream_chunk_builder(parts, messages=ASK).choices[0].message.tool_calls[0]
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    turn = [*ASK, whole.choices[0].message.model_dump(exclude_none=True), result]
    after = litellm.completion(**to, messages=turn, tools=[TOOL], tool_choice="none")
    assert after.choices[0].finish_reason in ("stop", "length") and not after.choices[0].message.tool_calls
    assert after.usage.prompt_tokens > whole.usage.prompt_tokens, "the call and its result are part of the prompt"
    assert after.usage.prompt_tokens_details.cached_tokens > 100


def test_a_form(to):
    answer = litellm.completion(**to | {"max_tokens": 200}, messages=ASK, response_format=Weather)
    check(answer.choices[0].message.content)


def test_other_routes(server, url, run):
    place = {"api_base": url, "api_key": "none"}
    text = litellm.text_completion(model="text-completion-openai/smol", prompt="The sea is", max_tokens=8, temperature=0, **place)
    assert text.choices[0].text and text.usage.completion_tokens == 8
    ask = {"model": "openai/smol", "input": ASK[0]["content"], "max_output_tokens": 24, "temperature": 0} | place
    for _ in range(2):
        whole = litellm.responses(**ask)
    events = list(litellm.responses(**ask, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas and deltas == whole.output[0].content[0].text == events[-1].response.output[0].content[0].text
    message = run(litellm.anthropic.messages.acreate(model="anthropic/smol", api_base=server.url, api_key="none", messages=ASK, max_tokens=8))
    assert message["content"][0]["text"] and message["usage"]["output_tokens"] <= 8


def test_errors_have_their_names(to):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**to, messages=[{"role": "user", "content": "word " * 9000}])
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**to | {"model": to["model"].replace("smol", "nobody")}, messages=ASK)
