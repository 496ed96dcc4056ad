"""Anthropic's Messages API, by its own client."""

import anthropic
import jsonschema
import pytest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 20}}, "required": ["city"],
          "additionalProperties": False}
TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(claude, messages=ASK, *, greedy=True, **fields):
    extra = {"extra_body": {"temperature": 0}} if greedy else {}
    return claude.messages.create(**({"model": "smol", "max_tokens": 40, "messages": messages} | extra | fields))


def tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_text_usage_and_the_count_of_tokens(claude):
    ask(claude)  # from here on prompts come from the cache: what is computed is rounded otherwise, and may go on otherwise
    first, again = ask(claude), ask(claude)
    assert first.content[0].text == again.content[0].text
    assert again.usage.cache_read_input_tokens == tokens(again.usage) - 1
    assert tokens(first.usage) == claude.messages.count_tokens(model="smol", messages=ASK).input_tokens
    assert first.stop_reason == ("max_tokens" if first.usage.output_tokens == 40 else "end_turn")


def test_models(claude):
    [model] = claude.models.list(limit=1)
    assert (model.id, model.type, model.display_name) == ("smol", "model", "smol") and model.created_at.year > 2000
    assert claude.models.retrieve("smol") == model
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("claude")


def test_a_stream_equals_the_whole_answer(claude):
    ask(claude)  # from now on the prompt comes from the cache: computed anew, it rounds otherwise
    whole = ask(claude)
    with claude.messages.stream(model="smol", max_tokens=40, messages=ASK, extra_body={"temperature": 0}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, tokens(final.usage), final.usage.output_tokens) == (whole.stop_reason, tokens(whole.usage), whole.usage.output_tokens)


def test_a_call_that_is_cut_off_is_not_run(claude):
    """Anthropic's package reads the beginning of its JSON, and ends there."""
    asked = {"model": "smol", "messages": ASK, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"},
             "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked, max_tokens=200)
    assert whole.stop_reason == "tool_use"
    for most in range(whole.usage.output_tokens - 1, 3, -1):
        cut = claude.messages.create(**asked, max_tokens=most)
        if cut.stop_reason == "max_tokens" and cut.content[-1].type == "text":
            break
    assert cut.content[-1].text.startswith("get_weather {"), cut
    with claude.messages.stream(**asked, max_tokens=most) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens"
    assert final.content[-1].type == "tool_use" and isinstance(final.content[-1].input, dict)


def test_a_stop_sequence_is_named(claude):
    word = ask(claude).content[0].text.split()[2]
    answer = ask(claude, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)


def test_the_system_prompt_without_what_changes_each_time(claude):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    plain = ask(claude, system=system)
    for cost in range(2):
        billed = ask(claude, system=[{"type": "text", "text": f"x-anthropic-billing-header: cost={cost}"}] + system)
        assert tokens(billed.usage) == tokens(plain.usage)
        assert billed.usage.cache_read_input_tokens == tokens(plain.usage) - 1


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}])
def test_tools_are_called_and_answered(claude, choice):
    call = ask(claude, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}], tool_choice=choice, max_tokens=200)
    assert call.stop_reason == "tool_use"
    use = call.content[0]
    assert use.name == "get_weather"
    jsonschema.validate(use.input, SCHEMA)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}]}
    turn = ASK + [{"role": "assistant", "content": [use.model_dump(exclude_none=True)]}, {"role": "user", "content": [result]}]
    answer = ask(claude, turn, tools=[TOOL])
    assert answer.content and answer.usage.cache_read_input_tokens > 50


def test_calls_are_streamed(claude):
    with claude.messages.stream(model="smol", max_tokens=200, messages=ASK, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        use = stream.get_final_message().content[0]
    assert len(parts) > 2
    jsonschema.validate(use.input, SCHEMA)


@pytest.mark.parametrize("fields, error, word", [
    ({"messages": []}, anthropic.BadRequestError, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, anthropic.BadRequestError, "image"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nobody"}}, anthropic.BadRequestError, "nobody"),
    ({"model": "nobody"}, anthropic.NotFoundError, "nobody"),
])
def test_what_is_refused_is_named(claude, fields, error, word):
    with pytest.raises(error) as caught:
        ask(claude, **fields)
    assert caught.value.body["type"] == "error" and word in caught.value.body["error"]["message"]
