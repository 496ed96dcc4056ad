"""Clients that don't read: what is made for them stays inside the stated budget (docs/operations.md, Limits)."""

import json
import re
import socket
from pathlib import Path

from coppice_process import Coppice

MIB = 1 << 20
REPLIES_MIB, BODIES_MIB, REQUESTS_MIB = 128, 64, 256  # the budgets


def rss_mib(server: Coppice) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def unread(server: Coppice, method: str, path: str, body: bytes = b"") -> socket.socket:
    """Sends a request and reads its status only."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.port))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    client.recv(12)
    return client


def test_sixty_sockets_that_do_not_read_a_stored_response():
    with Coppice("--threads", "1", "--kv-bytes", "64M") as server:
        junk = "x" * (14 * MIB)
        stored = server.post("/v1/responses", {"input": "Hi.", "max_output_tokens": 1, "text": {"junk": junk}})
        assert stored["store"] is True
        before = rss_mib(server)
        clients = [unread(server, "GET", f"/v1/responses/{stored['id']}") for _ in range(60)]
        # 128 MiB wait to be read; two replies may be on their way into that budget.
        assert rss_mib(server) - before < REPLIES_MIB + 2 * 14 + 16
        assert server.get("/health")[0] == 200
        for client in clients:
            client.close()


def test_sixty_streams_that_repeat_a_large_request_and_are_not_read():
    with Coppice("--threads", "1", "--kv-bytes", "64M") as server:
        body = json.dumps({"input": "Count.", "stream": True, "store": False, "max_output_tokens": 16,
                           "reasoning": {"junk": "x" * (8 * MIB)}}).encode()
        before = rss_mib(server)
        clients = [unread(server, "POST", "/v1/responses", body) for _ in range(60)]
        # Besides the budgets: what the request in hand takes while it is parsed, and a stream's first events.
        assert rss_mib(server) - before < REPLIES_MIB + BODIES_MIB + REQUESTS_MIB + 6 * 8
        assert server.get("/health")[0] == 200
        for client in clients:
            client.close()
