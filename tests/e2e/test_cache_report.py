"""Why did my prefix miss? And what a request may ask for under pressure."""

import openai
import pytest

RULES = " ".join(f"Rule {i}: answer number {i} with care." for i in range(30))


def complete(client, prompt, salt, **more):
    return client.completions.create(
        model="smol", prompt=prompt, max_tokens=4, temperature=0,
        extra_body={"cache_salt": salt, "cache_report": True} | more)


def test_report_shows_the_date_that_changed(client, salt):
    complete(client, f"Today is Thursday, 13 March. {RULES}", salt)
    answer = complete(client, f"Today is Friday, 14 March. {RULES}", salt)
    report = answer.model_extra["cache_report"]
    assert report["ended"] == "differs"
    assert report["matched_tokens"] == answer.usage.prompt_tokens_details.cached_tokens
    assert report["text"]["before"].endswith("Today is")
    assert report["text"]["asked"].startswith(" Friday, 14")
    assert report["text"]["found"].startswith(" Thursday, 13")
    assert report["lost_tokens"] == answer.usage.prompt_tokens - 1 - report["matched_tokens"]
    assert report["lost_seconds"] > 0


def test_report_of_an_unknown_salt_tells_nothing_of_others(client, salt):
    complete(client, RULES, salt)
    report = complete(client, RULES, salt + "other").model_extra["cache_report"]
    assert (report["ended"], report["matched_tokens"]) == ("namespace", 0)
    assert "found" not in report["text"]


def test_report_in_a_stream_comes_last(client, salt):
    stream = client.completions.create(
        model="smol", prompt=RULES, max_tokens=4, stream=True, stream_options={"include_usage": True},
        extra_body={"cache_salt": salt, "cache_report": True})
    *chunks, last = stream
    assert last.model_extra["cache_report"]["prompt_tokens"] == last.usage.prompt_tokens
    assert all("cache_report" not in chunk.model_extra for chunk in chunks)


def test_timeout_before_the_first_token_is_a_504(client, salt):
    with pytest.raises(openai.InternalServerError) as error:
        complete(client, RULES, salt, timeout=0.0001)
    assert error.value.status_code == 504
    assert error.value.code == "deadline_exceeded"


def test_timeout_in_mid_answer_keeps_the_text(client, salt):
    complete(client, "Once upon a time", salt)  # warm, so that the first token comes soon
    answer = client.completions.create(
        model="smol", prompt="Once upon a time", max_tokens=1500, temperature=1,
        extra_body={"cache_salt": salt, "ignore_eos": True, "timeout": 3})
    assert answer.choices[0].finish_reason == "length"
    assert 0 < answer.usage.completion_tokens < 1500


def test_priority_is_an_integer(client, salt):
    complete(client, "Hello", salt, priority=-7)
    with pytest.raises(openai.BadRequestError, match="priority"):
        complete(client, "Hello", salt, priority="high")
