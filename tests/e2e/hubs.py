"""A stand-in for Hugging Face's hub and its store of large files, and for Ollama's registry, as they answer over HTTP; and a proxy."""

import contextlib
import hashlib
import http.server
import json
import os
import random
import socket
import ssl
import struct
import subprocess
import threading
import urllib.parse
from pathlib import Path

from coppice_process import binary

CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "localhost.pem"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
SEED = int(os.environ.get("COPPICE_SEED", "1"))
GGUF = b"GGUF" + random.Random(SEED).randbytes(3 << 20)
WHERE = ("COPPICE_MODELS", "COPPICE_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "XDG_CACHE_HOME", "OLLAMA_MODELS",
         "LLAMA_CACHE", "http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "no_proxy", "SSL_CERT_FILE",
         "SSL_CERT_DIR")
WOOD = "hf:alice/Wood-GGUF/Wood-Q4_0.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pump(source: socket.socket, target: socket.socket):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Hubs:
    """One address for the registries, another for the store: what is meant for one must not reach the other."""

    def __init__(self, tls=False):
        self.files = {}  # "OWNER/REPO": {file: bytes}
        self.private = {}  # "OWNER/REPO": the token that is wanted
        self.ollama = {}  # "library/NAME:TAG": [(kind, bytes)], the configuration last
        self.asked = []  # (server, method, path, fields)
        self.cut = []  # of each answer of the store, after how many bytes it breaks off
        self.damage = False
        self.plain_store = False  # one that knows no ranges
        self.first = []  # (server, status, fields, body) that the next requests get in place of an answer, in this order
        self.resets = []  # (server, a part of the path): the next such request gets no more than the connection's reset
        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler(kind)) for kind in ("hub", "store", "proxy")]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            for server in self.servers[:2]:
                server.socket = context.wrap_socket(server.socket, server_side=True)
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.hub, self.store, self.proxy = (f"http{'s' if tls and server is not self.servers[2] else ''}://127.0.0.1:{server.server_port}"
                                            for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.hub, "COPPICE_OLLAMA_REGISTRY": self.hub, "no_proxy": "127.0.0.1"}

    def blobs(self) -> dict[str, bytes]:
        layers = [data for layers in self.ollama.values() for _, data in layers]
        return {sha256(data): data for data in [*layers, *(data for files in self.files.values() for data in files.values())]}

    def handler(hubs, kind):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, status, fields=(), body=b""):
                self.send_response(status)
                for name, value in dict(fields).items():
                    self.send_header(name, value)
                if "Content-Length" not in dict(fields):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                hubs.asked.append((kind, self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
                if hubs.first and hubs.first[0][0] == kind:
                    return self.reply(*hubs.first.pop(0)[1:])
                for each in hubs.resets:
                    if each[0] == kind and each[1] in self.path:
                        hubs.resets.remove(each)
                        return self.reset()
                getattr(self, kind)()

            def reset(self):
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for stream in (self.rfile, self.connection):  # each holds it open
                    stream.close()

            do_HEAD = do_GET

            def do_CONNECT(self):
                hubs.asked.append((kind, self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
                host, _, port = self.path.rpartition(":")
                if host != "127.0.0.1":
                    return self.reply(502)
                self.send_response(200)
                self.end_headers()
                with socket.create_connection((host, int(port))) as server:
                    back = threading.Thread(target=pump, args=(server, self.connection))
                    back.start()
                    pump(self.connection, server)
                    back.join()
                self.close_connection = True

            def proxy(self):
                """Only says that it was asked, and by whose path."""
                self.reply(200, {"X-Proxied": "1"}, b"{}")

            def hub(self):
                path = urllib.parse.unquote(self.path)
                steps = [urllib.parse.unquote(step) for step in self.path.split("/")]  # a revision's slashes are %2F
                if path.startswith("/api/models/") and len(steps) == 7:
                    return self.list_files("/".join(steps[3:5]))
                if len(steps) > 5 and steps[3] == "resolve":
                    return self.resolve("/".join(steps[1:3]), "/".join(steps[5:]))
                if path.startswith("/v2/"):
                    return self.registry(steps)
                self.reply(404)

            def may(self, repo) -> bool:
                token = hubs.private.get(repo)
                if token is None or self.headers.get("Authorization") == f"Bearer {token}":
                    return True
                self.reply(401, {"X-Error-Code": "GatedRepo"}, b"Access is restricted")
                return False

            def list_files(self, repo):
                if repo not in hubs.files:
                    return self.reply(404, {"X-Error-Code": "RepoNotFound"})
                if self.may(repo):
                    self.reply(200, {"Content-Type": "application/json"},
                               json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name} for name in hubs.files[repo]]}).encode())

            def resolve(self, repo, file):
                if repo == "old/name":  # it was renamed
                    return self.reply(307, {"Location": self.path.replace("/old/name/", "/alice/Wood-GGUF/")})
                if file not in hubs.files.get(repo, {}):
                    return self.reply(404, {"X-Error-Code": "EntryNotFound"})
                if not self.may(repo):
                    return
                data = hubs.files[repo][file]
                self.reply(302, {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data)),
                                 "ETag": '"some-other-hash"', "Location": f"{hubs.store}/large/{sha256(data)}?signature=x%2By"})

            def registry(self, steps):
                space, name, what, which = steps[2:6]
                if what == "blobs":
                    return self.reply(307, {"Location": f"{hubs.store}/large/{which.removeprefix('sha256:')}"})
                layers = hubs.ollama.get(f"{space}/{name}:{which}")
                if layers is None or self.headers.get("Accept") != MANIFEST:
                    return self.reply(404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
                rows = [{"mediaType": kind, "digest": "sha256:" + sha256(data), "size": len(data)} for kind, data in layers]
                self.reply(200, {"Content-Type": MANIFEST},
                           json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": rows[-1], "layers": rows[:-1]}).encode())

            def store(self):
                data = hubs.blobs().get(self.path.split("/")[-1].split("?")[0])
                if data is None:
                    return self.reply(404)
                if hubs.damage:
                    data = bytes([data[0] ^ 1]) + data[1:]
                begin, status, fields = 0, 200, {}
                if (wanted := self.headers.get("Range")) and not hubs.plain_store:
                    begin, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
                    if begin >= len(data):
                        return self.reply(416, {"Content-Range": f"bytes */{len(data)}"})
                    fields["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                body = data[begin:]
                fields["Content-Length"] = str(len(body))
                cut = hubs.cut.pop(0) if hubs.cut else len(body)
                self.reply(status, fields, body[:cut])
                if cut < len(body):
                    self.close_connection = True

        return Handler


def with_models() -> Hubs:
    made = Hubs()
    made.files["alice/Wood-GGUF"] = {"README.md": b"wood", "Wood-Q4_0.gguf": GGUF, "mmproj-Wood.gguf": b"GGUFeyes"}
    made.ollama["library/oak:1b"] = [("application/vnd.ollama.image.license", b"free"), ("application/vnd.ollama.image.model", GGUF),
                                     ("application/vnd.docker.container.image.v1+json", b"{}")]
    return made


class Machine:
    def __init__(self, home, hubs):
        self.home = home
        self.environment = {name: value for name, value in os.environ.items() if name not in WHERE} | {"HOME": str(home)} | hubs.environment()
        self.hub = home / ".cache/huggingface/hub"
        self.ollama = home / ".ollama/models"

    def run(self, *words, **variables) -> subprocess.CompletedProcess:
        return subprocess.run([binary(), *words], env=self.environment | variables, capture_output=True, text=True, timeout=120)

    def pull(self, *words, **variables):
        return self.run("pull", *words, **variables)

    def pulled(self, *words, **variables) -> str:
        done = self.pull(*words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *words, says=(), **variables):
        done = self.pull(*words, **variables)
        assert done.returncode in (1, 2) and done.stdout == "", (done.stdout, done.stderr)
        for each in says:
            assert each in done.stderr, done.stderr
        return done.stderr


def large_ones(hubs) -> list[dict[str, str]]:
    """The fields of each request for a large file's bytes."""
    return [fields for server, _, _, fields in hubs.asked if server == "store"]
