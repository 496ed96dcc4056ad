"""Forced calls of the Berkeley Function Calling Leaderboard's functions, judged by another validator.

tools.py COPPICE MODEL DATA [COUNT]

DATA: the folder of BFCL's questions (in the package bfcl-eval). Draws COUNT (200) single-turn cases, asks coppice with tool_choice
"required", and validates each call's arguments with the jsonschema package. Ends with 1 if a call that ended is not valid. Whether the
right function is called is the model's affair, not counted here.
"""

import collections
import concurrent.futures
import json
import os
import random
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from coppice_process import Coppice  # noqa: E402

FILES = ["simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple"]
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "any": "string", "String": "string", "HashMap": "object",
         "ArrayList": "array", "Array": "array", "long": "integer", "int": "integer", "double": "number", "char": "string", "byte": "integer",
         "short": "integer", "Boolean": "boolean", "Bigint": "integer"}
KNOWN = {"object", "array", "string", "number", "integer", "boolean", "null"}


def converted(schema):
    """BFCL's types are Python's; strings and lists get an end, which a small model doesn't find."""
    result = {k: schema[k] for k in ("enum", "required") if k in schema}
    kind = TYPES.get(schema.get("type"), schema.get("type"))
    result["type"] = kind if kind in KNOWN else "string"
    if "enum" in result and not isinstance(result["enum"], list):
        del result["enum"]
    if "properties" in schema:
        result["properties"] = {name: converted(value) for name, value in schema["properties"].items()}
        result["additionalProperties"] = False
    if kind == "array":
        result |= {"items": converted(schema["items"]) if isinstance(schema.get("items"), dict) else {"type": "string", "maxLength": 30}, "maxItems": 3}
    if result["type"] == "string" and "enum" not in result:
        result["maxLength"] = 30
    if "required" in result:
        result["required"] = [name for name in result["required"] if name in result.get("properties", {})]
    return result


def draw(folder, count):
    cases = []
    for name in FILES:
        for line in (folder / f"BFCL_v4_{name}.json").read_text().splitlines():
            cases.append(json.loads(line))
    random.Random(23).shuffle(cases)
    return cases[:count]


def ask(url, case):
    """(what came of it, more words)"""
    tools = [{"type": "function", "function": {"name": f["name"].replace(".", "_"), "description": f["description"], "parameters": converted(f["parameters"])}}
             for f in case["function"]]
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    body = {"messages": case["question"][0], "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "temperature": 0}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            choice = json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        return "refused", error.read().decode()[:300]
    if choice["finish_reason"] == "length":
        return "cut off", ""
    calls = choice["message"].get("tool_calls") or []
    if len(calls) != 1:
        return "invalid", f"{len(calls)} calls: {choice['message']}"
    try:
        jsonschema.validate(json.loads(calls[0]["function"]["arguments"]), schemas[calls[0]["function"]["name"]])
    except (ValueError, KeyError, jsonschema.ValidationError) as error:
        return "invalid", f"{calls[0]['function']}: {str(error)[:300]}"
    return "valid", ""


def main():
    os.environ["COPPICE_BINARY"], os.environ["COPPICE_MODEL"] = sys.argv[1:3]
    cases = draw(Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 200)
    with Coppice("--drain-seconds", "1", *sys.argv[5:]) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda case: ask(server.url, case), cases))
    for case, (kind, words) in zip(cases, results):
        if words:
            print(f"{case['id']}: {kind}: {words}")
    counts = collections.Counter(kind for kind, _ in results)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()), f"of {len(cases)}")
    return 1 if counts["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
