"""`coppice pull` where connections break, hubs are busy or away, and other bytes come than were wanted (hubs.py)."""

import fcntl
import hashlib
import random
import re
import socket
import threading
import time

import pytest

from hubs import CERTIFICATE, GGUF, SEED, WOOD, large_ones, sha256


@pytest.mark.parametrize("name", ["hf:alice/Wood-GGUF/Wood-Q4_0.gguf", "oak:1b"])
def test_what_breaks_off_goes_on_where_it_was(machine, hubs, name):
    hubs.cut = [1 << 20, 1 << 20]
    said = machine.pull(name)
    assert said.returncode == 0 and said.stderr.count(f"The connection to {hubs.store[7:]} broke off. Again in 0.5 s.") == 2
    ranges = [fields["range"] for fields in large_ones(hubs) if "range" in fields]
    assert ranges == [f"bytes={1 << 20}-", f"bytes={2 << 20}-"]


def test_pauses_do_not_grow_while_something_comes(machine, hubs):
    hubs.cut = [500_000] * 4
    said = machine.pull(WOOD)
    assert said.returncode == 0
    assert re.findall(r"Again in (.*) s\.", said.stderr) == ["0.5"] * 4


@pytest.mark.parametrize(("name", "what"), [(WOOD, "alice/Wood-GGUF/Wood-Q4_0.gguf"), ("hf:alice/Wood-GGUF", "alice/Wood-GGUF"), ("oak:1b", "oak:1b")])
def test_a_busy_hub_is_asked_again(machine, hubs, name, what):
    hubs.first = [("hub", 429, {"Retry-After": "1"}, b""), ("hub", 503, {}, b"")]
    said = machine.pull(name)
    assert said.returncode == 0
    assert re.findall(rf"answers (\d+) for {what}\. Again in (.*) s\.", said.stderr) == [("429", "1"), ("503", "1")]
    hubs.first = [("hub", 501, {}, b"")]
    machine.refused(name, says=["answers 501"])


@pytest.mark.parametrize("name", [WOOD, "hf:alice/Wood-GGUF", "oak:1b"])
def test_a_question_whose_connection_breaks_is_asked_again(machine, hubs, name):
    hubs.resets = [("hub", "")] * 2
    said = machine.pull(name)
    assert said.returncode == 0, said.stderr
    assert re.findall(rf"The connection to {hubs.hub[7:]} broke off.* Again in (.*) s\.", said.stderr) == ["0.5", "1"]
    assert "reset by peer" in said.stderr


def test_a_question_whose_connection_breaks_is_not_asked_forever(machine, hubs):
    hubs.resets = [("hub", "")] * 9
    said = machine.refused(WOOD, says=["broke off"])
    assert said.count("Again in") == 4 and len(hubs.asked) == 5
    assert "HTTPS_PROXY" not in said  # the way to it is open


def test_a_reset_between_parts_does_not_end_it(machine, hubs):
    parts = [f"Big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hubs.files["bob/Big"] = {name: name.encode() for name in parts}
    hubs.resets = [("hub", parts[1]), ("store", sha256(parts[1].encode()))]
    said = machine.pull("hf:bob/Big")
    assert said.returncode == 0 and said.stderr.count("broke off") == 2 and hubs.resets == []
    for name in parts:
        assert (machine.hub / "models--bob--Big/blobs" / sha256(name.encode())).exists()


def test_a_network_that_goes_away_for_a_while(machine, hubs):
    """The store is not there at first; the hub has answered, so there is a network."""
    store, hubs.store = hubs.store, "http://127.0.0.1:1"

    def comes_back():
        while len(hubs.asked) < 3:  # with the first question, and the first download
            time.sleep(0.01)
        hubs.store = store

    threading.Thread(target=comes_back, daemon=True).start()
    said = machine.pull(WOOD)
    assert said.returncode == 0 and "127.0.0.1:1 can't be asked: Connection refused. Again in 0.5 s." in said.stderr


def test_a_stores_url_that_has_expired_is_asked_for_anew(machine, hubs):
    hubs.cut = [1 << 20]
    hubs.first = [("store", 403, {}, b"<Code>AccessDenied</Code>")]
    said = machine.pull(WOOD)
    assert said.returncode == 0 and "answers 403 for Wood-Q4_0.gguf. Again in 0.5 s." in said.stderr
    assert len([path for server, method, path, _ in hubs.asked if server == "hub" and method == "GET"]) == 3


def test_a_page_in_place_of_the_file_is_not_kept(machine, hubs):
    """As where one must log in to the network."""
    part = machine.hub / f"models--alice--Wood-GGUF/blobs/{sha256(GGUF)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(GGUF[:12345])
    hubs.first = [("store", 200, {"Content-Type": "text/html"}, b"<html>log in")]
    machine.refused(WOOD, says=["something else than Wood-Q4_0.gguf: 12 bytes, text/html"])
    assert part.read_bytes() == GGUF[:12345]
    machine.pulled(WOOD)


def test_another_call_goes_on_where_the_last_one_was(machine, hubs):
    part = machine.hub / f"models--alice--Wood-GGUF/blobs/{sha256(GGUF)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(GGUF[:12345])
    machine.pulled("hf:alice/Wood-GGUF/Wood-Q4_0.gguf")
    assert [fields["range"] for fields in large_ones(hubs)] == ["bytes=12345-"]
    assert not part.exists()


def test_a_store_without_ranges_begins_anew(machine, hubs):
    hubs.plain_store = True
    hubs.cut = [1 << 20]
    path = machine.pulled("hf:alice/Wood-GGUF/Wood-Q4_0.gguf")
    assert hashlib.sha256(open(path, "rb").read()).hexdigest() == sha256(GGUF)


@pytest.mark.parametrize("name", ["hf:alice/Wood-GGUF/Wood-Q4_0.gguf", "oak:1b"])
def test_wrong_bytes_are_thrown_away(machine, hubs, name):
    hubs.damage = True
    machine.refused(name, says=["SHA-256", "thrown away"])
    assert not [file for file in machine.home.rglob("*") if file.is_file()]
    assert "no models" in machine.run("models").stdout
    hubs.damage = False
    machine.pulled(name)


def test_a_beginning_that_is_another_files_is_found_out(machine, hubs):
    part = machine.hub / f"models--alice--Wood-GGUF/blobs/{sha256(GGUF)}.incomplete"
    part.parent.mkdir(parents=True)
    for noise in (random.Random(SEED + 1).randbytes(2 << 20), GGUF[1:] + b"!"):  # the second is as long as it is whole
        part.write_bytes(noise)
        hubs.asked.clear()
        said = machine.pull(WOOD)
        assert said.returncode == 0 and "what an earlier call left of it is thrown away" in said.stderr
        assert "Wood-Q4_0.gguf: 3 MiB of 3 MiB" in said.stderr.splitlines()[-1]  # the second progress is shown, too
        assert [fields.get("range") for fields in large_ones(hubs)] == ([f"bytes={2 << 20}-"] if len(noise) < len(GGUF) else []) + [None]
        (machine.hub / f"models--alice--Wood-GGUF/blobs/{sha256(GGUF)}").unlink()
    part.write_bytes(noise)
    hubs.damage = True
    hubs.asked.clear()
    said = machine.refused(WOOD, says=["is thrown away, and it is fetched from the beginning.", "came with SHA-256"])
    assert len(large_ones(hubs)) == 1 and not part.exists()  # anew once only


def test_two_at_once_are_one_too_many(machine):
    part = machine.hub / f"models--alice--Wood-GGUF/blobs/{sha256(GGUF)}.incomplete"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        machine.refused("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", says=["Another program fetches Wood-Q4_0.gguf"])


def test_a_hub_that_cannot_be_reached(machine):
    """The error says what there is to do."""
    hints = ["HTTPS_PROXY", "serve --model FILE"]
    said = machine.refused("oak:1b", says=["127.0.0.1:1 can't be asked: ", *hints], COPPICE_OLLAMA_REGISTRY="http://127.0.0.1:1")
    said += machine.refused("hf:alice/Wood-GGUF", says=["hub.invalid can't be asked: ", *hints], HF_ENDPOINT="https://hub.invalid", SSL_CERT_FILE=str(CERTIFICATE))
    assert "Again in" not in said  # the name may be wrong: nobody waits to hear of it
    said = machine.refused("hf:alice/Wood-GGUF", says=["hub.invalid can't be asked through the proxy 127.0.0.1:1: "], HF_ENDPOINT="https://hub.invalid",
                           HTTPS_PROXY="http://127.0.0.1:1", SSL_CERT_FILE=str(CERTIFICATE))
    assert "HTTPS_PROXY" not in said  # it is there already
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and closes them
        threading.Thread(target=lambda: [server.accept()[0].close() for _ in range(5)]).start()
        said = machine.refused("oak:1b", says=["broke off"], COPPICE_OLLAMA_REGISTRY=f"http://127.0.0.1:{server.getsockname()[1]}")
    assert "HTTPS_PROXY" not in said  # the way to it is open
