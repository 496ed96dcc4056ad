"""`--sleep-idle-seconds`: an idle server lets its weights go; who asks waits for them, and gets the same text."""

import os
import shutil
import time
import urllib.request

import pytest

from coppice_process import Coppice, device
from same_text import assert_same
from second_tier import ask, metric, prompt


def held(server: Coppice) -> int:
    """Bytes of its memory, the file's pages that it has mapped included; or of the GPU's, which nobody else uses meanwhile."""
    if device():
        return int(metric(server, "coppice_device_memory_used_bytes"))
    with open(f"/proc/{server.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def asleep(server: Coppice) -> bool:
    return server.get("/props")[1]["is_sleeping"]


def ask_awake(server: Coppice, text: str):
    """What ask() does, and what is held then: asked again where it sleeps before one has looked."""
    while True:
        said, usage, _ = ask(server, text)
        awake = held(server)
        if not asleep(server):
            return said, usage, awake


@pytest.mark.parametrize("model", ["COPPICE_MODEL", "COPPICE_GEMMA3"])
def test_an_idle_server_lets_its_weights_go(model):
    path = os.environ[model]
    text = prompt(200)
    with Coppice("--kv-bytes", "64MiB", "--sleep-idle-seconds", "1", model=path) as server:
        before, _, awake = ask_awake(server, text)
        server.wait(lambda: asleep(server))
        wakes = metric(server, "coppice_wakes_total")
        weights = os.path.getsize(path)
        assert awake - held(server) > 0.8 * weights, (awake, held(server), weights)
        # Who only looks wakes nobody.
        for path in ("/metrics", "/health", "/v1/models", "/v1/cache/stats", "/v1/cache/tree", "/slots"):
            with urllib.request.urlopen(server.url + path) as reply:
                reply.read()
        time.sleep(0.5)
        assert asleep(server) and metric(server, "coppice_asleep") == 1 and metric(server, "coppice_wakes_total") == wakes
        again, usage, back = ask_awake(server, text)
        assert_same(again, before)
        assert usage["cached"] == usage["prompt"] - 1  # the cache slept through nothing
        assert metric(server, "coppice_wakes_total") > wakes
        assert back > awake - 0.2 * weights
        assert "asleep: " in server.log.read_text() and "weights are back after" in server.log.read_text()
        server.wait(lambda: asleep(server))
        assert server.end() == 0


def test_it_stays_awake_unless_told():
    with Coppice("--kv-bytes", "64MiB") as server:
        ask(server, prompt(20))
        time.sleep(2)
        assert not asleep(server)


@pytest.mark.parametrize("change, ends", [("weights", True), ("touch", False), ("replace", False)])
def test_a_file_that_was_changed_meanwhile_is_not_read(change, ends, tmp_path):
    """What is cached was computed with the old weights."""
    path = tmp_path / "model.gguf"
    shutil.copy(os.environ["COPPICE_MODEL"], path)
    with Coppice("--kv-bytes", "64MiB", "--sleep-idle-seconds", "1", model=str(path)) as server:
        before, _, _ = ask(server, prompt(20))
        server.wait(lambda: asleep(server))
        if change == "weights":
            with path.open("r+b") as file:
                file.seek(60 << 20)
                file.write(bytes(20 << 20))
        elif change == "touch":
            path.touch()
        else:
            other = tmp_path / "other.gguf"
            other.write_bytes(b"no model")
            other.rename(path)
        if not ends:
            assert_same(ask(server, prompt(20))[0], before)
            return
        with pytest.raises(OSError):
            ask(server, prompt(20))
        assert server.process.wait(60) != 0
        assert "was changed" in server.log.read_text()
