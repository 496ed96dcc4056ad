"""The container: the Containerfile's steps in a bare Debian, whose root nobody can write, served as its user."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from bare_debian import BareDebian, children_of, make_bare
from coppice_process import free_port

MODEL = Path(os.environ["COPPICE_MODEL"])
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def container():
    made = BareDebian(make_bare(Path(os.environ["COPPICE_DEBIANS"]) / "bookworm"), Path(os.environ["COPPICE_BARE"]) / "container")
    made.follow_containerfile(Path(os.environ["COPPICE_TARBALL"]))
    (made.root / "models").mkdir()
    shutil.copy(MODEL, made.root / "models")
    made.read_only = True
    made.environment |= {"LLAMA_ARG_HOST": "127.0.0.1", "LLAMA_ARG_PORT": str(free_port())}  # not for others on this machine
    yield made
    shutil.rmtree(made.root)


def healthy(container) -> bool:
    return subprocess.run(container.command(*container.health), stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_it_serves_without_root_and_writes_nothing(container):
    assert "Read-only" in container.run("sh", "-c", "touch /usr/x /var/cache/coppice/x", ok=False)
    assert not healthy(container)
    # Two threads and 64 MiB are for the test's sake; the rest is what the image says.
    process = subprocess.Popen(container.command(*container.entry, "serve", MODEL.stem, "--kv-bytes", "64MiB", "--threads", "2"))
    try:
        end = time.monotonic() + 180
        while not healthy(container):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        url = f"http://127.0.0.1:{container.environment['LLAMA_ARG_PORT']}/v1/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(CHAT).encode()), timeout=180) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] > 3
        status = Path(f"/proc/{children_of(process.pid)[0]}/status").read_text()
        assert "\nUid:\t65534\t65534\t65534\t65534\n" in status and "\nName:\tcoppice\n" in f"\n{status}"
    finally:
        container.end(process)
    assert not healthy(container)
