"""Pinned prefixes: they outlive what evicts everything else, and are their owner's only."""

import json
import os
import random
import time
import urllib.error
import urllib.request

import pytest

from coppice_process import TIMEOUT_S, Coppice

# 61 blocks of 32 tokens. Of these a request of the whole context with as many answers as may run needs 20; pins may hold 30,
# without keys whoever they are of, and those of one key 15.
POOL = ("--kv-bytes", str(62 * 32 * 23040), "--ctx", "512", "--max-batch", "2", "--alias", "smol")
MANUAL = " ".join(f"Rule {i}: turn knob {i} to the left before you open valve {i + 1}." for i in range(18))
SYSTEM = [{"role": "system", "content": MANUAL}]
ASK = {"role": "user", "content": "Which knob is first?"}


def call(server, method, path, body=None, key=None):
    """Status and JSON."""
    request = urllib.request.Request(server.url + path, None if body is None else json.dumps(body).encode(), method=method)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ok(server, method, path, body=None, key=None):
    status, answer = call(server, method, path, body, key)
    assert status == 200, answer
    return answer


def pin(server, key=None, **fields):
    return ok(server, "POST", "/v1/cache/prefixes", fields, key)


def pins(server, key=None, query=""):
    return ok(server, "GET", "/v1/cache/prefixes" + query, key=key)["data"]


def cached(server, messages, key=None, **fields):
    """Of a chat that goes on from these messages."""
    answer = ok(server, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1} | fields, key)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def flood(server, key=None, *, tokens=400, prompts=6):
    """More text than the pool holds."""
    dice = random.Random(1)
    for _ in range(prompts):
        prompt = [dice.randrange(1000, 20000) for _ in range(tokens)]
        ok(server, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1}, key)


@pytest.fixture(scope="module")
def shared_pool():
    with Coppice(*POOL) as server:
        yield server
        assert server.end() == 0


@pytest.fixture
def server(shared_pool):
    ok(shared_pool, "POST", "/v1/cache/reset")
    yield shared_pool
    ok(shared_pool, "POST", "/v1/cache/reset")
    blocks = shared_pool.deserted_stats()["blocks"]
    assert (blocks["in_use"], blocks["pinned"], blocks["cached"]) == (0, 0, 0)


def test_a_pinned_chat_survives_a_flood_and_another_does_not(server):
    other = [{"role": "system", "content": "And " + MANUAL}]
    prefix = pin(server, messages=SYSTEM, name="manual")
    assert prefix["pinned_tokens"] == prefix["tokens"] // 32 * 32 > 200
    assert (prefix["object"], prefix["name"], prefix["hits"], prefix["ttl"]) == ("cache.prefix", "manual", 0, 3600)
    assert 3590 < prefix["expires_at"] - time.time() < 3602
    assert cached(server, other + [ASK]) < 32  # the template's beginning
    assert cached(server, other + [ASK]) > 200
    flood(server)
    assert cached(server, other + [ASK]) < 32, "the flood is no flood"
    assert cached(server, SYSTEM + [ASK]) == prefix["pinned_tokens"]
    turns = SYSTEM + [ASK, {"role": "assistant", "content": "Knob 0."}, {"role": "user", "content": "And then?"}]
    assert cached(server, turns) > prefix["pinned_tokens"]
    (listed,) = pins(server)
    assert (listed["id"], listed["hits"], listed["saved_tokens"]) == (prefix["id"], 2, 2 * prefix["pinned_tokens"])
    assert ok(server, "GET", f"/v1/cache/prefixes/{prefix['id']}") == listed
    stats = server.idle_stats()
    assert stats["pinned_prefixes"] == 1
    assert stats["blocks"]["pinned"] == stats["blocks"]["in_use"] == prefix["blocks"] == prefix["pinned_tokens"] // 32


@pytest.mark.parametrize("last", [ASK, {"role": "assistant", "content": "Knob 0 is."}])
def test_chats_that_go_on_from_any_message_match_to_its_end(server, last):
    messages = SYSTEM + ([ASK] if last["role"] == "assistant" else []) + [last]
    prefix = pin(server, messages=messages)
    after = {"role": "user", "content": "Why?"} if last["role"] == "assistant" else {"role": "assistant", "content": "Because."}
    cached(server, messages + [after, {"role": "user", "content": "Thanks."}])
    assert pins(server)[0]["hits"] == 1
    assert prefix["tokens"] > ok(server, "POST", "/tokenize", {"content": MANUAL + last["content"]})["count"]


def test_tools_belong_to_the_prefix(server):
    tool = {"type": "function", "function": {"name": "turn_knob", "description": MANUAL[:600], "parameters": {"type": "object", "properties": {}}}}
    prefix = pin(server, messages=[{"role": "system", "content": "Help."}], tools=[tool])
    flood(server)
    assert cached(server, [{"role": "system", "content": "Help."}, ASK], tools=[tool]) == prefix["pinned_tokens"] >= 128


def test_a_text_and_its_end(server):
    prefix = pin(server, text=MANUAL, ttl=2)
    assert (prefix["source"], prefix["ttl"]) == ("prefixes", 2)
    server.wait(lambda: not pins(server))
    assert call(server, "GET", f"/v1/cache/prefixes/{prefix['id']}")[0] == 404
    assert server.stats()["blocks"]["pinned"] == 0
    flood(server)
    answer = ok(server, "POST", "/v1/completions", {"prompt": MANUAL + " So", "max_tokens": 1})
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_same_again_renews_it(server):
    first = pin(server, prompt=MANUAL, ttl=50)
    again = pin(server, prompt=MANUAL, ttl=500, name="again")
    assert (again["id"], again["name"], again["blocks"]) == (first["id"], "again", first["blocks"])
    assert again["expires_at"] - first["expires_at"] >= 449
    assert again["cached_tokens"] >= first["pinned_tokens"] - 1
    assert [prefix["id"] for prefix in pins(server)] == [first["id"]]


def test_delete(server):
    prefix = pin(server, text=MANUAL)
    path = f"/v1/cache/prefixes/{prefix['id']}"
    assert ok(server, "DELETE", path) == {"id": prefix["id"], "object": "cache.prefix.deleted", "deleted": True}
    status, answer = call(server, "DELETE", path)
    assert (status, answer["error"]["code"]) == (404, "prefix_not_found")
    assert pins(server) == []


@pytest.mark.parametrize(("fields", "param"), [
    ({}, "messages"), ({"text": "a", "prompt": "b"}, "messages"), ({"messages": []}, "messages"), ({"text": "a", "ttl": 0}, "ttl"),
    ({"text": "a", "ttl": 2592001}, "ttl"), ({"text": "a", "name": "n" * 257}, "name"), ({"prompt": ["a", "b"]}, "prompt"),
    ({"text": ""}, "text"), ({"text": 1}, "text"), ({"messages": SYSTEM, "cache_salt": 1}, "cache_salt")])
def test_wrong_fields_are_named(server, fields, param):
    status, answer = call(server, "POST", "/v1/cache/prefixes", fields)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_shares_and_the_largest_request_beside_them(server):
    status, answer = call(server, "POST", "/v1/cache/prefixes", {"text": "Too short."})
    assert (status, answer["error"]["code"]) == (400, "prefix_too_short")
    for salt in "ab":
        pin(server, prompt=[ord(salt)] * 470, cache_salt=salt)
    status, answer = call(server, "POST", "/v1/cache/prefixes", {"prompt": [3] * 100, "cache_salt": "a"})
    assert (status, answer["error"]["code"]) == (409, "pin_share_exhausted")
    pin(server, prompt=[3] * 64, cache_salt="c")
    status, answer = call(server, "POST", "/v1/cache/prefixes", {"prompt": [4] * 64, "cache_salt": "c"})
    assert (status, answer["error"]["code"]) == (409, "pin_share_exhausted"), "all together have their share"
    answer = ok(server, "POST", "/v1/completions", {"prompt": [5] * 500, "max_tokens": 12, "n": 2, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 24


def test_reset(server):
    pin(server, text=MANUAL)
    cached(server, SYSTEM + [ASK])
    before = server.idle_stats()["blocks"]
    gone = ok(server, "POST", "/v1/cache/reset")
    assert (gone["object"], gone["prefixes"], gone["blocks"]) == ("cache.reset", 1, before["cached"] + before["in_use"])
    assert gone["blocks"] * 32 - 64 <= gone["tokens"] <= gone["blocks"] * 32
    assert cached(server, SYSTEM + [ASK]) == 0


def test_no_route_shows_or_ends_what_is_another_keys_or_another_salts(tmp_path):
    keys, operators = tmp_path / "keys", tmp_path / "operators"
    keys.write_text("alice sk-alice\nbob sk-bob\n")
    operators.write_text("root sk-root\n")
    with Coppice(*POOL, "--api-keys", str(keys), "--operator-keys", str(operators), "--pin-share-of-key", "0.5") as server:
        prefix = pin(server, "sk-alice", text=MANUAL)
        salted = pin(server, "sk-alice", text=MANUAL, cache_salt="s 1")
        assert salted["id"] != prefix["id"]
        assert [p["id"] for p in pins(server, "sk-alice")] == [prefix["id"]]
        assert [p["id"] for p in pins(server, "sk-alice", "?cache_salt=s%201")] == [salted["id"]]
        for key, query in (("sk-bob", ""), ("sk-bob", "?cache_salt=s%201"), ("sk-root", ""), ("sk-alice", "?cache_salt=other")):
            assert pins(server, key, query) == []
            for mine in (prefix, salted):
                path = f"/v1/cache/prefixes/{mine['id']}{query}"
                assert call(server, "GET", path, key=key)[0] == 404
                assert call(server, "DELETE", path, key=key)[0] == 404
        assert call(server, "GET", "/v1/cache/prefixes")[0] == 401
        # Bob pins the same text: it is another object, of the same blocks.
        same = pin(server, "sk-bob", text=MANUAL)
        assert (same["id"], same["hits"]) == (prefix["id"], 0)
        ok(server, "DELETE", f"/v1/cache/prefixes/{same['id']}", key="sk-bob")
        assert len(pins(server, "sk-alice")) == 1
        for key in ("sk-alice", "sk-bob"):
            status, answer = call(server, "POST", "/v1/cache/reset", key=key)
            assert (status, answer["error"]["code"]) == (403, "operator_only")
        assert ok(server, "POST", "/v1/cache/reset", key="sk-root")["prefixes"] == 2
        assert pins(server, "sk-alice") == []


def test_with_keys_and_no_operator_nobody_resets(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-alice\n")
    with Coppice(*POOL, "--api-keys", str(keys)) as server:
        assert call(server, "POST", "/v1/cache/reset", key="sk-alice")[0] == 403


# --- cache_control ---------------------------------------------------------------------------------------------------


def block(text, ttl=None, marked=True):
    control = {"cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})} if marked else {}
    return {"type": "text", "text": text} | control


def message(server, **fields):
    answer = ok(server, "POST", "/v1/messages", {"model": "smol", "max_tokens": 1, "messages": [ASK]} | fields)
    usage = answer["usage"]
    created = usage["cache_creation"]
    assert usage["cache_creation_input_tokens"] == created["ephemeral_5m_input_tokens"] + created["ephemeral_1h_input_tokens"]
    count = {name: fields[name] for name in ("system", "tools") if name in fields}
    count |= {"messages": fields.get("messages", [ASK])}
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == \
        ok(server, "POST", "/v1/messages/count_tokens", count)["input_tokens"]
    return usage


def test_cache_control_pins_up_to_its_block(server):
    system = [block("Follow the rules.", marked=False), block(MANUAL, "1h")]
    first = message(server, system=system)
    pinned = first["cache_creation"]["ephemeral_1h_input_tokens"]
    assert pinned % 32 == 0 and pinned > 200 and first["cache_read_input_tokens"] == 0
    flood(server)
    again = message(server, system=system, messages=[{"role": "user", "content": "Something else?"}])
    assert (again["cache_read_input_tokens"], again["cache_creation_input_tokens"]) == (pinned, 0)
    (listed,) = pins(server)
    assert (listed["source"], listed["ttl"], listed["hits"], listed["pinned_tokens"]) == ("cache_control", 3600, 1, pinned)


def test_marks_in_the_conversation_with_both_times(server):
    tool = {"name": "turn_knob", "description": "Turns a knob.", "input_schema": {"type": "object", "properties": {}}}
    turns = [{"role": "user", "content": [block(MANUAL[:300]), block("Which knob is first? Which one is second, and which one is the last of all?", marked=False)]}]
    usage = message(server, system=[block(MANUAL[:450], "1h")], tools=[tool], messages=turns)
    creation = usage["cache_creation"]
    assert creation["ephemeral_1h_input_tokens"] >= 128 and creation["ephemeral_5m_input_tokens"] >= 64, usage
    assert sorted(prefix["ttl"] for prefix in pins(server)) == [300, 3600]
    # The request's own mark: behind all messages.
    longer = turns + [{"role": "assistant", "content": "Knob 0."}, {"role": "user", "content": "Now " + MANUAL[:250]}]
    usage = message(server, system=[block(MANUAL[:450], "1h")], tools=[tool], messages=longer, cache_control={"type": "ephemeral"})
    assert usage["cache_read_input_tokens"] >= creation["ephemeral_1h_input_tokens"] + creation["ephemeral_5m_input_tokens"]
    assert usage["cache_creation"]["ephemeral_5m_input_tokens"] >= 64


def test_beyond_the_share_it_is_unpinned_and_says_so(server):
    for token in (7, 8):
        pin(server, prompt=[token] * 416)
    usage = message(server, system=[block(MANUAL)])
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (0, 0) and usage["input_tokens"] > 200
    assert len(pins(server)) == 2


def test_a_stream_tells_it_at_the_end(server):
    body = {"model": "smol", "max_tokens": 2, "stream": True, "messages": [ASK], "system": [block(MANUAL)]}
    request = urllib.request.Request(server.url + "/v1/messages", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        events = [json.loads(line[6:]) for line in reply if line.startswith(b"data: ")]
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    assert usage["cache_creation"]["ephemeral_5m_input_tokens"] == usage["cache_creation_input_tokens"] > 200


@pytest.mark.parametrize("control", [{}, {"type": "persistent"}, {"type": "ephemeral", "ttl": "2h"}, "ephemeral"])
def test_wrong_marks_are_refused(server, control):
    status, answer = call(server, "POST", "/v1/messages", {
        "model": "smol", "max_tokens": 1, "messages": [ASK], "system": [{"type": "text", "text": "Hi.", "cache_control": control}]})
    assert status == 400 and "cache_control" in answer["error"]["message"]


def test_a_fifth_mark_is_refused(server):
    status, answer = call(server, "POST", "/v1/messages", {
        "model": "smol", "max_tokens": 1, "messages": [ASK], "system": [block(f"Rule {i}.") for i in range(5)]})
    assert status == 400 and "more than 4 times" in answer["error"]["message"]


@pytest.mark.parametrize("empty", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_message_in_mid_list_is_left_out(server, empty):
    with_it = message(server, messages=[ASK, {"role": "system", "content": empty}, {"role": "user", "content": "Well?"}])
    without = message(server, messages=[ASK, {"role": "user", "content": "Well?"}])
    assert without["cache_read_input_tokens"] == with_it["input_tokens"] - 1
    status, _ = call(server, "POST", "/v1/messages", {"max_tokens": 1, "messages": [{"role": "system", "content": empty}]})
    assert status == 400


def test_the_billing_header_can_be_kept():
    with Coppice(*POOL, "--keep-billing-header", "on") as server:
        plain = message(server, system=[block("Be brief.", marked=False)])
        billed = message(server, system=[block("x-anthropic-billing-header: cost=1", marked=False), block("Be brief.", marked=False)])
        assert billed["input_tokens"] + billed["cache_read_input_tokens"] > plain["input_tokens"] + 8


# --- layers that slide ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("COPPICE_GEMMA3"), reason="COPPICE_GEMMA3 is not set")
def test_windows_at_the_end_of_a_pinned_prefix_survive():
    with Coppice("--kv-bytes", "60MiB", "--ctx", "1200", "--max-batch", "2", model=os.environ["COPPICE_GEMMA3"]) as server:
        dice = random.Random(2)
        prompt = [dice.randrange(1000, 20000) for _ in range(900)]
        prefix = pin(server, prompt=prompt)
        assert prefix["pinned_tokens"] == 896
        flood(server, tokens=1000, prompts=5)
        assert server.idle_stats()["evictions"] > 300
        answer = ok(server, "POST", "/v1/completions", {"prompt": prompt[:896] + [2] * 9, "max_tokens": 1})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 896


def test_a_pool_that_limits_the_context_holds_pins_until_a_request_needs_it_all():
    with Coppice("--kv-bytes", "128MiB", "--alias", "smol") as server:
        log = server.log.read_text()
        stats = ok(server, "GET", "/v1/cache/stats")
        assert stats["context_length"] > stats["blocks"]["total"] * 32 * 9 // 10, "the pool limits the context"
        assert "beyond 0 they give way" in log
        assert pin(server, messages=SYSTEM, name="manual")["pinned_tokens"] > 200
        marked = [{"type": "text", "text": "Marked. " + MANUAL, "cache_control": {"type": "ephemeral"}}]
        answer = ok(server, "POST", "/v1/messages", {"system": marked, "messages": [ASK], "max_tokens": 1})
        assert answer["usage"]["cache_creation_input_tokens"] > 0
        assert len(pins(server)) == 2
        flood(server, tokens=600, prompts=12)
        assert cached(server, SYSTEM + [ASK]) > 200
        assert len(pins(server)) == 2
        status, refusal = call(server, "POST", "/v1/cache/prefixes", {"prompt": [7] * 2800})
        assert status == 409 and "would hold" in refusal["error"]["message"], refusal
        assert f"may hold {stats['blocks']['total'] // 2}" in refusal["error"]["message"]
        ok(server, "POST", "/v1/completions", {"prompt": [5] * (stats["context_length"] - 1), "max_tokens": 1})
        assert pins(server) == []


def next_frame(stream, wanted):
    """The first frame that is `wanted`."""
    end = time.monotonic() + TIMEOUT_S
    for line in stream:
        assert time.monotonic() < end, "no such frame"
        if line.startswith(b"data: ") and wanted(frame := json.loads(line[6:])):
            return frame
    raise AssertionError("the feed ended")


def test_the_feed_shows_on_an_idle_server_that_pins_end_and_a_reset(server):
    ok(server, "POST", "/v1/cache/reset")
    with urllib.request.urlopen(server.url + "/v1/cache/events", timeout=20) as stream:
        first = pin(server, messages=SYSTEM)
        next_frame(stream, lambda frame: frame["blocks"]["in_use"] > 0)
        ok(server, "DELETE", "/v1/cache/prefixes/" + first["id"])
        next_frame(stream, lambda frame: frame["blocks"]["in_use"] == 0)
        pin(server, messages=SYSTEM, ttl=3)
        next_frame(stream, lambda frame: frame["blocks"]["in_use"] > 0)
        next_frame(stream, lambda frame: frame["blocks"]["in_use"] == 0)
        ok(server, "POST", "/v1/cache/reset")
        assert next_frame(stream, lambda frame: frame["blocks"]["cached"] == 0)["tree"]["nodes"] == []


def test_half_of_a_pinned_block_is_no_hit(server):
    ok(server, "POST", "/v1/cache/reset")
    text = [100 + i for i in range(64)]
    pin(server, prompt=text, add_special_tokens=False)
    for prompt, hits in ((text[:50] + [9, 9, 9], 0), (text[:63] + [8], 0), (text, 1), (text + [1], 2)):
        ok(server, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "add_special_tokens": False})
        assert pins(server)[0]["hits"] == hits
