import asyncio
import os
import pathlib
import sys

import pytest

for folder in ("e2e", "fixtures"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))
from coppice_process import Coppice, assert_nothing_held, model_path  # noqa: E402

# What the libraries would fetch by themselves: prices, models, data.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def pytest_addoption(parser):
    parser.addoption("--load-seconds", type=int, default=60, help="for how long each load generator sends chats")


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


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A folder with the model's tokenizer as Hugging Face's libraries read it, made from the GGUF file."""
    from smollm_tokenizer import Vocabulary
    from transformers import PreTrainedTokenizerFast

    vocabulary = Vocabulary(model_path())
    first, last = (vocabulary.tokens[vocabulary.field(f"tokenizer.ggml.{end}_token_id")] for end in ("bos", "eos"))
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=vocabulary.tokenizer(True), bos_token=first, eos_token=last, pad_token=last,
                            chat_template=vocabulary.field("tokenizer.chat_template")).save_pretrained(folder)
    return folder
