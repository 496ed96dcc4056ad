"""Requests of somebody who wants to hurt others, drawn from a grammar: each field of the four APIs with fitting values, values of
every JSON type, of any size and nesting, and what is dear to compile, mask, render, tokenize, keep or send."""

import base64
import json
import string
import struct
import zlib
from pathlib import Path
from urllib.parse import quote

WORDS = "tree leaf root bark ring coppice stool wood axe hazel ash oak".split()
PICTURES_SHARE = 0.05  # of chats that have some
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")


def size(rng, most):
    """Any order of magnitude."""
    return max(1, int(most ** rng.random()))


def text(rng, most=200_000):
    """Of many lengths: words, one character, names of special tokens, blanks, any Unicode."""
    n = size(rng, most)
    piece = rng.choice((" ".join(rng.choices(WORDS, k=20)) + " ", rng.choice(string.printable), "<|im_end|>", "</think>", " ", "\n", "ü",
                        "🌳", "\u202e", "a1", "\\", "\"", "{", "[", "*a ", "\x00", "á́́", "<|im_start|>user\n"))
    return (piece * (n // len(piece) + 1))[:n]


def anything(rng, depth=0):
    """A JSON value of any type."""
    if depth > 4 or rng.random() < 0.6:
        return rng.choice((None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63), 1e308, 0.5, "", "a", text(rng, 5000), [], {}))
    if rng.random() < 0.2:  # deep
        value = 1
        for _ in range(size(rng, 300)):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    if rng.random() < 0.5:
        return [anything(rng, depth + 1) for _ in range(size(rng, 30))]
    return {text(rng, 20): anything(rng, depth + 1) for _ in range(size(rng, 30))}


def regex(rng):
    kinds = (lambda: rng.choice(("a", "[a-z]", ".", "\\w", "(a|b|ab)", "[^x]", "\\d")), lambda: f"({regex(rng)})", lambda: regex(rng) + regex(rng),
             lambda: f"({regex(rng)}){{0,{size(rng, 2000)}}}", lambda: f"({regex(rng)})*", lambda: f"({regex(rng)}|{regex(rng)})")
    return rng.choices(kinds, (4, 1, 1, 2, 1, 1))[0]()


def gbnf(rng):
    if rng.random() < 0.3:
        n = size(rng, 5000)
        return "root ::= " + " | ".join(f"r{i}" for i in range(n)) + "\n" + "\n".join(f"r{i} ::= \"{i}\" [a-z]*" for i in range(n))
    if rng.random() < 0.3:
        return "root ::= " + "(" * (n := size(rng, 3000)) + "\"a\"" + rng.choice(("*", "?", "", "{0,200}")) + ")" * n
    inner = "[a-z]"
    for _ in range(rng.randrange(1, 6)):
        inner = f"({inner}){{0,{size(rng, 300)}}}"
    return rng.choice((f"root ::= {inner}", "root ::= root root | \"a\"", "root ::= \"a\" root | \"a\" root \"b\" |", "root ::= " + text(rng, 2000)))


def schema(rng, depth=0):
    """Of many properties, branches, patterns, references, numbers."""
    n = size(rng, 3000) if depth == 0 else size(rng, 6)
    inner = (lambda: {} if rng.random() < 0.3 else schema(rng, depth + 1)) if depth < 4 else (lambda: {"type": rng.choice(TYPES)})
    kinds = {
        "optional": lambda: {"type": "object", "properties": {f"k{i}": {} for i in range(n)}},
        "properties": lambda: {"type": "object", "properties": {f"k{i}": inner() for i in range(min(n, 50))}, "additionalProperties": rng.random() < 0.5},
        "required": lambda: {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(n)}, "required": [f"k{i}" for i in range(0, n, 2)]},
        "tuple": lambda: {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": 970 + i} for i in range(min(n, 60))]},
        "lengths": lambda: {"type": "array", "items": inner(), "minItems": size(rng, 500), "maxItems": size(rng, 10**9)},
        "string": lambda: {"type": "string", "minLength": size(rng, 100_000), "maxLength": size(rng, 10**12)},
        "pattern": lambda: {"type": "string", "pattern": regex(rng)[:20_000]},
        "patterns": lambda: {"type": "object", "patternProperties": {f"^a{i}{regex(rng)[:200]}$": {} for i in range(min(n, 40))}},
        "any": lambda: {rng.choice(("anyOf", "oneOf", "allOf")): [inner() for _ in range(min(n, 40))]},
        "enum": lambda: {"enum": [text(rng, 50) for _ in range(n)]},
        "number": lambda: {"type": rng.choice(("integer", "number")), "minimum": -size(rng, 10**18), "maximum": size(rng, 10**18), "multipleOf": size(rng, 5000)},
        "reference": lambda: {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % n}"}] * 3 + [{"type": "null"}]} for i in range(min(n, 300))} | {"d0": {}},
                              "$ref": "#/$defs/d" + str(rng.randrange(min(n, 300)))},
        "deep": lambda: deep(rng, size(rng, 60)),
        "anything": lambda: anything(rng),
    }
    return kinds[rng.choice(list(kinds))]()


def deep(rng, n):
    value = {"type": "string"}
    for _ in range(n):
        value = {"type": "object", "properties": {"a": value, "b": value if rng.random() < 0.1 and n < 20 else {}}}
    return value


PICTURES = {}


def flat_png(side):
    """A large picture in a small file."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = (b"\4" + bytes(side * 3)) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")


def picture_file(rng):
    if not PICTURES:
        PICTURES.update({file.name: file.read_bytes() for file in (Path(__file__).parent.parent / "fixtures" / "images").iterdir() if file.suffix != ".json"})
        PICTURES.update({str(side): flat_png(side) for side in (64, 1000, 5000)})
    file = bytearray(PICTURES[rng.choice(sorted(PICTURES))])
    if rng.random() < 0.3:
        for _ in range(size(rng, 20)):
            file[rng.randrange(len(file))] = rng.randrange(256)
    elif rng.random() < 0.5:  # another file, the same picture
        file += rng.randbytes(8)
    return bytes(file[:rng.randrange(len(file))] if rng.random() < 0.1 else file)


def image(rng, form="chat", file=None):
    """`file`: this one, as it is."""
    def whole():
        return "data:image/png;base64," + base64.b64encode(file or picture_file(rng)).decode()

    url = whole() if file else rng.choice((whole,) * 6 + (
        lambda: whole()[:rng.randrange(200)], lambda: "data:" + text(rng, 300_000) + ";base64,AAAA", lambda: "data:image/png" + ";a=b" * size(rng, 50_000) + ",A",
        lambda: "http://127.0.0.1:1/" + text(rng, 2000), lambda: "data:image/png;base64," + text(rng), lambda: text(rng, 2000)))()
    if form == "messages":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}}
    if form == "responses":
        return {"type": "input_image", "image_url": url}
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": rng.choice(("low", "high"))} if rng.random() < 0.3 else {})}


def shown(rng, made, form):
    """Some of the messages get pictures."""
    for message in rng.sample(made, min(len(made), size(rng, 8))):
        if isinstance(message["content"], str):
            message["content"] = [image(rng, form) for _ in range(size(rng, 12))] + [{"type": "input_text" if form == "responses" else "text", "text": message["content"][:50]}]
    return made


def parts(rng, form):
    """Of a message's content: of all kinds, thousands of them, one in the other."""
    def one(depth):
        kinds = (lambda: {"type": rng.choice(("text", "input_text", "output_text", "refusal")), "text": text(rng, 200), "refusal": "no"}, lambda: dict(tiny),
                 lambda: {"type": "thinking", "thinking": text(rng, 200) if depth > 8 else [one(depth + 1) for _ in range(size(rng, 4))]},
                 lambda: {"type": "tool_result", "tool_use_id": text(rng, 20), "content": [] if depth > 8 else [one(depth + 1) for _ in range(size(rng, 4))]},
                 lambda: {"type": text(rng, 20), "cache_control": {"type": "ephemeral"}}, lambda: anything(rng))
        return rng.choice(kinds)()

    tiny = image(rng, form, flat_png(8))
    return [dict(tiny) for _ in range(size(rng, 5000))] if rng.random() < 0.2 else [one(0) for _ in range(size(rng, 300))]


def messages(rng, form="chat"):
    roles = ("user", "assistant", "system", "tool", "developer")
    made, total = [], 0
    for _ in range(size(rng, 3000)):
        content = text(rng, 200_000 // (len(made) + 1) + 10)
        total += len(content)
        if rng.random() < 0.1:
            content = rng.choice(([{"type": "text", "text": content}] * size(rng, 50), anything(rng), anything(rng) if made else parts(rng, form)))
        made.append({"role": rng.choice(roles) if rng.random() < 0.2 else roles[len(made) % 2], "content": content})
        if total > 400_000:
            break
    if rng.random() < 0.1:
        made[-1] |= {"role": "assistant", "tool_calls": [{"id": text(rng, 50), "type": "function", "function": {"name": "f", "arguments": text(rng, 5000)}}] * size(rng, 100)}
    return shown(rng, made, form) if rng.random() < PICTURES_SHARE else made


def tool(rng, i, form):
    parts = {"name": f"f{i}" if rng.random() < 0.9 else text(rng, 100), "description": text(rng, 500)}
    if form == "messages":
        return parts | {"input_schema": schema(rng)}
    if form == "responses":
        return parts | {"type": "function", "parameters": schema(rng)}
    return {"type": "function", "function": parts | {"parameters": schema(rng)}}


def sampling(rng):
    return {
        "max_tokens": lambda: rng.randrange(1, 9), "n": lambda: size(rng, 4), "temperature": lambda: rng.random() * 3, "top_p": lambda: rng.random(),
        "top_k": lambda: size(rng, 10**6), "min_p": lambda: rng.random(), "stop": lambda: [text(rng, 2000) for _ in range(size(rng, 100))],
        "logit_bias": lambda: {(text(rng, 12_000) if rng.random() < 0.5 else str(rng.randrange(49152))): rng.uniform(-100, 100) for _ in range(size(rng, 1000))},
        "bad_words": lambda: [text(rng, 2000) for _ in range(size(rng, 1000))], "stop_token_ids": lambda: [rng.randrange(60_000) for _ in range(size(rng, 5000))],
        "allowed_token_ids": lambda: [rng.randrange(49152) for _ in range(size(rng, 49152))], "seed": lambda: rng.randrange(1 << 40),
        "logprobs": lambda: rng.choice((True, 1, 20, 100)), "top_logprobs": lambda: size(rng, 50), "prompt_logprobs": lambda: size(rng, 20),
        "repetition_penalty": lambda: rng.uniform(0.1, 3), "frequency_penalty": lambda: rng.uniform(-2, 2), "presence_penalty": lambda: rng.uniform(-2, 2),
        "cache_salt": lambda: text(rng, 300), "priority": lambda: rng.randrange(0, 10), "timeout": lambda: rng.random() * 5, "stream": lambda: rng.random() < 0.5,
        "metadata": lambda: {text(rng, 100): text(rng, 1000) for _ in range(size(rng, 40))}, "user": lambda: text(rng, 5000), "cache_report": lambda: True,
        "response_format": lambda: {"type": rng.choice(("json_schema", "json_object", "regex")), "json_schema": {"name": "s", "strict": True, "schema": schema(rng)}},
        "grammar": lambda: gbnf(rng), "guided_regex": lambda: regex(rng)[:50_000], "guided_json": lambda: schema(rng), "structured_outputs":
        lambda: rng.choice(({"regex": regex(rng)[:50_000]}, {"json": schema(rng)}, {"grammar": gbnf(rng)}, {"choice": [text(rng, 100) for _ in range(size(rng, 3000))]})),
        "chat_template_kwargs": lambda: rng.choice(({"a": anything(rng)}, {f"a{i}": i for i in range(size(rng, 50_000))})), "reasoning_effort": lambda: text(rng, 100),
        "reasoning_budget_tokens": lambda: rng.choice((-1, 0, 1, size(rng, 10**9))), "thinking": lambda: {"type": rng.choice(("enabled", "disabled", text(rng, 20))),
                                                                                                   "budget_tokens": size(rng, 10**9)},
        "min_tokens": lambda: size(rng, 100), "ignore_eos": lambda: True, "model": lambda: text(rng, 300), "truncate_prompt_tokens": lambda: size(rng, 5000)}


def body(rng, required, more=None, many=4):
    """`required` fields, and some of the others; now and then a field of a wrong type, or one that nobody knows."""
    fields = sampling(rng) | (more or {})
    made = {name: draw() for name, draw in required.items()} | {"max_tokens": rng.randrange(1, 9)}
    for name in rng.sample(sorted(fields), size(rng, many)):
        made[name] = fields[name]()
    if rng.random() < 0.25:
        made[rng.choice([*made, "unknown", text(rng, 100)])] = anything(rng)
    if rng.random() < 0.03:  # long answers, several at once, each of whose tokens a bias changes
        made |= {"max_tokens": size(rng, 500), "n": size(rng, 16), "ignore_eos": True, "logit_bias": {str(rng.randrange(49152)): rng.uniform(-100, 100) for _ in range(300)}}
    return made


def tools(rng, form="chat"):
    return {"tools": lambda: [tool(rng, i, form) for i in range(size(rng, 30))],
            "tool_choice": lambda: rng.choice(("auto", "required", "none", {"type": "any"}, {"type": "function", "function": {"name": "f0"}}, allowed(rng, form)))}


def allowed(rng, form):
    """Some of the tools, and names of others."""
    names = [rng.choice((f"f{rng.randrange(40)}", text(rng, 50))) for _ in range(size(rng, 2000))]
    if form == "responses":
        return {"type": "allowed_tools", "mode": rng.choice(("auto", "required")), "tools": [{"type": "function", "name": name} for name in names]}
    return {"type": "allowed_tools", "allowed_tools": {"mode": rng.choice(("auto", "required")), "tools": [{"type": "function", "function": {"name": name}} for name in names]}}


def prompt(rng):
    """One or several: few, as what they take to compute is not what is tried."""
    return rng.choice((lambda: text(rng), lambda: [rng.randrange(50_000) for _ in range(size(rng, 8000))], lambda: [text(rng, 500) for _ in range(size(rng, 6))],
                       lambda: [[1, 2, 3]] * size(rng, 6)))()


def posts(rng):
    """Path -> what makes a body."""
    chat = {"messages": lambda: messages(rng)}
    tell = {"model": lambda: "x", "messages": lambda: messages(rng, "messages")}
    return {
        "/v1/chat/completions": lambda: body(rng, chat, tools(rng)),
        "/v1/completions": lambda: body(rng, {"prompt": lambda: prompt(rng)}, {"echo": lambda: True}),
        "/completion": lambda: body(rng, {"prompt": lambda: prompt(rng)}, {"n_predict": lambda: rng.randrange(9), "json_schema": lambda: schema(rng),
                                                                          "n_probs": lambda: size(rng, 100)}),
        "/v1/messages": lambda: body(rng, tell, tools(rng, "messages") | {"system": lambda: text(rng, 5000), "stop_sequences": lambda: [text(rng, 100)] * size(rng, 100)}),
        "/v1/messages/count_tokens": lambda: body(rng, tell, tools(rng, "messages")),
        "/v1/responses": lambda: body(rng, {"input": lambda: rng.choice((text(rng), messages(rng, "responses")))}, tools(rng, "responses") | {
            "text": lambda: {"format": {"type": "json_schema", "name": "s", "schema": schema(rng)}}, "store": lambda: True,
            "previous_response_id": lambda: response_id(rng), "max_output_tokens": lambda: rng.randrange(1, 9), "instructions": lambda: text(rng, 5000)}),
        "/v1/chat/completions/input_tokens": lambda: body(rng, chat, tools(rng)),
        "/v1/responses/input_tokens": lambda: body(rng, {"input": lambda: messages(rng, "responses")}, tools(rng, "responses")),
        "/v1/embeddings": lambda: {"input": prompt(rng)},
        "/embedding": lambda: {"content": prompt(rng)},
        "/rerank": lambda: {"query": text(rng, 1000), "documents": [text(rng, 500) for _ in range(size(rng, 100))]},
        "/tokenize": lambda: {"content": text(rng, 2_000_000)} if rng.random() < 0.7 else {"messages": messages(rng)},
        "/detokenize": lambda: {"tokens": [rng.randrange(60_000) for _ in range(size(rng, 100_000))]},
        "/apply-template": lambda: body(rng, chat, tools(rng)),
        "/v1/cache/prefixes": lambda: {"prompt": prompt(rng), "ttl": size(rng, 100)} if rng.random() < 0.5 else {"messages": messages(rng)},
    }


STORED = []  # ids of responses that were stored lately: whoever reads answers puts them here


def response_id(rng):
    return rng.choice(STORED) if STORED and rng.random() < 0.8 else "resp_" + text(rng, 40)


def get_path(rng):
    return rng.choice((f"/v1/responses/{quote(response_id(rng))}/input_items?limit={size(rng, 200)}&order={rng.choice(('asc', 'desc'))}", "/v1/responses/" + quote(response_id(rng)),
                       f"/v1/cache/tree?text={rng.randrange(100)}&cache_salt={rng.randrange(50)}", f"/v1/cache/events?text=1&cache_salt={rng.randrange(1000)}",
                       "/v1/cache/stats", "/metrics", "/v1/models", "/slots", "/props", "/v1/responses/resp_" + str(rng.randrange(100)), "/" + "%61" * size(rng, 5000),
                       "/v1/cache/prefixes", "/health?" + "a=b&" * size(rng, 3000)))


def padding(rng):
    """Blanks before a body: now and then it is larger than any server takes."""
    return rng.choice((1 << 16, 1 << 20, 1 << 24, 1 << 30)) if rng.random() < 0.03 else 0


def request(rng, without=()):
    """(path, body as bytes or None: a GET). `without`: fields that it doesn't have."""
    if rng.random() < 0.12:
        return get_path(rng), None
    if rng.random() < 0.01:  # only an operator may
        return "/v1/cache/reset?tier=" + rng.choice(("pool", "disk", "redis", "", quote(text(rng, 3000)))), b""
    table = posts(rng)
    path = rng.choice([*table, "/v1/chat/completions", "/v1/completions"])
    made = table[path]()
    data = json.dumps({name: value for name, value in made.items() if name not in without}).encode()
    if rng.random() < 0.03:  # no JSON, or of bytes that no text has
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice((b"", b"\xff", b"\x00", b"[" * 10_000, b"{\"a\":" * 5000)) + data[at + 1:]
    return path, data
