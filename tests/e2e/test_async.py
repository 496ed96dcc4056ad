"""OpenAI's and Anthropic's asynchronous clients, and what their libraries make of answers by themselves: models of pydantic."""

import asyncio

import anthropic
import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
CHAT = {"model": "smol", "messages": ASK, "max_tokens": 24, "temperature": 0}
COMPLETION = {"model": "smol", "prompt": "The sea is", "max_tokens": 24, "temperature": 0}
RESPONSE = {"model": "smol", "input": ASK[0]["content"], "max_output_tokens": 24, "temperature": 0}
MESSAGE = {"model": "smol", "messages": ASK, "max_tokens": 24, "extra_body": {"temperature": 0}}


class GetWeather(pydantic.BaseModel):
    """Weather of a city"""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(max_length=20)
    days: int = pydantic.Field(ge=1, le=7)


@pytest.fixture
def run(server):
    """Runs a test's coroutine with both clients."""

    async def with_clients(test):
        options = {"api_key": "none", "max_retries": 0, "timeout": 300}
        async with (openai.AsyncOpenAI(base_url=server.url + "/v1", **options) as gpt,
                    anthropic.AsyncAnthropic(base_url=server.url, **options) as claude):
            return await test(gpt, claude)

    return lambda test: asyncio.run(with_clients(test))


def test_streams_equal_whole_answers(run):
    """Each answer is asked for twice before: the compared ones find the same prompt cached and compute the same rows."""

    async def test(gpt, claude):
        for _ in range(2):
            chat = await gpt.chat.completions.create(**CHAT)
            text = await gpt.completions.create(**COMPLETION)
            response = await gpt.responses.create(**RESPONSE)
            message = await claude.messages.create(**MESSAGE)
        parts = [chunk async for chunk in await gpt.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices) == chat.choices[0].message.content
        assert parts[-1].usage == chat.usage and chat.usage.prompt_tokens_details.cached_tokens == chat.usage.prompt_tokens - 1
        parts = [chunk async for chunk in await gpt.completions.create(**COMPLETION, stream=True)]
        assert "".join(chunk.choices[0].text for chunk in parts) == text.choices[0].text
        async with gpt.responses.stream(**RESPONSE) as stream:
            final = [event async for event in stream][-1].response
        assert (final.output_text, final.usage, final.status) == (response.output_text, response.usage, response.status)
        async with claude.messages.stream(**MESSAGE) as stream:
            final = await stream.get_final_message()
        assert (final.content[0].text, final.stop_reason) == (message.content[0].text, message.stop_reason)
        usage = final.usage
        count = await claude.messages.count_tokens(model="smol", messages=ASK)
        assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == count.input_tokens
        assert chat.choices[0].message.content == message.content[0].text == response.output_text, "one model behind three APIs"

    run(test)


def test_many_at_once(run, server):
    async def test(gpt, claude):
        async def streamed(i):
            stream = await gpt.chat.completions.create(**CHAT | {"temperature": 1}, seed=i, stream=True, stream_options={"include_usage": True})
            return [chunk async for chunk in stream][-1].usage

        chats = await asyncio.gather(*[streamed(i) for i in range(8)])
        messages = await asyncio.gather(*[claude.messages.create(**MESSAGE | {"extra_body": {"seed": i}}) for i in range(8)])
        for usage in chats:
            assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and 0 < usage.completion_tokens <= 24
        for message in messages:
            assert 0 < message.usage.output_tokens <= 24 and message.usage.cache_read_input_tokens == chats[0].prompt_tokens - 1
        return sum(u.completion_tokens for u in chats) + sum(m.usage.output_tokens for m in messages)

    before = server.idle_stats()["tokens"]["generated"]
    generated = run(test)
    assert server.idle_stats()["tokens"]["generated"] - before == generated


def test_models_of_pydantic(run):
    """Answers and calls that the libraries parse themselves, whole and streamed."""
    form = CHAT | {"response_format": GetWeather, "max_tokens": 200}
    tools = CHAT | {"tools": [openai.pydantic_function_tool(GetWeather)], "tool_choice": "required", "parallel_tool_calls": False,
                    "max_tokens": 200}

    async def test(gpt, claude):
        answers = [(await gpt.chat.completions.parse(**form)).choices[0].message.parsed]
        async with gpt.chat.completions.stream(**form) as stream:
            answers.append((await stream.get_final_completion()).choices[0].message.parsed)
        answers.append((await gpt.chat.completions.parse(**tools)).choices[0].message.tool_calls[0].function.parsed_arguments)
        async with gpt.chat.completions.stream(**tools) as stream:
            call = (await stream.get_final_completion()).choices[0].message.tool_calls[0]
        answers.append(call.function.parsed_arguments)
        answers.append((await gpt.responses.parse(**RESPONSE | {"max_output_tokens": 200}, text_format=GetWeather)).output_parsed)
        answers.append((await claude.messages.parse(**MESSAGE | {"max_tokens": 200}, output_format=GetWeather)).parsed_output)
        return answers

    for answer in run(test):
        assert isinstance(answer, GetWeather) and answer.city == "Paris", answer
