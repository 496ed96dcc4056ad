"""How the process starts and ends."""

import concurrent.futures
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from coppice_process import Coppice, assert_nothing_held, binary, model_path

STORY = [{"role": "user", "content": "Tell a story."}]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=180)


def one_sentence(done: subprocess.CompletedProcess, *words: str):
    assert done.returncode == 1, done
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("coppice: ") and all(word in line for word in words), done.stderr


def test_help_and_version():
    assert run("--version").stdout.startswith("coppice ")
    assert run("-V").stdout == run("--version").stdout
    done = run("serve", "--help")
    assert done.returncode == 0
    for option in ("--model", "--host", "--port", "--ctx", "--kv-bytes", "--max-batch", "--step-tokens", "--threads",
                   "--attention", "--share", "--alias", "--block-size", "--kv-format"):
        assert option in done.stdout
    assert "default, also by 0 and -1" in " ".join(done.stdout.split())


def test_options_before_a_command():
    done = run("--hlep")
    assert done.returncode == 2 and "--hlep: coppice has no such option before a command; did you mean --help?" in done.stderr, done.stderr
    done = run("--port", "9000", "serve")
    assert done.returncode == 2 and "--port: coppice has no such option before a command" in done.stderr, done.stderr


def test_bad_command_lines():
    assert run("serve").returncode == 2
    assert run("serve", "--model", "x", "--attention", "magic").returncode == 2
    assert run("serve", "--model", "x", "--kv-format", "q8_0").returncode == 2
    assert run("serve", "--model", "x", "--kv-bytes", "lots").returncode == 2
    assert run("serve", "--model", "x", "--kv-bytes", "-5").returncode == 2
    assert run("serve", "--model", "x", "--max-queue", "-1").returncode == 2
    for option in "--temp", "--top-p", "--pin-share":
        done = run("serve", "--model", "x", f"{option}=nan")
        assert done.returncode == 2 and "nan not in range [" in done.stderr, done.stderr
    for option in ("--idle-seconds", "--write-seconds", "--request-seconds", "--ping-seconds", "--drain-seconds"):
        # llama-server's -1 means never, for pings.
        for seconds in ("nan", "inf", "1e10", "-2" if option == "--ping-seconds" else "-1", "soon"):
            assert run("serve", "--model", "x", f"{option}={seconds}").returncode == 2


def test_model_that_is_not_there(tmp_path):
    one_sentence(run("serve", "--port", "0", "--model", str(tmp_path / "none.gguf")), "none.gguf")
    (tmp_path / "text.gguf").write_text("this is no model")
    one_sentence(run("serve", "--port", "0", "--model", str(tmp_path / "text.gguf")))


def test_too_little_memory():
    one_sentence(run("serve", "--port", "0", "--model", model_path(), "--kv-bytes", "100000GiB"), "memory", "--kv-bytes")
    one_sentence(run("serve", "--port", "0", "--model", model_path(), "--kv-bytes", "64MiB", "--ctx", "8192"), "--kv-bytes")


def test_format_that_the_backend_cannot_read():
    one_sentence(run("serve", "--port", "0", "--model", model_path(), "--attention", "gather", "--kv-format", "int8"),
                 "gather", "f16", "--kv-format int8")


def test_chat_template_that_says_nothing(tmp_path):
    (tmp_path / "empty.jinja").touch()
    one_sentence(run("serve", "--port", "0", "--model", model_path(), "--chat-template", tmp_path / "empty.jinja"), "empty.jinja", "empty")


def test_port_in_use(server):
    one_sentence(run("serve", "--port", str(server.port), "--model", model_path()), str(server.port), "in use")


def test_smallest_step_still_has_a_row_more_than_the_batch():
    with Coppice("--kv-bytes", "64MiB", "--step-tokens", "1", "--max-batch", "32") as server:
        server.post("/v1/completions", {"prompt": list(range(100, 160)), "max_tokens": 1})
        assert server.idle_stats()["steps"]["count"] < 10


def full_disk():
    return open("/dev/full", "wb")


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "wb")


def test_threads_that_serve_are_nicer_than_those_that_compute_however_it_was_started():
    servers = []

    def start():  # a thread has a nice value of its own, and so has what it starts
        os.nice(7)
        servers.append(Coppice("--kv-bytes", "64MiB", "--threads", "1"))

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    started = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    with servers[0] as server:
        values = {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{server.process.pid}/task").iterdir()}
        assert min(values) == started and min(19, started + 5) in values
        assert "keeps its priority" not in server.log.read_text()


def test_the_debug_log_has_a_line_for_a_refused_request(tmp_path):
    with open(tmp_path / "log", "w+", encoding="utf-8") as log, \
            Coppice("--kv-bytes", "64MiB", "--threads", "1", "--log-level", "debug", log_to=log) as server:
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(server.url + "/nowhere", timeout=30)
        assert server.end() == 0
        log.seek(0)
        assert "GET /nowhere: 404" in log.read()


@pytest.mark.parametrize("broken_log", [full_disk, pipe_without_reader])
def test_serves_on_when_the_log_cannot_be_written(broken_log):
    with broken_log() as log, Coppice("--kv-bytes", "64MiB", "--threads", "1", "--log-level", "debug",
                                      log_to=log) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        for _ in range(3):
            chunks = list(client.chat.completions.create(model="default", messages=STORY, max_tokens=4, stream=True))
            assert chunks[-1].choices[0].finish_reason == "length"
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="nobody", messages=STORY)
        assert_nothing_held(server.idle_stats())
        before = server.cpu_seconds()
        time.sleep(1)
        assert server.cpu_seconds() - before < 0.5, "it is idle, but spins"
        assert server.end() == 0


def test_bad_end_with_a_log_that_cannot_be_written():
    for broken_log in full_disk, pipe_without_reader:
        with broken_log() as log:
            command = [binary(), "serve", "--port", "0", "--model", "none.gguf"]
            assert subprocess.run(command, stdout=log, stderr=log, timeout=180).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_an_idle_server(number):
    with Coppice("--kv-bytes", "64MiB") as server:
        assert server.end(number) == 0


def test_signal_while_loading():
    with Coppice("--kv-bytes", "64MiB", wait_ready=False) as server:
        assert server.end() == 0


def test_signal_at_the_end_of_loading(tmp_path):
    """While the first step is tried: the log does not say behind the signal that the server is ready, and responses that are stored stay."""
    options = ("--kv-bytes", "64MiB", "--kv-dir", tmp_path)
    with Coppice(*options) as server:
        kept = server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 1, "store": True})["id"]
        assert server.end() == 0
    with Coppice(*options, wait_ready=False) as server:
        while (health := server.get("/health")[1])["status"] == "loading" and (health["stage"], health["progress"]) != ("starting", 1):
            pass
        assert server.end() == 0
        _, signalled, behind = server.log.read_text().partition("signal 15")
        assert signalled and "ready: " not in behind
    with Coppice(*options) as server:
        end = time.monotonic() + 60  # they are read once the folder is open
        while server.get(f"/v1/responses/{kept}")[0] != 200:
            assert time.monotonic() < end, "the stored response is lost"
            time.sleep(0.05)


def test_drain_lets_a_stream_end_and_a_second_signal_does_not_wait():
    with Coppice("--kv-bytes", "64MiB", "--drain-seconds", "60") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        body = {"model": "default", "messages": STORY, "stream": True, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(max_tokens=500, **body)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait(lambda: server.get("/health") == (503, {"status": "draining"}))
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(max_tokens=30, **body)
        assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"]
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.process.wait(180) == 0
    with Coppice("--kv-bytes", "64MiB", "--drain-seconds", "60") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(**body)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait(lambda: "signal 15" in server.log.read_text())
        assert server.end() == 128 + signal.SIGTERM


def test_drain_is_bounded():
    with Coppice("--kv-bytes", "256MiB", "--drain-seconds", "0.5") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="default", messages=STORY, stream=True,
                                                extra_body={"ignore_eos": True})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert server.process.wait(180) == 0


@pytest.mark.parametrize("arguments", [("--share", "off"), ("--attention", "dense"), ("--block-size", "16"),
                                       ("--kv-format", "int8"), ("--kv-format", "turbo4"), ("--threads", "3")])
def test_other_settings(arguments):
    with Coppice("--kv-bytes", "128MiB", *arguments) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        for _ in range(2):
            answer = client.chat.completions.create(model="default", messages=STORY, max_tokens=4)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        shares = "off" not in arguments and "dense" not in arguments  # the reference shares nothing
        assert (cached > 0) == shares
        stats = server.idle_stats()
        assert_nothing_held(stats)
        chosen = dict(zip(arguments[::2], arguments[1::2]))
        assert stats["attention"] == chosen.get("--attention", "tree")
        assert stats["kv_format"] == chosen.get("--kv-format", "f16")


def test_small_pool_preempts_and_answers_all():
    # 16 blocks: five requests are admitted, and each grows to four blocks.
    with Coppice("--kv-bytes", "12MiB", "--ctx", "256", "--threads", "1") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)

        def ask(i):
            return client.completions.create(model="default", prompt=f"{i} and", max_tokens=110,
                                             extra_body={"ignore_eos": True}).usage.completion_tokens

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(8))) == [110] * 8
        stats = server.idle_stats()
        assert stats["preemptions"] > 0
        assert_nothing_held(stats)


def test_full_queue_is_429():
    with Coppice("--kv-bytes", "64MiB", "--max-batch", "1", "--max-queue", "1", "--drain-seconds", "0") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)

        def ask(_):
            try:
                client.completions.create(model="default", prompt="a", max_tokens=40, extra_body={"ignore_eos": True})
                return 200
            except openai.RateLimitError as error:
                assert error.response.headers["retry-after"]
                return 429

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(8)))
        assert 200 in statuses and 429 in statuses and set(statuses) == {200, 429}


def test_comments_in_a_silent_stream_are_ignored():
    with Coppice("--kv-bytes", "64MiB", "--max-batch", "1", "--ping-seconds", "0.05") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
            body = {"model": "default", "messages": STORY, "max_tokens": 300, "temperature": 0, "stream": True,
                    "extra_body": {"ignore_eos": True}}
            texts = []

            def ask():  # the second waits in the queue while the first writes
                with client.chat.completions.with_streaming_response.create(**body) as reply:
                    texts.append("".join(reply.iter_text()))

            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for asked in [pool.submit(ask) for _ in range(2)]:
                    asked.result()
            assert any(": keep-alive" in text for text in texts)
            body["max_tokens"] = 60
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                streams = [pool.submit(lambda: list(client.chat.completions.create(**body))) for _ in range(2)]
                for chunks in (stream.result() for stream in streams):
                    assert chunks[-1].choices[0].finish_reason == "length"
                    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nalice key-a\nkey-b\n")
    with Coppice("--kv-bytes", "64MiB", "--api-keys", str(keys), "--isolate", "keys") as server:
        def client(key):
            return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)

        def cached(key):
            answer = client(key).chat.completions.create(model="default", messages=STORY, max_tokens=1)
            return answer.usage.prompt_tokens_details.cached_tokens

        assert cached("key-a") == 0 and cached("key-a") > 0
        assert cached("key-b") == 0 and cached("key-b") > 0
        with pytest.raises(openai.AuthenticationError) as caught:
            cached("key-c")
        assert caught.value.code == "invalid_api_key"
        assert server.get("/health")[0] == 200 and server.get("/v1/cache/stats")[0] == 401

        keys.write_text("key-c\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "1 API keys" in server.log.read_text())
        assert cached("key-c") == 0
        with pytest.raises(openai.AuthenticationError):
            cached("key-a")
        keys.write_text("a line of words\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "The keys stay as they were." in server.log.read_text())
        assert cached("key-c") > 0
        assert "key-c" not in server.log.read_text()


def test_bad_keys_are_one_sentence(tmp_path):
    (tmp_path / "empty").write_text("# none\n")
    start = ("serve", "--port", "0", "--model", model_path())
    one_sentence(run(*start, "--api-keys", str(tmp_path / "empty")), "empty", "no key")
    one_sentence(run(*start, "--isolate", "keys"), "--api-keys")
    assert run(*start, "--api-keys", str(tmp_path / "nothing")).returncode == 2
