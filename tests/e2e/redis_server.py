"""Debian's redis-server as a child process, and a way to it that breaks when it is told to."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from coppice_process import free_port

# The package redis-tools has the server's program under this name; it goes by its first argument. The package redis-server would also start one.
PROGRAM = Path(os.environ.get("COPPICE_REDIS", "/usr/bin/redis-check-rdb"))


class Redis:
    """Use as a context manager; leaving it ends the process."""

    def __init__(self, *options: str):
        assert PROGRAM.exists(), f"{PROGRAM} isn't there: apt-get install redis-tools, or name a redis-server in COPPICE_REDIS"
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="coppice-redis-")
        self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--save", "", "--dir", self.folder, *options],
                                        executable=PROGRAM, stdout=subprocess.DEVNULL)
        for _ in range(500):
            try:
                self.ask("PING")
                return
            except ConnectionError:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError("redis-server doesn't answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def ask(self, *words: str) -> str:
        """The first line of what it answers."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.makefile("rb").readline().decode().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Way:
    """Passes on what goes to and from a port, as fast as it may, until so many bytes came back from there. Then it does as it is told, and ends all."""

    def __init__(self, port: int, most_bytes: int = 1 << 60, then=lambda: None, sent_per_second: float = 0):
        self.to, self.left, self.then, self.rate = port, most_bytes, then, sent_per_second
        self.lock, self.open = threading.Lock(), []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self.open += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counts: bool):
        try:
            while data := source.recv(65536):
                if counts:
                    with self.lock:
                        self.left -= len(data)
                        if self.left < 0:
                            break
                elif self.rate:
                    with self.lock:
                        time.sleep(len(data) / self.rate)
                target.sendall(data)
            else:
                return
        except OSError:
            return
        self.end()

    def end(self):
        with self.lock:
            then, self.then = self.then, None
        if then is None:
            return
        then()
        self.listener.close()
        for connection in self.open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
