"""Both endpoints through the openai package: text, streams, samples, logprobs, stops, usage."""

import math

import pytest

QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


def chat(client, salt, **more):
    extra = {"cache_salt": salt} | more.pop("extra", {})
    body = {"model": "smol", "messages": QUESTION, "max_tokens": 12, "temperature": 0} | more
    return client.chat.completions.create(**body, extra_body=extra)


def test_models(client, server):
    ids = [model.id for model in client.models.list()]
    assert ids == ["smol"]
    assert client.models.retrieve("smol").id == "smol"


def test_chat(client, salt):
    answer = chat(client, salt)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == "smol"
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_whole_text(client, salt):
    # Namespaces of their own, so that both prefill the same rows: quantised weights round by batch shape.
    whole = chat(client, salt + "a", seed=1, temperature=0.8)
    stream = list(chat(client, salt + "b", seed=1, temperature=0.8, stream=True, stream_options={"include_usage": True}))
    assert stream[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    finishes = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
    assert text == whole.choices[0].message.content
    assert finishes[-1] == whole.choices[0].finish_reason and not any(finishes[:-1])
    assert stream[-1].choices == [] and stream[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in stream[:-1])


def test_samples_fork_one_prompt(client, server, salt):
    before = server.stats()["tokens"]
    answer = chat(client, salt, n=3, seed=7, temperature=1.5)
    after = server.idle_stats()["tokens"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert after["computed"] - before["computed"] == answer.usage.prompt_tokens
    assert after["generated"] - before["generated"] == answer.usage.completion_tokens


def test_samples_streamed(client, salt):
    texts = {}
    for chunk in chat(client, salt, n=3, seed=7, temperature=1.5, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1, 2] and all(texts.values())


def test_seed_repeats(client, salt):
    first, second = (chat(client, salt + x, seed=5, temperature=1.2).choices[0].message.content for x in "ab")
    assert first == second


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client, salt, stream):
    answer = chat(client, salt, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        tokens = [t for c in choices if c.logprobs for t in c.logprobs.content]
        text = "".join(c.delta.content or "" for c in choices)
    else:
        tokens, text = answer.choices[0].logprobs.content, answer.choices[0].message.content
    assert b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace").startswith(text)
    for t in tokens:
        assert len(t.top_logprobs) == 3
        assert t.logprob == max(top.logprob for top in t.top_logprobs)  # greedy
        assert sum(math.exp(top.logprob) for top in t.top_logprobs) <= 1.0001


def test_completion_logprobs(client, salt):
    answer = client.completions.create(model="default", prompt="One, two, three,", max_tokens=4, temperature=0, logprobs=2,
                                       extra_body={"cache_salt": salt})
    choice = answer.choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset[0] == 0
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == answer.usage.completion_tokens == 4
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_never_seen(client, salt, stream):
    prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,"
    body = {"model": "smol", "prompt": prompt, "max_tokens": 40, "temperature": 0, "extra_body": {"cache_salt": salt}}
    free = client.completions.create(**body).choices[0].text
    stop = free[len(free) // 2 : len(free) // 2 + 4]
    assert len(stop) == 4
    body["extra_body"] = {"cache_salt": salt + "stopped"}
    answer = client.completions.create(**body, stop=[stop, "no such text"], stream=stream)
    if stream:
        chunks = list(answer)
        text, finish = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, finish = answer.choices[0].text, answer.choices[0].finish_reason
    assert text == free[: free.index(stop)] and finish == "stop"


def test_completion_takes_lists_and_tokens(client, server, salt):
    tokens = server.post("/tokenize", {"content": "The sky is"})["tokens"]
    assert server.post("/detokenize", {"tokens": tokens})["content"] == "The sky is"
    answer = client.completions.create(model="smol", prompt=[tokens, tokens], max_tokens=3, temperature=0, n=2,
                                       extra_body={"cache_salt": salt})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 2 * len(tokens)
    assert answer.usage.completion_tokens == 12


def test_echo(client, salt):
    answer = client.completions.create(model="smol", prompt="The sky is", max_tokens=2, echo=True,
                                       extra_body={"cache_salt": salt})
    assert answer.choices[0].text.startswith("The sky is")


def log_softmax_by_single_tokens(client, tokens, salt):
    """Each token's log-probability as the one generated token of a request for all before it."""
    result = []
    for at in range(1, len(tokens)):
        answer = client.completions.create(model="smol", prompt=[tokens[:at]], max_tokens=1, temperature=0, logprobs=0,
                                           logit_bias={str(tokens[at]): 100}, extra_body={"cache_salt": salt})
        result += answer.choices[0].logprobs.token_logprobs
    return result


def test_log_probabilities_of_prompts(client, server, salt):
    tokens = server.post("/tokenize", {"content": "The sky is blue, and the sea is deep."})["tokens"]
    right = log_softmax_by_single_tokens(client, tokens, salt)
    echo = client.completions.create(model="smol", prompt=[tokens], max_tokens=1, temperature=0, logprobs=1, echo=True,
                                     extra_body={"cache_salt": salt, "prompt_logprobs": 0}).choices[0]
    lists = echo.logprobs
    assert len(lists.tokens) == len(tokens) + 1
    assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None
    assert lists.token_logprobs[1:-1] == pytest.approx(right, abs=0.4)
    assert "".join(lists.tokens) == echo.text
    assert [echo.text[at:].startswith(token) for at, token in zip(lists.text_offset, lists.tokens)] == [True] * len(lists.tokens)
    by_id = [None, *({str(token): entry} for token, entry in zip(tokens[1:], lists.token_logprobs[1:]))]
    listed = echo.model_extra["prompt_logprobs"]
    assert [entry and {token: told["logprob"] for token, told in entry.items()} for entry in listed] == by_id

    part = client.completions.create(model="smol", prompt=[tokens], max_tokens=0, logprobs=1, echo=True,
                                     extra_body={"cache_salt": salt, "prompt_logprobs_from": 6})
    assert part.usage.prompt_tokens_details.cached_tokens == 5
    assert part.choices[0].logprobs.token_logprobs[:6] == [None] * 6
    assert part.choices[0].logprobs.token_logprobs[6:] == pytest.approx(right[5:], abs=0.4)


def test_ignore_eos_and_length(client, salt):
    answer = chat(client, salt, max_completion_tokens=30, max_tokens=None, extra={"ignore_eos": True})
    assert answer.usage.completion_tokens == 30
    assert answer.choices[0].finish_reason == "length"


def test_logit_bias_bans_and_forces(client, server, salt):
    token = server.post("/tokenize", {"content": "sea"})["tokens"][0]
    answer = chat(client, salt, logit_bias={str(token): 100}, max_tokens=3)
    assert answer.choices[0].message.content == "seaseasea"


def test_content_parts(client, salt):
    parts = [{"type": "text", "text": "Write one sentence "}, {"type": "text", "text": "about the sea."}]
    whole = chat(client, salt).usage.prompt_tokens
    assert chat(client, salt, messages=[{"role": "user", "content": parts}]).usage.prompt_tokens == whole
