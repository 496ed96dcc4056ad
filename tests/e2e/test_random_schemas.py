"""Random schemas of random letters, on every route: what comes back validates, and has the names that were asked for.

COPPICE_SEED=N draws the same ones; COPPICE_OPERATIONS=N how many.
"""

import json
import os
import random

import jsonschema
import pytest

SEED = int(os.environ.get("COPPICE_SEED", random.randrange(1 << 30)))
COUNT = int(os.environ.get("COPPICE_OPERATIONS", 3))
ASK = [{"role": "user", "content": "Fill in the form."}]
LETTERS = ["\u00e9", "\u00fc", "\u00b0", "\u00ff", "\u0080", "a", "C", "0", "9", "f", " ", "-", ".", '"', "\\", "/", "\u03b1", "\u4e2d",
           "\U0001f600", "$", "{", "<", "'", "#"]


def text(draw, least=1, most=5):
    return "".join(draw.choice(LETTERS) for _ in range(draw.randint(least, most)))


def value(draw):
    kind = draw.randrange(6)
    if kind == 0:
        return {"type": "boolean"}
    if kind == 1:
        return {"enum": list({text(draw) for _ in range(draw.randint(1, 3))})}
    if kind == 2:
        return {"const": draw.choice([text(draw), draw.randrange(100), draw.randrange(99) / 10, 1e23, None, [text(draw)], {text(draw): True}])}
    if kind == 3 and draw.randrange(2):
        return {"type": "string", "pattern": pattern(draw)}
    if kind == 3:
        return {"type": "string", "pattern": f"^[{draw.choice(['é-ü', 'a-f', '一-三'])}]{{1,3}}{draw.choice(['', 'é', '0', 'x°'])}$"}
    if kind == 4:
        bounds = draw.choice([{"minimum": 3, "maximum": 50}, {"minimum": -30000, "maximum": 70000}])
        return {"type": "integer", "multipleOf": draw.randrange(1, 40)} | bounds if draw.randrange(2) else {"type": "integer", "minimum": 0, "maximum": 50}
    return form(draw, 1)


def pattern(draw):
    """In words of Python's own."""
    parts = draw.choices(["a", r"\d", "[^\\W\\d]", "(?i:kS)", "(?P<n>x|yz)", r"\x2d", r"\u00e9", "(?#why)b", r"[\D7]", r"[a-c\s]"], k=draw.randint(1, 4))
    times = draw.choices(["", "", "?", "{1,2}", "{2}"], k=len(parts))
    if parts.count("(?P<n>x|yz)") > 1:
        parts = [part for part in parts if part != "(?P<n>x|yz)"]
    whole = "".join(part + n for part, n in zip(parts, times))
    return draw.choice(["^", r"\A"]) + whole + "0" + draw.choice(["$", r"\Z"])


def form(draw, depth=0):
    names = list({text(draw) for _ in range(draw.randint(1, 3))})
    inner = {name: value(draw) if depth == 0 else {"type": "boolean"} for name in names}
    return {"type": "object", "properties": inner, "required": names, "additionalProperties": False}


def chat(schema):
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return "/v1/chat/completions", {"messages": ASK, "response_format": form}, lambda r: r["choices"][0]["message"]["content"]


def completion(schema):
    return "/completion", {"prompt": "A form:", "json_schema": schema, "n_predict": 300}, lambda r: r["content"]


def responses(schema):
    form = {"format": {"type": "json_schema", "name": "form", "schema": schema}}
    return ("/v1/responses", {"input": "Fill in the form.", "text": form, "max_output_tokens": 300},
            lambda r: r["output"][-1]["content"][0]["text"])


def forced_call(schema):
    tool = {"type": "function", "function": {"name": "fill", "parameters": schema}}
    return ("/v1/chat/completions", {"messages": ASK, "tools": [tool], "tool_choice": "required"},
            lambda r: r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])


def messages(schema):
    tool = {"name": "fill", "input_schema": schema}
    return ("/v1/messages", {"messages": ASK, "tools": [tool], "tool_choice": {"type": "any"}},
            lambda r: json.dumps(next(part["input"] for part in r["content"] if part["type"] == "tool_use")))


@pytest.mark.parametrize("route", [chat, completion, responses, forced_call, messages])
def test_what_comes_back_validates_and_has_its_names(server, route):
    print(f"COPPICE_SEED={SEED}")
    draw = random.Random(f"{SEED} {route.__name__}")
    for _ in range(COUNT):
        schema = form(draw)
        path, body, read = route(schema)
        limits = {} if route in (completion, responses) else {"max_tokens": 300}
        found = json.loads(read(server.post(path, limits | body)))
        jsonschema.validate(found, schema)
        assert set(found) == set(schema["properties"]), schema
