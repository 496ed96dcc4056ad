"""What one key, or one salt, left on the server can't be reached by another: a test for each kind of it."""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest

from coppice_process import TIMEOUT_S, Coppice

SECRET = "The vault of the old mill opens with the number " + " ".join(str(i * i) for i in range(60)) + "."
# Who asks, and under which salt. The first one owns all; `alice` with the salt "s" is somebody else, and so is `bob`.
OTHERS = [("sk-alice", "s"), ("sk-bob", ""), ("sk-bob", "s")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice sk-alice\nbob sk-bob\n")
    options = ["--kv-bytes", "128MiB", "--ctx", "1024", "--alias", "smol"]
    with Coppice(*options, "--api-keys", str(keys), "--isolate", "keys") as server:
        yield server


def call(server, key, method, path, body=None):
    """Status and text."""
    request = urllib.request.Request(server.url + path, None if body is None else json.dumps(body).encode(), method=method)
    request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(server, key, path, body, salt=""):
    status, text = call(server, key, "POST", path, {"model": "smol"} | body | ({"cache_salt": salt} if salt else {}))
    assert status == 200, text
    return json.loads(text)


def query(salt):
    return "?" + urllib.parse.urlencode({"cache_salt": salt}) if salt else ""


def complete(server, key, salt=""):
    return ask(server, key, "/v1/completions", {"prompt": SECRET, "max_tokens": 1, "cache_report": True}, salt)


@pytest.mark.parametrize("key,salt", OTHERS)
def test_a_stored_response(server, key, salt):
    stored = ask(server, "sk-alice", "/v1/responses", {"input": SECRET, "max_output_tokens": 1})["id"]
    path = f"/v1/responses/{stored}"
    for method, route in (("GET", path), ("GET", path + "/input_items"), ("DELETE", path)):
        status, text = call(server, key, method, route + query(salt))
        assert status == 404 and "old mill" not in text
    body = {"model": "smol", "input": "Which number?", "previous_response_id": stored, "max_output_tokens": 1}
    status, text = call(server, key, "POST", "/v1/responses", body | ({"cache_salt": salt} if salt else {}))
    assert status == 400 and "previous_response_not_found" in text
    assert call(server, "sk-alice", "GET", path)[0] == 200, "its owner still has it"


@pytest.mark.parametrize("key,salt", OTHERS)
def test_a_pin(server, key, salt):
    pin = ask(server, "sk-alice", "/v1/cache/prefixes", {"text": SECRET})["id"]
    assert pin not in call(server, key, "GET", "/v1/cache/prefixes" + query(salt))[1]
    for method in ("GET", "DELETE"):
        assert call(server, key, method, f"/v1/cache/prefixes/{pin}{query(salt)}")[0] == 404
    assert call(server, "sk-alice", "GET", f"/v1/cache/prefixes/{pin}")[0] == 200


@pytest.mark.parametrize("key,salt", OTHERS)
def test_a_cache_report(server, key, salt):
    salt += "report"  # nobody else's in this module: what the other has computed itself would be found
    complete(server, "sk-alice")
    own = complete(server, "sk-alice")
    assert own["cache_report"]["ended"] == "last_token" and own["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    other = complete(server, key, salt)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert other["cache_report"]["ended"] == "namespace" and "found" not in other["cache_report"]["text"]


@pytest.mark.parametrize("key,salt", OTHERS)
def test_the_picture_of_the_tree(server, key, salt):
    salt += "tree"
    complete(server, "sk-alice")
    assert "old mill" in call(server, "sk-alice", "GET", "/v1/cache/tree?text=64")[1]
    status, text = call(server, key, "GET", f"/v1/cache/tree?text=64&cache_salt={salt}")
    assert status == 200 and json.loads(text)["nodes"] == [] and "old mill" not in text


@pytest.mark.parametrize("key,salt", OTHERS)
def test_the_stream_of_events(server, key, salt):
    salt += "events"
    complete(server, "sk-alice")

    def first_event(key, query):
        request = urllib.request.Request(f"{server.url}/v1/cache/events{query}", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return next(line for line in reply if line.startswith(b"data:")).decode()

    assert "old mill" in first_event("sk-alice", "")
    assert "old mill" not in first_event(key, f"?cache_salt={salt}")
