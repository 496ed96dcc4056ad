"""Pictures whose encoding takes seconds: what their client hears meanwhile, and what ends it."""

import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from coppice_process import TIMEOUT_S, Coppice, device
from vision_model import image_part, picture, words, write_model

LARGE = 2800
SIDE = 800  # some 1,900 rows of Qwen 2.5 VL each, which sees a picture in its own size


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model("qwen25vl", tmp_path_factory.mktemp("qwen25vl"), wide=device() != [])


def server_of(model, *options, most=1900):
    return Coppice("--kv-bytes", "64MiB", "--ctx", "8192", "--image-max-tokens", str(most), "--ping-seconds", "0.1", *options, model=model)


@pytest.fixture(scope="module")
def shown():
    return [image_part(picture(f"slow {i}", SIDE, SIDE)) for i in range(4)]


@pytest.fixture(scope="module")
def large():
    """Of all the rows that a server of most=LARGE takes: one turn of the encoder, seconds long."""
    return [image_part(picture("large", 1150, SIDE))]


def ask(server, shown, **more):
    """The reply's lines, with the time at which each came, and its status."""
    body = {"messages": [{"role": "user", "content": [*shown, {"type": "text", "text": words(30)}]}], "max_tokens": 2, "temperature": 0}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body | more).encode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, [(time.monotonic(), line.decode().strip()) for line in reply if line.strip()]
    except urllib.error.HTTPError as error:
        return error.code, [(time.monotonic(), error.read().decode())]


def metric(server, name):
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        return next(float(line.split()[1]) for line in reply.read().decode().splitlines() if line.startswith(name + " "))


@contextlib.contextmanager
def begun(server, shown):
    """A stream whose picture's turn has begun: its first comment came. Yields what reads the rest of its lines."""
    body = {"messages": [{"role": "user", "content": shown}], "max_tokens": 2, "stream": True}
    with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode()), timeout=TIMEOUT_S) as reply:
        assert reply.readline() == b": keep-alive\n"
        yield lambda: [line.decode().strip() for line in reply if line.strip()]


def error_of(line):
    return json.loads(line.removeprefix("data: "))["error"]


def test_a_stream_gets_comments_while_its_picture_is_encoded(model, shown):
    with server_of(model) as server:
        status, lines = ask(server, shown, stream=True)
        assert status == 200
        first = next(i for i, (_, line) in enumerate(lines) if line.startswith("data:"))
        assert first >= 1 and {line for _, line in lines[:first]} == {": keep-alive"}
        assert lines[-1][1] == "data: [DONE]"
        streamed = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for _, line in lines[first:-1])
        _, ((_, whole),) = ask(server, shown)
        assert json.loads(whole)["choices"][0]["message"]["content"] == streamed


def test_encoding_that_is_too_late_ends(model, large):
    with server_of(model, most=LARGE) as server:
        status, ((_, error),) = ask(server, large, timeout=0.2)
        assert (status, error_of(error)["code"]) == (504, "deadline_exceeded")
        assert metric(server, "coppice_image_encodes_total") == 0
        assert ask(server, [image_part(picture("quick"))])[0] == 200


def test_a_request_that_waits_for_the_encoder_keeps_its_time(model, large):
    with server_of(model, most=LARGE) as server, begun(server, large) as rest:
        status, ((_, error),) = ask(server, [image_part(picture("quick"))], timeout=0.2)
        assert metric(server, "coppice_image_encodes_total") == 0  # it didn't wait for the other's
        assert (status, error_of(error)["code"]) == (504, "deadline_exceeded")
        assert rest()[-1] == "data: [DONE]"


def test_an_error_ahead_of_the_first_event_is_no_surprise_to_openais_stream(model, large):
    parts = [{"type": "input_image", "image_url": part["image_url"]["url"]} for part in large]
    with server_of(model, "--drain-seconds", "30", most=LARGE) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with client.responses.stream(model="model", input=[{"role": "user", "content": parts}]) as stream:
            server.process.send_signal(signal.SIGTERM)
            events = [event.type for event in stream]
        assert events == ["response.created", "response.in_progress", "response.failed"]


def test_the_end_of_the_server_ends_encoding_and_each_client_hears_of_it(model, large):
    with server_of(model, "--drain-seconds", "30", most=LARGE) as server, ThreadPoolExecutor(2) as pool, begun(server, large) as rest:
        asked = [pool.submit(ask, server, large) for _ in range(2)]
        server.wait(lambda: metric(server, "coppice_num_requests_preparing") == 3)
        assert server.end() == 0
        assert error_of(rest()[-1])["message"] == "The server is shutting down."
        for status, lines in (each.result() for each in asked):
            assert status == 503 and error_of(lines[-1][1])["message"] == "The server is shutting down."
