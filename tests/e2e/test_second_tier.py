"""`--kv-dir`: what one server computed, the next one starts on; and whatever happened to the files, every text is right."""

import json
import os
import random
import signal
import stat
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from coppice_process import Coppice, free_port
from same_text import assert_same
from second_tier import ask, metric, prompt, start_with_store


def start(folder: Path, *arguments: str, model=None) -> Coppice:
    return start_with_store("--kv-dir", str(folder), "--kv-dir-bytes", "1GiB", "--kv-dir-free", "0", *arguments, model=model)


def end(server: Coppice):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0, server.log.read_text()


def pieces(folder: Path) -> list[Path]:
    return [file for file in (folder / "kv").rglob("*") if file.is_file()]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kv cache"


@pytest.mark.parametrize("model", ["COPPICE_MODEL", "COPPICE_GEMMA3"])
def test_a_restarted_server_starts_on_what_the_last_one_had(folder, model):
    text = prompt(500)
    model = os.environ[model]
    with start(folder, model=model) as server:
        first, usage, _ = ask(server, text)
        assert usage["cached"] == 0
        end(server)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert pieces(folder) and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in pieces(folder))

    with start(folder, "--kv-bytes", "300MiB", "--ctx", "1500", model=model) as server:
        again, usage, answer = ask(server, text, cache_report=True)
        assert_same(again, first)
        assert usage["cached"] >= usage["prompt"] - 33, usage
        report = answer["cache_report"]
        assert report["loaded_tokens"] == usage["cached"] and report["loaded_seconds"] > 0, report
        assert server.stats()["tokens"]["loaded"] == usage["cached"]
        assert metric(server, "coppice_kv_store_loaded_tokens_total") == usage["cached"]
        # In the pool by now.
        _, usage, answer = ask(server, text, cache_report=True)
        assert usage["cached"] == usage["prompt"] - 1 and "loaded_tokens" not in answer["cache_report"]
        end(server)


def test_others_find_nothing(folder):
    text = prompt(200)
    with start(folder) as server:
        ask(server, text, cache_salt="a")
        end(server)
    with start(folder) as server:
        assert ask(server, text)[1]["cached"] == 0
        assert ask(server, text, cache_salt="b")[1]["cached"] == 0
        assert ask(server, text, cache_salt="a")[1]["cached"] > 0
    with start(folder, "--kv-format", "int8") as server:
        assert ask(server, text, cache_salt="a")[1]["cached"] == 0


@pytest.mark.parametrize("told", [False, True])
def test_salts_are_written_only_where_routers_are_told(folder, told):
    events = ["--kv-events", f"tcp://127.0.0.1:{free_port()}"] if told else []
    with start(folder, *events) as server:
        ask(server, prompt(200), cache_salt="tenants-secret")
        end(server)
    assert pieces(folder) and told == any(b"tenants-secret" in file.read_bytes() for file in pieces(folder))


def test_a_reset_ends_what_is_stored(folder):
    text = prompt(200)
    with start(folder) as server:
        ask(server, text)
        ask(server, text)
        server.wait(lambda: len(pieces(folder)) > 3)
        server.post("/v1/cache/reset", {})
        server.wait(lambda: not pieces(folder))
        end(server)
    with start(folder) as server:
        assert ask(server, text)[1]["cached"] == 0


def test_a_reset_of_one_tier_leaves_the_others(folder):
    text = prompt(200)
    with start(folder) as server:
        for _ in range(2):
            ask(server, text)
        server.wait(lambda: len(pieces(folder)) > 3)
        assert server.post("/v1/cache/reset?tier=pool", {})["blocks"] > 0
        assert pieces(folder) and ask(server, text)[1]["cached"] > 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.post("/v1/cache/reset?tier=redis", {})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            server.post("/v1/cache/reset?tier=tape", {})
        assert server.post("/v1/cache/reset?tier=disk", {})["blocks"] == 0
        server.wait(lambda: not pieces(folder))
        assert ask(server, text)[1]["cached"] > 0


def test_a_revoked_key_takes_its_blocks_along(folder, tmp_path):
    text = prompt(200)
    keys = tmp_path / "keys"
    keys.write_text("sk-a\nsk-b\n")

    def cached(server, key) -> int:
        body = {"prompt": text, "max_tokens": 1, "cache_salt": "salt"}
        request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def disk(server) -> dict:
        request = urllib.request.Request(server.url + "/v1/cache/stats", headers={"Authorization": "Bearer sk-b"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["stores"].get("disk", {})

    def stored(server) -> int:
        """How many pieces there are, once no more come; else 0."""
        n = len(pieces(folder))
        time.sleep(0.5)
        return n if disk(server)["pending"] == 0 and len(pieces(folder)) == n else 0

    with Coppice("--kv-dir", str(folder), "--kv-dir-bytes", "1GiB", "--kv-dir-free", "0", "--kv-bytes", "400MiB", "--api-keys", str(keys),
                 "--isolate", "keys") as server:
        server.wait(lambda: disk(server).get("on"))
        counts = [0]
        for key in ("sk-a", "sk-b"):
            cached(server, key)
            assert cached(server, key) > 0
            counts.append(server.wait(lambda: (n := stored(server)) > counts[-1] and n))
        assert counts[2] == 2 * counts[1]
        keys.write_text("sk-b\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: len(pieces(folder)) == counts[1])
        end(server)
    keys.write_text("sk-a\nsk-b\n")
    with Coppice("--kv-dir", str(folder), "--kv-dir-bytes", "1GiB", "--kv-dir-free", "0", "--kv-bytes", "400MiB", "--api-keys", str(keys),
                 "--isolate", "keys") as server:
        server.wait(lambda: disk(server).get("on"))
        assert cached(server, "sk-a") == 0 and cached(server, "sk-b") > 0


def test_damage_costs_time_and_no_word(folder):
    text = prompt(300)
    with start(folder) as server:
        first = ask(server, text)[0]
        end(server)
    dice = random.Random(1)
    for file in pieces(folder):
        data = bytearray(file.read_bytes())
        if dice.random() < 0.5:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        else:
            del data[dice.randrange(len(data)):]
        file.write_bytes(data)
    with start(folder) as server:
        again, usage, _ = ask(server, text)
        assert_same(again, first)
        assert usage["cached"] == 0
        assert metric(server, 'coppice_kv_store_pieces_total{tier="disk",event="damaged"}') > 0
        end(server)


def test_a_kill_at_any_moment_leaves_only_whole_blocks(folder):
    texts = [prompt(n) for n in (120, 240, 360)]
    with Coppice("--kv-bytes", "400MiB") as server:
        expected = [ask(server, text)[0] for text in texts]
    dice = random.Random(2)
    for _ in range(4):
        with start(folder) as server:
            for text, words in zip(texts, expected, strict=True):
                assert_same(ask(server, text)[0], words)
                assert_same(ask(server, text)[0], words)
            server.wait(lambda: dice.random() < 0.4)
            server.process.kill()
            server.process.wait()
    with start(folder) as server:
        for text, words in zip(texts, expected, strict=True):
            assert_same(ask(server, text)[0], words)
        assert metric(server, 'coppice_kv_store_pieces_total{tier="disk",event="damaged"}') == 0
        assert server.stats()["tokens"]["loaded"] > 0


def test_a_second_server_goes_on_without(folder):
    text = prompt(100)
    with start(folder) as first:
        words = ask(first, text)[0]
        with Coppice("--kv-dir", str(folder), "--kv-dir-free", "0", "--kv-bytes", "400MiB") as second:
            assert_same(ask(second, text)[0], words)
            second.wait(lambda: second.stats()["stores"].get("disk", {}).get("off_because"))
            assert not second.stats()["stores"]["disk"]["on"]
            end(second)
        end(first)


@pytest.mark.parametrize("sealed", [False, True])
def test_stored_responses_outlive_the_server(folder, tmp_path, sealed):
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    more = ("--kv-secret", str(secret)) if sealed else ()

    def respond(server, text, **fields) -> dict:
        return server.post("/v1/responses", {"input": text, "max_output_tokens": 4, "temperature": 0, **fields})

    with start(folder, *more) as server:
        first = respond(server, "The code word is hazel.")
        gone = respond(server, "A second turn.", previous_response_id=first["id"])
        last = respond(server, "A third turn.", previous_response_id=gone["id"])
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/responses/{gone['id']}", method="DELETE")).close()
        items = server.get(f"/v1/responses/{last['id']}/input_items")[1]
        end(server)
    kept = (folder / "responses").read_bytes()
    assert (b"hazel" in kept) is not sealed and stat.S_IMODE((folder / "responses").stat().st_mode) == 0o600
    with start(folder, *more) as server:
        server.wait(lambda: "2 stored responses are there again" in server.log.read_text())
        assert server.get(f"/v1/responses/{first['id']}")[1] == first
        assert server.get(f"/v1/responses/{gone['id']}")[0] == 404
        assert server.get(f"/v1/responses/{last['id']}/input_items")[1] == items
        further = respond(server, "And the fourth.", previous_response_id=last["id"])
        assert further["usage"]["input_tokens"] > last["usage"]["input_tokens"]
        assert not (folder / "responses").exists()
        end(server)
    with Coppice("--kv-bytes", "200MiB") as server:
        assert server.get(f"/v1/responses/{last['id']}")[0] == 404
