"""Images that the server fetches from other servers: from whom, and how far it trusts them. They are this file's own, on this machine."""

import http.client
import http.server
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from coppice_process import TIMEOUT_S, Coppice
from vision_model import image_part, picture, words, write_model

OPTIONS = ["--kv-bytes", "16MiB", "--ctx", "512", "--block-size", "8", "--max-body", "1MiB"]
HOSTS = Path("/etc/hosts")
needs_localhost = pytest.mark.skipif(not HOSTS.exists() or "localhost" not in HOSTS.read_text(), reason="this machine has no name for itself")
# Made by: openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=localhost
#          -addext subjectAltName=DNS:localhost,IP:127.0.0.1
CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "localhost.pem"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Host"]))
        url = urlsplit(self.path)
        what = url.path.split("/")[1]
        getattr(self, what)(**{name: unquote(values[0]) for name, values in parse_qs(url.query).items()})

    def reply(self, body=b"", status=200, **fields):
        self.send_response(status)
        for name, value in ({"Content_Length": len(body)} | fields).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def picture(self, seed="fetched"):
        self.reply(picture(seed))

    def six(self, seed):
        """Each comes once all six are asked for."""
        self.server.six.wait(TIMEOUT_S)
        self.picture(seed)

    def held(self, seed):
        self.server.let_go.wait(TIMEOUT_S)
        self.picture(seed)

    def to(self, url):
        self.reply(status=302, Location=url)

    def again(self, n="0"):
        self.to(f"/again?n={int(n) + 1}")

    def nowhere(self):
        self.reply(status=302)

    def page(self):
        self.reply(b"<html>")

    def missing(self):
        self.reply(b"no", 404)

    def short(self):
        self.reply(b"\x89PNG", Content_Length=1000)
        self.close_connection = True

    def packed(self):
        self.reply(b"x", Content_Encoding="gzip")

    def endless(self):
        self.reply(Content_Length=1 << 40)
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            self.close_connection = True

    def drops(self, left=""):
        """A byte now and then: a limit on silence would never end it."""
        self.reply(Content_Length=100_000)
        try:
            while True:
                self.wfile.write(b"x")
                time.sleep(0.1)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Media:
    def __init__(self, tls=False, address="127.0.0.1"):
        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.server.daemon_threads = True
        self.server.seen = []
        self.server.six = threading.Barrier(6)
        self.server.let_go = threading.Event()  # what is held
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "https" if tls else "http"
        self.thread = threading.Thread(target=self.server.serve_forever)

    @contextmanager
    def holding(self):
        """What is held comes behind it."""
        self.server.let_go.clear()
        try:
            yield
        finally:
            self.server.let_go.set()

    def wait_for(self, n, what):
        """Until so many are asked for whose path begins so."""
        end = time.monotonic() + TIMEOUT_S
        while sum(path.startswith(what) for path, _ in self.server.seen) < n:
            assert time.monotonic() < end, self.server.seen
            time.sleep(0.02)

    def url(self, path, host="127.0.0.1"):
        return f"{self.scheme}://{host}:{self.server.server_port}{path}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def media():
    with Media() as server:
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model("gemma3", tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def server(model):
    with Coppice(*OPTIONS, "--allow-media-from", "127.0.0.1", "--media-timeout", str(TIMEOUT_S), model=model) as process:
        yield process


@pytest.fixture(scope="module")
def impatient(model):
    with Coppice(*OPTIONS, "--allow-media-from", "127.0.0.1", "--media-timeout", "1", model=model) as process:
        yield process


def text(string):
    return {"type": "text", "text": string}


def remote(url):
    return {"type": "image_url", "image_url": {"url": url}}


def ask(server, *parts, **more):
    body = {"messages": [{"role": "user", "content": [*parts, text(words(30))]}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/chat/completions", body | more)


def refused(server, *parts, **more):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, *parts, **more)
    error = json.loads(caught.value.read())["error"]
    assert caught.value.code == 400, error
    return error


def test_a_fetched_image_is_the_image(server, media):
    before = len(media.server.seen)
    sent = ask(server, image_part(picture("fetched")))
    fetched = ask(server, remote(media.url("/picture")))
    assert fetched["choices"][0]["message"] == sent["choices"][0]["message"]
    assert fetched["usage"]["prompt_tokens"] == sent["usage"]["prompt_tokens"]
    assert fetched["usage"]["prompt_tokens_details"]["cached_tokens"] == sent["usage"]["prompt_tokens"] - 1
    assert media.server.seen[before:] == [("/picture", f"127.0.0.1:{media.server.server_port}")]


def test_all_apis_fetch(server, media):
    url = media.url("/picture")
    n = ask(server, image_part(picture("fetched")))["usage"]["prompt_tokens"]
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": words(30)}]
    asked = {"input": [{"role": "user", "content": content}]}
    response = server.post("/v1/responses", asked | {"max_output_tokens": 4})
    assert response["usage"]["input_tokens"] == n
    assert server.post("/v1/responses/input_tokens", asked)["input_tokens"] == n
    later = server.post("/v1/responses", {"input": words(31), "previous_response_id": response["id"], "max_output_tokens": 4})
    assert later["usage"]["input_tokens"] > n
    blocks = [{"type": "image", "source": {"type": "url", "url": url}}, text(words(30))]
    messages = {"messages": [{"role": "user", "content": blocks}]}
    assert server.post("/v1/messages/count_tokens", messages)["input_tokens"] == n
    message = server.post("/v1/messages", messages | {"max_tokens": 4})["usage"]
    assert message["input_tokens"] + message["cache_read_input_tokens"] + message["cache_creation_input_tokens"] == n
    chat = {"messages": [{"role": "user", "content": [remote(url), text(words(30))]}]}
    assert server.post("/v1/chat/completions/input_tokens", chat)["input_tokens"] == n
    assert server.post("/tokenize", chat)["count"] == n
    assert server.post("/apply-template", chat)["prompt"].endswith("<__media__>" + words(30))


def test_many_images_come_at_once_and_each_once(server, media):
    before = len(media.server.seen)
    answer = ask(server, *[remote(media.url(f"/six?seed={i % 6}")) for i in range(12)])
    assert len(media.server.seen) - before == 6
    assert answer["usage"]["prompt_tokens"] == ask(server, *[image_part(picture(str(i % 6))) for i in range(12)])["usage"]["prompt_tokens"]


@needs_localhost
def test_redirections_are_followed_some_times_and_only_to_where_urls_may_lead(server, media):
    def to(url):
        return remote(media.url("/to?url=" + url.replace("&", "%26")))

    ask(server, image_part(picture("fetched")))
    fetched = ask(server, to(media.url("/picture")))
    assert fetched["usage"]["prompt_tokens_details"]["cached_tokens"] == fetched["usage"]["prompt_tokens"] - 1
    assert "redirected more than 3 times" in refused(server, remote(media.url("/again")))["message"]
    before = len(media.server.seen)
    for url in (media.url("/picture", "127.0.0.2"), media.url("/picture", "localhost"), media.url("/picture", "[::ffff:127.0.0.2]"),
                media.url("/picture", "0x7f.2"), media.url("/picture", "2130706434"), "http://169.254.169.254/latest/meta-data/"):
        assert "--allow-media-from" in refused(server, to(url))["message"], url
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/a", "http://user@127.0.0.1/"):
        assert "redirected to where nothing is fetched from" in refused(server, to(url))["message"]
    assert {path.split("?")[0] for path, _ in media.server.seen[before:]} == {"/to"}
    assert "doesn't say to where" in refused(server, remote(media.url("/nowhere")))["message"]


@pytest.mark.parametrize("path, complaint", [
    ("/missing", "answers 404"), ("/page", "is no JPEG"), ("/packed", "encoding"), ("/short", "can't be fetched"), ("/endless", "too large"),
])
def test_what_another_server_does_is_an_error_of_that_image(server, media, path, complaint):
    error = refused(server, image_part(picture(1)), remote(media.url(path)))
    assert complaint in error["message"]
    assert error["param"] == "messages[0].content[1].image_url.url"


@pytest.mark.parametrize("path", ["/drops", "/held?seed=0"])
def test_what_takes_too_long_is_an_error_of_that_image(impatient, media, path):
    with media.holding():
        error = refused(impatient, image_part(picture(1)), remote(media.url(path)))
    assert "took too long" in error["message"] and error["param"] == "messages[0].content[1].image_url.url"


def test_nobody_who_listens_is_an_error(server):
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    assert "can't be fetched: Connection refused" in refused(server, remote(f"http://127.0.0.1:{port}/a.png"))["message"]


@needs_localhost
def test_names_lead_to_public_addresses_only(model, media):
    """All names are allowed, and localhost means an address that is not public."""
    with Coppice(*OPTIONS, "--allow-media-from", "*", model=model) as server:
        before = len(media.server.seen)
        assert "not public" in refused(server, remote(media.url("/picture", "localhost")))["message"]
        assert "not public" in refused(server, remote(media.url("/picture", "2130706433")))["message"]
        assert "--allow-media-from" in refused(server, remote(media.url("/picture")))["message"]
        assert len(media.server.seen) == before
    with Coppice(*OPTIONS, "--allow-media-from", "localhost,127.0.0.0/8,::1", model=model) as server:
        assert ask(server, remote(media.url("/picture", "localhost")))["usage"]["prompt_tokens"] > 16


def test_streams_go_on_while_another_server_is_silent(server, media):
    with ThreadPoolExecutor(8) as pool:
        with media.holding():
            waiting = [pool.submit(ask, server, remote(media.url(f"/held?seed=silent{i}"))) for i in range(8)]
            media.wait_for(4, "/held?seed=silent")
            ask(server, image_part(picture(2)))
            assert not any(one.done() for one in waiting)
        assert all(one.result()["usage"]["completion_tokens"] == 4 for one in waiting)


def test_a_client_that_leaves_ends_the_fetching(server, media):
    """Else four such requests would keep all others waiting for their images."""
    for i in range(4):
        body = json.dumps({"messages": [{"role": "user", "content": [remote(media.url(f"/drops?left={i}"))]}], "max_tokens": 1})
        leaves = http.client.HTTPConnection("127.0.0.1", server.port)
        leaves.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        media.wait_for(1, f"/drops?left={i}")
        leaves.close()
    ask(server, remote(media.url("/picture")))


def test_keys_that_fetch_slowly_keep_nobody_elses_image(model, media, tmp_path):
    """Two fill all places with what doesn't come until the victim's has come."""
    keys = tmp_path / "keys"
    keys.write_text("victim\none\ntwo\n")
    with Coppice(*OPTIONS, "--allow-media-from", "127.0.0.1", "--media-timeout", str(TIMEOUT_S), "--api-keys", str(keys), model=model) as server:
        def look(key, path):
            body = {"messages": [{"role": "user", "content": [remote(media.url(path))]}], "max_tokens": 1}
            request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return reply.status

        with ThreadPoolExecutor(16) as pool:
            with media.holding():
                slow = [pool.submit(look, key, f"/held?seed={key}{i}") for i in range(8) for key in ("one", "two")]
                media.wait_for(3, "/held?seed=one")  # a place is left to other keys
                media.wait_for(3, "/held?seed=two")
                assert look("victim", "/picture") == 200
                assert not any(one.done() for one in slow)
            assert {one.result() for one in slow} == {200}


@needs_localhost
def test_certificates_are_checked(model, monkeypatch):
    with Media(tls=True) as media, Media(tls=True, address="127.0.0.2") as other:
        with Coppice(*OPTIONS, "--allow-media-from", "localhost,127.0.0.0/8,::1", model=model) as server:
            assert "certificate verify failed" in refused(server, remote(media.url("/picture", "localhost")))["message"]
        monkeypatch.setitem(os.environ, "SSL_CERT_FILE", str(CERTIFICATE))
        with Coppice(*OPTIONS, "--allow-media-from", "localhost,127.0.0.0/8,::1", model=model) as server:
            for host in ("localhost", "127.0.0.1"):
                assert ask(server, remote(media.url("/picture", host)))["usage"]["prompt_tokens"] > 16
            assert "certificate verify failed" in refused(server, remote(other.url("/picture", "127.0.0.2")))["message"]
            plain = media.url("/picture").replace("https", "http", 1)
            assert "redirected to where nothing" in refused(server, remote(media.url("/to?url=" + plain)))["message"]
