"""coppice chat: a conversation through standard input and output."""

import os
import re
import subprocess

from coppice_process import Coppice, binary, free_port, model_path


def talk(*arguments, lines):
    return subprocess.run([binary(), "chat", *arguments], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=180)


def test_a_conversation_with_a_server():
    with Coppice("--kv-bytes", "64MiB") as server:
        done = talk(server.url, "--temp", "0", "-n", "6", lines=[
            "Hello there, how are you today?", "/again", "And what is hazel?", "/back", "/nonsense", "/new", "/again", "/help", "/quit",
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


def test_a_terminal_shows_how_far_the_load_is():
    ours, its = os.openpty()
    # The larger of the two models: its load takes long enough to be seen.
    process = subprocess.Popen([binary(), "chat", os.environ["COPPICE_GEMMA3"], "--kv-bytes", "64MiB"], stdin=its, stdout=its, stderr=its)
    os.close(its)
    seen = b""
    while b"\n> " not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, b"/quit\n")
    assert process.wait(60) == 0
    os.close(ours)
    shown = [(stage, int(percent)) for stage, percent in re.findall(rb"\r\x1b\[K([^,\r]+), (\d+) %", seen)]
    assert shown, seen
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
