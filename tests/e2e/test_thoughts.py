"""A budget bounds what a chat's answer thinks, and the answer follows."""

import pytest

from coppice_process import Coppice
from test_structured import THINKING

ASK = [{"role": "user", "content": "Name a colour."}]
FORM = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "object", "properties": {"c": {"enum": ["red"]}}, "required": ["c"]}}}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    template = tmp_path_factory.mktemp("t") / "thinking.jinja"
    template.write_text(THINKING)
    with Coppice("--kv-bytes", "128MiB", "--chat-template-file", str(template), "--reasoning-budget", "7") as server:
        yield server


def chat(server, **fields):
    answer = server.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 60, "temperature": 0} | fields)
    return answer


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_token_budget"])
@pytest.mark.parametrize("budget", [0, 3, 20])
def test_the_answer_follows_when_it_is_used_up(thinking, field, budget):
    answer = chat(thinking, response_format=FORM, n=2, **{field: budget})
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop", answer
        assert choice["message"]["content"].replace(" ", "").replace("\n", "") == '{"c":"red"}'
    thoughts = [choice["message"].get("reasoning_content") or "" for choice in answer["choices"]]
    assert any(thoughts) if budget == 20 else budget > 0 or not any(thoughts)


def test_the_operators_budget_holds_for_who_says_none(thinking):
    assert chat(thinking, response_format=FORM)["choices"][0]["message"]["content"]
    # Few tokens: the model itself may end its thoughts after some more.
    unbounded = chat(thinking, response_format=FORM, reasoning_budget_tokens=-1, max_tokens=12)["choices"][0]
    assert unbounded["finish_reason"] == "length" and not unbounded["message"]["content"]


def test_messages(thinking):
    body = {"messages": ASK, "max_tokens": 60, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 5},
            "output_config": {"format": {"type": "json_schema", "schema": FORM["json_schema"]["schema"]}}}
    answer = thinking.post("/v1/messages", body)
    assert answer["content"][-1]["text"].replace(" ", "").replace("\n", "") == '{"c":"red"}', answer
