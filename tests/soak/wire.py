"""HTTP over a bare socket: what no client library would send, and what it would hide."""

import asyncio
import dataclasses
import json
import socket
import struct

READ_BYTES = 1 << 16


class Broken(Exception):
    """The server broke HTTP, or the connection ended in the middle of an answer."""


@dataclasses.dataclass
class Response:
    status: int
    headers: dict  # names in lower case
    body: bytes = b""

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Broken(f"status {self.status} with a body that is no JSON: {self.body[:200]!r}") from error


class Connection:
    """One connection to the server. An async context manager; leaving it closes the connection."""

    def __init__(self, port, receive_buffer=None):
        self._port, self._receive_buffer = port, receive_buffer
        self._reader = self._writer = None

    async def __aenter__(self):
        sock = socket.socket()
        if self._receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        except BaseException:
            sock.close()
            raise
        limit = 2048 if self._receive_buffer else READ_BYTES  # a slow reader must not read ahead
        self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=limit)
        return self

    async def __aexit__(self, *_):
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    def reset(self):
        """Leaves with a reset instead of a polite end."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def shut_sending(self):
        self._writer.write_eof()

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, n=READ_BYTES):
        """Some bytes; none when the server has closed the connection, politely or not."""
        try:
            return await self._reader.read(n)
        except OSError:
            return b""

    async def head(self):
        """Status and headers; the body is left to read."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Broken("the connection ended before an answer's head") from error
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        version, status, *_ = first.split(" ")
        if not version.startswith("HTTP/1."):
            raise Broken(f"not an HTTP answer: {first!r}")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Broken(f"a header line without a colon: {line!r}")
            headers[name.lower()] = value.strip()
        return Response(int(status), headers)

    async def pieces(self, response):
        """The parts of the body as they come, the chunked encoding undone."""
        try:
            if response.headers.get("transfer-encoding") == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield await self._reader.readexactly(size)
                    if await self._reader.readexactly(2) != b"\r\n":
                        raise Broken("a chunk is longer than it said")
                if await self._reader.readexactly(2) != b"\r\n":
                    raise Broken("the last chunk has a trailer")
            else:
                yield await self._reader.readexactly(int(response.headers["content-length"]))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Broken("the connection ended in the middle of an answer") from error

    async def response(self):
        response = await self.head()
        response.body = b"".join([piece async for piece in self.pieces(response)])
        return response


def request_bytes(method, path, body=b"", key=None, more="", padding=0):
    """padding: so many bytes come between head and body."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    length = f"Content-Length: {len(body) + padding}\r\n" if body or method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}{length}{more}\r\n".encode() + body


def post_bytes(path, body, key=None):
    """body: anything that JSON can say."""
    return request_bytes("POST", path, json.dumps(body).encode(), key, "Content-Type: application/json\r\n")


async def ask(port, method, path, body=None, key=None):
    """One request on a connection of its own."""
    async with Connection(port) as connection:
        await connection.send(post_bytes(path, body, key) if body is not None else request_bytes(method, path, key=key))
        return await connection.response()


def events_of(body):
    """The data of a whole stream of server-sent events, [DONE] included."""
    if not body.endswith(b"\n\n"):
        raise Broken("a stream ends in the middle of an event")
    data = []
    for event in body[:-2].split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b":"):  # a comment that keeps the stream open
                continue
            if not line.startswith(b"data: "):
                raise Broken(f"a line that is no event: {line[:200]!r}")
            data.append(line[6:])
    return data
