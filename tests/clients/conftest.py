import asyncio
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coppice_process import Coppice, assert_nothing_held  # noqa: E402

# What the libraries would fetch by themselves: prices.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@pytest.fixture(scope="session")
def server():
    """One server for all clients, at whose end nothing may be held."""
    with Coppice("--kv-bytes", "256MiB", "--alias", "smol", "--drain-seconds", "1") as coppice:
        yield coppice
        assert_nothing_held(coppice.idle_stats())
        assert coppice.end() == 0


@pytest.fixture
def url(server):
    return server.url + "/v1"


@pytest.fixture(scope="session")
def run():
    """Runs a coroutine. There is one loop for all tests: the libraries keep connections that belong to it."""
    with asyncio.Runner() as runner:
        yield runner.run
