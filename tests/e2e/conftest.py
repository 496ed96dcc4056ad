import itertools
import os

import openai
import pytest

from coppice_process import Coppice, assert_nothing_held
from hubs import Machine, with_models

_salts = itertools.count()

# Tests run on all cores at once (CMakeLists.txt), each with servers of its own. Threads that compute spin while they wait: more than
# one of a server would take the others' cores.
os.environ.setdefault("LLAMA_ARG_THREADS", "1")


@pytest.fixture(scope="session")
def shared_server():
    with Coppice("--kv-bytes", "256MiB", "--alias", "smol", "--drain-seconds", "1") as server:
        yield server
        assert server.end() == 0


@pytest.fixture
def server(shared_server):
    """The server that most tests share. After each test every block must have come back."""
    yield shared_server
    assert_nothing_held(shared_server.deserted_stats())


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture
def salt():
    """A namespace of the cache that no other test has been in."""
    return f"salt-{next(_salts)}"


@pytest.fixture
def hubs():
    made = with_models()
    yield made
    made.close()


@pytest.fixture
def machine(tmp_path, hubs):
    return Machine(tmp_path, hubs)
