"""Clients that don't read: what is made for them stays inside the stated budget (docs/operations.md, Limits)."""

import json
import re
import socket
import urllib.request
from pathlib import Path

from coppice_process import Coppice

MIB = 1 << 20
REPLIES_MIB, QUEUE_MIB = 128, 256  # the budgets


def rss_mib(server: Coppice) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def send(server: Coppice, method: str, path: str, body: bytes = b"") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.port))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def unread(server: Coppice, path: str) -> socket.socket:
    """Asks, and reads the status only."""
    client = send(server, "GET", path)
    client.recv(12)
    return client


def nothing_prepares(server: Coppice) -> bool:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return "\ncoppice_num_requests_preparing 0\n" in answer.read().decode()


def test_sixty_sockets_that_do_not_read_a_stored_response():
    with Coppice("--threads", "1", "--kv-bytes", "64M") as server:
        junk = "x" * (14 * MIB)
        stored = server.post("/v1/responses", {"input": "Hi.", "max_output_tokens": 1, "text": {"junk": junk}})
        assert stored["store"] is True
        before = rss_mib(server)
        clients = [unread(server, f"/v1/responses/{stored['id']}") for _ in range(60)]
        # 128 MiB wait to be read; two replies may be on their way into that budget.
        assert rss_mib(server) - before < REPLIES_MIB + 2 * 14 + 16
        assert server.get("/health")[0] == 200
        for client in clients:
            client.close()


def test_a_queue_of_requests_whose_answers_repeat_much():
    with Coppice("--threads", "1", "--kv-bytes", "64M", "--max-batch", "1") as server:
        fields = {"input": "Count.", "store": False, "max_output_tokens": 8000, "ignore_eos": True}
        bodies = [json.dumps(fields | {"reasoning": {"junk": "x" * n}}).encode() for n in (1, 8 * MIB)]
        clients = [send(server, "POST", "/v1/responses", bodies[0])]
        before = rss_mib(server)
        clients += [send(server, "POST", "/v1/responses", bodies[1]) for _ in range(60)]
        server.wait(lambda: nothing_prepares(server))
        # 32 of them fit into the queue's memory; one is being parsed.
        assert rss_mib(server) - before < QUEUE_MIB + 6 * 8
        for client in clients:
            client.close()
