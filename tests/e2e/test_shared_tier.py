"""`--kv-url`: what one server computed, another one starts on, through Debian's real redis-server; and whatever becomes of that, every text is right."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from coppice_process import Coppice, binary
from redis_server import Redis, Way
from same_text import assert_same
from second_tier import ask, metric, prompt, start_with_store


@pytest.fixture
def redis():
    with Redis() as server:
        yield server


def secret_in(folder: Path, text: str) -> str:
    file = folder / f"secret-{text[0]}"
    file.touch(mode=0o600)
    file.write_text(text + "\n")
    return str(file)


@pytest.fixture
def secret(tmp_path):
    return secret_in(tmp_path, "s" * 32)


def size_of(redis: Redis) -> int:
    return int(redis.ask("DBSIZE").removeprefix(":"))


def redis_of(server: Coppice) -> dict:
    return server.stats()["stores"].get("redis", {})


def start(url: str, *arguments: str) -> Coppice:
    return start_with_store("--kv-url", url, *arguments)


def fill(redis: Redis, text: str, *arguments: str) -> dict:
    """A server computes a text, uses it again, and so stores it. Returns what it said."""
    with start(redis.url, *arguments) as server:
        first, usage, _ = ask(server, text)
        ask(server, text)
        server.wait(lambda: size_of(redis) >= usage["prompt"] // 32)
        return first


def test_another_server_starts_on_what_one_computed(redis, secret):
    text = prompt(3500)
    first = fill(redis, text, "--kv-secret", secret)
    with start(redis.url, "--kv-secret", secret) as server:
        again, usage, answer = ask(server, text, cache_report=True)
        assert_same(again, first)
        assert usage["prompt"] >= 4000 and usage["cached"] >= 0.95 * usage["prompt"], usage
        assert answer["cache_report"]["loaded_tokens"] == usage["cached"], answer
        assert server.end() == 0


def test_a_server_that_is_killed_in_the_middle_of_a_load_costs_a_miss(redis, secret):
    text = prompt(900)
    first = fill(redis, text, "--kv-secret", secret)
    way = Way(redis.port, 5 << 20, redis.kill)
    with start(f"redis://127.0.0.1:{way.port}", "--kv-secret", secret) as server:
        again, usage, _ = ask(server, text)
        assert_same(again, first)
        assert usage["cached"] < usage["prompt"] - 64, usage
        assert way.then is None and redis.process.poll() is not None
        assert metric(server, 'coppice_kv_store_requests_total{outcome="cut"}') == 1
        server.wait(lambda: not redis_of(server)["on"])
        assert_same(ask(server, text)[0], first)
        assert_same(ask(server, text, cache_salt="new")[0], first)
        assert server.end() == 0


def test_what_is_cached_is_stored_within_the_time_to_drain(redis, secret):
    """Beside a request that would go on longer; and also if that takes longer than the end of a server without a cache."""
    text = prompt(500)
    way = Way(redis.port, sent_per_second=4 << 20)
    for seconds, stored in ((60, 1.0), (3, 0.2)):
        redis.ask("FLUSHALL")
        with start(f"redis://127.0.0.1:{way.port}", "--kv-secret", secret, "--drain-seconds", str(seconds)) as server:
            n = ask(server, text)[1]["prompt"] // 32
            if seconds == 3:
                body = {"prompt": "Once", "max_tokens": 7000, "ignore_eos": True}
                threading.Thread(target=lambda server=server, body=body: pytest.raises(Exception, server.post, "/v1/completions", body),
                                 daemon=True).start()
                server.wait(lambda: server.stats()["requests"]["running"] == 1)
            begun = time.monotonic()
            assert server.end() == 0
            took = time.monotonic() - begun
        kept = size_of(redis)
        assert took < (50 if seconds == 60 else 30) and kept >= stored * n, (took, kept, n)


def test_another_secret_finds_nothing(redis, secret, tmp_path):
    text = prompt(200)
    first = fill(redis, text, "--kv-secret", secret)
    assert size_of(redis) > 4
    for arguments in (("--kv-secret", secret_in(tmp_path, "other" * 8)), ("--kv-trust-store",)):
        with start(redis.url, *arguments) as server:
            again, usage, _ = ask(server, text)
            assert_same(again, first)
            assert usage["cached"] == 0 and metric(server, 'coppice_kv_store_pieces_total{tier="redis",event="damaged"}') == 0


def test_a_cluster_is_refused_in_words(secret):
    with Redis("--cluster-enabled", "yes") as redis, Coppice("--kv-url", redis.url, "--kv-secret", secret, "--kv-bytes", "200MiB") as server:
        server.wait(lambda: "is a cluster: blocks are kept on single servers only" in server.log.read_text())
        server.wait(lambda: "is a cluster" in redis_of(server).get("off_because", ""))
        assert ask(server, prompt(50))[1]["cached"] == 0


def test_a_password_comes_from_a_file_or_the_environment(secret, tmp_path, monkeypatch):
    login = tmp_path / "login"
    login.touch(mode=0o600)
    login.write_text("coppice:word\n")
    acl = "coppice", "on", ">word", "~*", "+@all"
    with Redis("--user", *acl, "--user", "default", "off", "nopass") as redis:
        with Coppice("--kv-url", redis.url, "--kv-secret", secret, "--kv-bytes", "200MiB") as server:
            server.wait(lambda: "NOAUTH" in redis_of(server).get("off_because", ""))
        with start(redis.url, "--kv-secret", secret, "--kv-login", str(login)):
            pass
        monkeypatch.setenv("COPPICE_KV_LOGIN", "coppice:word")
        with start(redis.url, "--kv-secret", secret):
            pass


def test_a_folder_is_asked_first_and_redis_for_the_rest(redis, secret, tmp_path):
    text = prompt(300)
    both = ("--kv-secret", secret, "--kv-dir-bytes", "1GiB", "--kv-dir-free", "0", "--kv-dir")
    first = fill(redis, text, *both, str(tmp_path / "one"))
    with start(redis.url, *both, str(tmp_path / "two")) as server:  # the folder has nothing
        again, usage, _ = ask(server, text)
        assert_same(again, first)
        assert usage["cached"] >= usage["prompt"] - 33, usage
        assert server.end() == 0
    redis.kill()
    # What came from Redis was stored in the folder when the server ended.
    with Coppice("--kv-url", redis.url, "--kv-bytes", "400MiB", *both, str(tmp_path / "two")) as server:
        server.wait(lambda: server.stats()["stores"].get("disk", {"pieces": 0})["pieces"] > 0)
        server.wait(lambda: "can't be reached" in redis_of(server).get("off_because", ""))  # its thread may come later
        assert server.stats()["stores"]["disk"]["on"]
        again, usage, _ = ask(server, text)
        assert_same(again, first)
        assert usage["cached"] >= usage["prompt"] - 33, usage


@pytest.mark.parametrize(("arguments", "why"), [
    (["--kv-url", "redis://127.0.0.1"], "--kv-url needs --kv-secret FILE"),
    (["--kv-url", "http://127.0.0.1", "--kv-trust-store"], "must begin with redis:// or rediss://"),
    (["--kv-url", "redis://me:word@127.0.0.1", "--kv-trust-store"], "User and password don't belong in it"),
    (["--kv-secret", "good"], "neither is given"),
    (["--kv-dir", "x", "--kv-secret", "short"], "has 5 bytes, and needs 32"),
    (["--kv-dir", "x", "--kv-secret", "open"], "may be read or changed by others"),
    (["--kv-dir", "x", "--kv-secret", "nowhere"], "can't be read: No such file"),
    (["--kv-url", "redis://127.0.0.1", "--kv-trust-store", "--kv-login", "open"], "may be read or changed by others"),
])
def test_what_cannot_be_is_refused_before_the_model_is_loaded(arguments, why, tmp_path):
    for name, text, mode in (("good", "g" * 32, 0o640), ("short", "12345", 0o600), ("open", "o" * 32, 0o644)):
        (tmp_path / name).write_text(text)
        os.chmod(tmp_path / name, mode)
    ended = subprocess.run([binary(), "serve", "/nowhere.gguf", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == 1 and why in ended.stderr, ended.stderr
