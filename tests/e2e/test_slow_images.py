"""Pictures whose encoding takes seconds: what their client hears meanwhile, and what ends it."""

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from coppice_process import TIMEOUT_S, Coppice, device
from vision_model import image_part, picture, words, write_model

SIDE = 800  # some 1,900 rows of Qwen 2.5 VL each, which sees a picture in its own size


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model("qwen25vl", tmp_path_factory.mktemp("qwen25vl"), wide=device() != [])


def server_of(model, *options, most=1900):
    return Coppice("--kv-bytes", "64MiB", "--ctx", "8192", "--image-max-tokens", str(most), "--ping-seconds", "0.1", *options, model=model)


@pytest.fixture(scope="module")
def shown():
    return [image_part(picture(f"slow {i}", SIDE, SIDE)) for i in range(4)]


def ask(server, shown, **more):
    """The reply's lines, with the time at which each came, and its status."""
    body = {"messages": [{"role": "user", "content": [*shown, {"type": "text", "text": words(30)}]}], "max_tokens": 2, "temperature": 0}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body | more).encode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, [(time.monotonic(), line.decode().strip()) for line in reply if line.strip()]
    except urllib.error.HTTPError as error:
        return error.code, [(time.monotonic(), error.read().decode())]


def encoder_busy(server):
    """A picture was decoded, and none is encoded yet."""
    return metric(server, "coppice_images_decoded_total") > 0 and metric(server, "coppice_image_encodes_total") == 0


def metric(server, name):
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        return next(float(line.split()[1]) for line in reply.read().decode().splitlines() if line.startswith(name + " "))


def test_a_stream_gets_comments_while_its_picture_is_encoded(model, shown):
    with server_of(model) as server:
        status, lines = ask(server, shown, stream=True)
        assert status == 200
        first = next(i for i, (_, line) in enumerate(lines) if line.startswith("data:"))
        assert first >= 2 and {line for _, line in lines[:first]} == {": keep-alive"}
        assert lines[-1][1] == "data: [DONE]"
        streamed = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for _, line in lines[first:-1])
        _, ((_, whole),) = ask(server, shown)
        assert json.loads(whole)["choices"][0]["message"]["content"] == streamed


def test_an_error_behind_a_streams_first_comments_is_its_last_event(model, shown):
    with server_of(model) as server:
        status, lines = ask(server, shown, stream=True, timeout=0.8)
        assert status == 200
        assert lines[0][1] == ": keep-alive"
        assert json.loads(lines[-1][1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


def test_encoding_that_is_too_late_ends(model, shown):
    with server_of(model) as server:
        status, ((_, error),) = ask(server, shown, timeout=0.8)
        assert (status, json.loads(error)["error"]["code"]) == (504, "deadline_exceeded")
        assert metric(server, "coppice_image_encodes_total") < len(shown)
        assert ask(server, shown)[0] == 200


def test_a_request_that_waits_for_the_encoder_keeps_its_time(model):
    large = [image_part(picture("large", 2 * SIDE, SIDE))]
    with server_of(model, most=2 * 1900) as server, ThreadPoolExecutor(3) as pool:  # it is encoded in one turn
        slow = pool.submit(ask, server, large)
        server.wait(lambda: encoder_busy(server))
        time.sleep(1)  # its turn has begun
        asked = [pool.submit(ask, server, [image_part(picture("quick"))], timeout=0.5, stream=stream) for stream in (False, True)]
        whole, streamed = (each.result() for each in asked)
        assert not slow.done()  # they didn't wait for it
        assert whole[0] == 504 and json.loads(whole[1][0][1])["error"]["code"] == "deadline_exceeded"
        assert json.loads(streamed[1][-1][1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert slow.result()[0] == 200


def test_an_error_ahead_of_the_first_event_is_no_surprise_to_openais_stream(model, shown):
    parts = [{"type": "input_image", "image_url": part["image_url"]["url"]} for part in shown]
    with server_of(model) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with client.responses.stream(model="model", input=[{"role": "user", "content": parts}], extra_body={"timeout": 0.8}) as stream:
            events = [event.type for event in stream]
        assert events == ["response.created", "response.in_progress", "response.failed"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_server_ends_encoding_and_each_client_hears_of_it(model, shown, stream):
    with server_of(model, "--drain-seconds", "2") as server, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, server, shown, stream=stream) for _ in range(3)]
        server.wait(lambda: encoder_busy(server))
        time.sleep(0.3)  # all three wait for it, with a comment
        assert server.end() == 0
        for status, lines in (each.result() for each in asked):
            assert status == (200 if stream else 503)
            error = json.loads(lines[-1][1].removeprefix("data: "))["error"]
            assert error["message"] == "The server is shutting down."
