"""A budget bounds what a chat's answer thinks, and the answer follows."""

import os
from pathlib import Path

import pytest

from coppice_process import Coppice, model_path
from gguf_edit import Gguf
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


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}
NAMES = ["<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>"]
HARMONY = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|return|>", "<|call|>"]
MINISTRAL = ["[INST]", "[/INST]", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[SYSTEM_PROMPT]"]


def template(name):
    return str(Path(os.environ["COPPICE_TEMPLATES"]) / f"{name}.jinja")


def with_marks(folder, marks):
    """The model with the marks as tokens, in place of some that it doesn't need."""
    model = Gguf(model_path())
    model.rename_tokens(dict(zip(NAMES, marks)))
    return model.write(folder / "marks.gguf")


def thinker(server, word, **fields):
    """It likes the first token most, then the second and so on, and thinks of nothing else."""
    tokens = server.post("/tokenize", {"content": word, "parse_special": True})["tokens"]
    bias = {str(token): 100 - 10 * i for i, token in enumerate(tokens)}
    return chat(server, logit_bias=bias, max_tokens=200, **fields)["choices"][0]


def thoughts(choice):
    return choice["message"].get("reasoning_content") or ""


def test_channels(tmp_path):
    with Coppice("--kv-bytes", "128MiB", "--chat-template-file", template("openai-gpt-oss-120b"), model=with_marks(tmp_path, HARMONY)) as server:
        word = "analysis<|channel|><|message|>"
        for budget in (0, 12):
            form = thinker(server, word, reasoning_budget_tokens=budget, response_format=FORM)
            assert thoughts(form) == "analysis" * budget
            assert "".join(form["message"]["content"].split()) == '{"c":"red"}', form
            assert form["finish_reason"] == "stop"
            call = thinker(server, word, reasoning_budget_tokens=budget, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
            assert thoughts(call) == "analysis" * budget
            assert [c["function"]["name"] for c in call["message"]["tool_calls"]] == ["get_weather"]
            assert call["finish_reason"] == "tool_calls"
        unbounded = thinker(server, word, tools=[TOOL], tool_choice="required")
        assert unbounded["finish_reason"] == "length" and not unbounded["message"].get("tool_calls")


def test_marks_that_are_control_tokens(tmp_path):
    """In a forced call they come as these tokens."""
    name = "mistralai-Ministral-3-14B-Reasoning-2512"
    with Coppice("--kv-bytes", "128MiB", "--chat-template-file", template(name), model=with_marks(tmp_path, MINISTRAL)) as server:
        for budget in (0, 9):
            call = thinker(server, "analysis[THINK][TOOL_CALLS][ARGS]", reasoning_budget_tokens=budget, tools=[TOOL], tool_choice="required",
                           parallel_tool_calls=False, logprobs=True)
            assert thoughts(call) == "analysis" * budget
            assert [c["function"]["name"] for c in call["message"]["tool_calls"]] == ["get_weather"]
            tokens = [entry["token"] for entry in call["logprobs"]["content"]]
            assert tokens[:budget + 2] == ["[THINK]", *["analysis"] * budget, "[/THINK]"]
            assert "[TOOL_CALLS]" in tokens and "[ARGS]" in tokens


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"])
def test_forced_calls_think_first(name):
    with Coppice("--kv-bytes", "128MiB", "--chat-template-file", template(name)) as server:
        for budget in (0, 6):
            answer = chat(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=100, thinking_token_budget=budget)
            message = answer["choices"][0]["message"]
            assert bool(message.get("reasoning_content")) == (budget > 0), answer
            assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_weather"]
            assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_thoughts_that_go_on_are_bounded():
    """Only new tokens count."""
    begun = [*ASK, {"role": "assistant", "content": "", "reasoning_content": "I think of Paris"}]
    with Coppice("--kv-bytes", "128MiB", "--chat-template-file", template("Qwen3.5-4B")) as server:
        texts = {}
        for budget in (0, 4, -1):
            answer = chat(server, messages=begun, continue_final_message=True, add_generation_prompt=False, response_format=FORM,
                          reasoning_budget_tokens=budget)
            texts[budget] = answer["choices"][0]
        assert thoughts(texts[-1]) and not texts[-1]["message"]["content"]
        assert not thoughts(texts[0]) and thoughts(texts[4]) and thoughts(texts[-1]).startswith(thoughts(texts[4]))
        for budget in (0, 4):
            assert "".join(texts[budget]["message"]["content"].split()) == '{"c":"red"}'
