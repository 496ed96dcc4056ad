"""coppice chat: a conversation through standard input and output."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from coppice_process import TIMEOUT_S, Coppice, binary, free_port, model_path


def talk(*arguments, lines):
    return subprocess.run([binary(), "chat", *arguments], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=180)


def read(terminal) -> bytes:
    assert select.select([terminal], [], [], TIMEOUT_S)[0], "nothing more comes"
    return os.read(terminal, 4096)


def test_a_conversation_with_a_server():
    # An answer of which the model is sure: on AMX a prompt that was seen is rounded otherwise than a new one.
    with Coppice("--kv-bytes", "64MiB") as server:
        done = talk(server.url, "--temp", "0", "-n", "6", lines=[
            "Say: one two three four five six", "/again", "And what is hazel?", "/back", "/nonsense", "/new", "/again", "/help", "/quit",
            "never sent"])
        requests, tokens = server.idle_stats()["requests"], server.stats()["tokens"]
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert said[0] and said[0] == said[1], "the same question, greedily"
    assert "2 messages are left." in said
    assert "There is no such command" in done.stderr and "There is no message yet." in done.stderr
    assert "/back         take the last message back" in done.stdout
    assert requests["finished"] == 3
    assert tokens["generated"] == 18
    assert tokens["cached"] > tokens["computed"], "a conversation finds what it said before"


def test_a_server_of_its_own():
    done = talk(model_path(), "--kv-bytes", "64MiB", "-n", "3", "--system", "Be brief.", lines=["Hello"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "http://127.0.0.1:" in done.stderr


def test_other_servers_keys_are_not_for_its_own(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-other")
    done = talk(model_path(), "--kv-bytes", "64MiB", "-n", "3", lines=["Hello"])
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def shown_load(model):
    """What a terminal shows until the prompt comes, and of it the stages of loading with their percents."""
    ours, its = os.openpty()
    process = subprocess.Popen([binary(), "chat", model, "--kv-bytes", "64MiB"], stdin=its, stdout=its, stderr=its)
    os.close(its)
    seen = b""
    while b"\n> " not in seen:
        seen += read(ours)
    os.write(ours, b"/quit\n")
    assert process.wait(TIMEOUT_S) == 0
    os.close(ours)
    return seen, [(stage, int(percent)) for stage, percent in re.findall(rb"\r\x1b\[K([^,\r]+), (\d+) %", seen)]


def test_a_terminal_shows_how_far_the_load_is():
    # The larger of the two models: its load takes long enough to be seen, but for a chat that stands still meanwhile.
    seen, shown = next(load for load in (shown_load(os.environ["COPPICE_GEMMA3"]) for _ in range(5)) if load[1])
    for stage, _ in shown:  # each counts from 0
        percents = [percent for other, percent in shown if other == stage]
        assert percents == sorted(percents) and percents[-1] <= 100, shown
    assert b"\r\x1b[Kits page" in seen  # the line is gone then


def test_nobody_there():
    done = talk(str(free_port()), lines=["Hello"])
    assert done.returncode == 1
    assert "No coppice is ready" in done.stderr
    done = talk("no-such-model", lines=["Hello"])
    assert done.returncode == 1 and "no file, folder or local model" in done.stderr


def test_a_server_of_its_own_says_why_it_ended(monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "abc")
    done = talk(model_path(), lines=["Hello"])
    assert done.returncode == 1
    assert "the server ended while starting: LLAMA_ARG_CTX_SIZE: abc is not 0" in done.stderr


@contextlib.contextmanager
def made_up_server(deltas, key="", hold=None):
    """Answers every chat with these; yields its port. hold: an answer has no end before this event."""
    class Handler(BaseHTTPRequestHandler):
        def reply(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply(200, b"{}")

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            if key and self.headers["Authorization"] != f"Bearer {key}":
                return self.reply(401, b'{"error": {"message": "Incorrect API key"}}')
            events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
            if hold is not None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events))
                self.close_connection = hold.wait(60)
                return
            events.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}})
            self.reply(200, b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield str(server.server_port)
        finally:
            server.shutdown()


def in_terminal(*arguments, line):
    """What a terminal gets to see until the prompt comes again."""
    ours, its = os.openpty()
    process = subprocess.Popen([binary(), "chat", *arguments], stdin=its, stdout=its, stderr=its)
    os.close(its)
    os.write(ours, line.encode() + b"\n")
    seen = b""
    while seen.count(b"\n> ") < 2:
        seen += read(ours)
    os.write(ours, b"/quit\n")
    assert process.wait(TIMEOUT_S) == 0
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_shows_what_a_model_thinks():
    with made_up_server([{"reasoning_content": "Hm, "}, {"reasoning_content": "trees."}, {"content": "They grow "}, {"content": "again."}]) as port:
        seen = re.sub(r"\x1b\[[0-9;]*m", "|", in_terminal(port, line="Why?"))
        assert "|Hm, ||trees.|\n\nThey grow again.\n" in seen, seen
        assert "5 of 9 prompt tokens from the cache" in seen
        assert talk(port, lines=["Why?"]).stdout == "They grow again.\n"  # a pipe gets the answer


def test_an_answer_has_no_power_over_the_terminal():
    hostile = "a\x1b]0;evil\x07b\x9b2Jc\x7fd\re\tf é ü"
    with made_up_server([{"content": hostile}]) as port:
        assert "a\uFFFD]0;evil\uFFFDb\uFFFD2Jc\uFFFDd\uFFFDe\tf é ü\n" in in_terminal(port, line="Be evil").replace("       f", "\tf")
        assert talk(port, lines=["Be evil"]).stdout.replace("\n", "") == hostile.replace("\r", "")  # text mode reads \r as an end of line


def test_a_key(monkeypatch):
    with made_up_server([{"content": "Welcome."}], key="sk-right") as port:
        done = talk(port, lines=["Hello"])
        assert "--api-key" in done.stderr and done.stdout.strip() == ""
        assert talk(port, "--api-key", "sk-right", lines=["Hello"]).stdout == "Welcome.\n"
        monkeypatch.setenv("LLAMA_API_KEY", "sk-right")
        assert talk(port, lines=["Hello"]).stdout == "Welcome.\n"


def test_ctrl_c_ends_an_answer_and_the_chat_goes_on():
    hold = threading.Event()
    with made_up_server([{"content": "They grow "}], hold=hold) as port:
        ours, its = os.openpty()
        process = subprocess.Popen([binary(), "chat", port], stdin=its, stdout=its, stderr=its)
        os.close(its)
        try:
            seen = b""
            for n in range(1, 4):
                os.write(ours, b"Why?\n")
                while seen.count(b"They grow ") < n:
                    seen += read(ours)
                time.sleep(0.2)  # it waits for more
                process.send_signal(signal.SIGINT)
                while seen.count(b"\n> ") < n + 1:
                    seen += read(ours)
            os.write(ours, b"/quit\n")
            assert process.wait(TIMEOUT_S) == 0
            assert b"broke off" not in seen, seen
        finally:
            hold.set()
            process.kill()
            os.close(ours)
