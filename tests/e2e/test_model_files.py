"""Model files that can't be used end the process before its port opens; split ones are served as whole ones."""

import socket
import subprocess
import sys

import pytest

from coppice_process import Coppice, binary
from gguf_edit import Gguf
from small_model import write_small


@pytest.fixture(scope="module")
def small_path(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("models"), layers=3)


@pytest.fixture(scope="module")
def small(small_path):
    return Gguf(small_path)


# Runs a command, and writes its peak of memory in KiB. A small process does it: a child counts what its parent has when it begins.
MEASURED = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""


def refused(path, *words):
    """One line says why, and the port isn't touched: it is taken, which would be another complaint. Little memory is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run([sys.executable, "-c", MEASURED, binary(), "serve", "--model", path, "--kv-bytes", "1GiB", "--port",
                               str(listener.getsockname()[1])], capture_output=True, text=True, timeout=60)
    said, max_kib = done.stderr, int(done.stdout)
    assert done.returncode == 1, said
    assert said.startswith("coppice: ") and said.endswith("\n") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert max_kib < 300 << 10
    return said


def test_no_gguf(tmp_path):
    page = tmp_path / "model.gguf"
    page.write_text("<html><body>Please sign in.</body></html>")
    refused(page, "model.gguf", "not a GGUF file", "begins with '<htm'", "was the download complete?")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off(tmp_path, small_path, kept):
    data = small_path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:int(kept * len(data))])
    refused(tmp_path / "cut.gguf", "cut.gguf", "truncated")


def test_an_unknown_architecture(tmp_path, small):
    other = small.changed()
    other.set("general.architecture", "mamba")
    refused(other.write(tmp_path / "mamba.gguf"), "'mamba'", "known: llama")


def test_tensors_that_are_missing_or_of_another_shape(tmp_path, small):
    name = "blk.1.ffn_up.weight"
    other = small.changed()
    del other.tensors[name]
    refused(other.write(tmp_path / "lacking.gguf"), "lacks the tensor " + name)
    other = small.changed()
    other.tensors[name][0] = [64, 32]
    refused(other.write(tmp_path / "shape.gguf"), f"tensor {name} has the shape [64, 32] where [64, 64] is needed")


@pytest.mark.parametrize("at, number", [(8, 1 << 60), (16, 1 << 60), (24, (1 << 64) - 8), (24, 1 << 33)])
def test_a_header_that_lies(tmp_path, small_path, at, number):
    data = bytearray(small_path.read_bytes())
    data[at:at + 8] = number.to_bytes(8, "little")  # of tensors, of metadata, bytes of the first key
    (tmp_path / "liar.gguf").write_bytes(data)
    refused(tmp_path / "liar.gguf", "liar.gguf", "damaged")


def test_a_vocabulary_that_does_not_fit(tmp_path, small):
    other = small.changed()
    shape, _, data = other.tensors["token_embd.weight"]
    shape[1] -= 100
    other.tensors["token_embd.weight"][2] = data[:len(data) // 49152 * shape[1]]
    refused(other.write(tmp_path / "words.gguf"), "49152 tokens in the vocabulary, 49052 in the embedding")
    other = small.changed()
    del other.facts["tokenizer.ggml.tokens"]
    refused(other.write(tmp_path / "speechless.gguf"), "speechless.gguf")


def greedy(server):
    body = {"prompt": list(range(1000, 1100)), "max_tokens": 48, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    return server.post("/v1/completions", body)["choices"][0]["logprobs"]


def test_a_split_model_says_what_the_whole_one_says(tmp_path, small, small_path):
    parts = small.split(tmp_path, "small", 4)
    answers = []
    for path in (small_path, parts[0]):
        with Coppice("--kv-bytes", "16MiB", "--threads", "1", model=path) as server:
            assert server.get("/v1/models")[1]["data"][0]["id"] == "small"
            answers.append(greedy(server))
    assert len(answers[0]["tokens"]) == 48
    assert answers[0] == answers[1]


def test_parts_that_are_wrong(tmp_path, small):
    parts = small.split(tmp_path, "small", 3)
    refused(parts[1], "small-00002-of-00003.gguf is part 2 of 3", "the first part")
    parts[1].rename(tmp_path / "kept")
    refused(parts[0], "part 2 of 3", "missing", "small-00002-of-00003.gguf")
    parts[1].write_bytes(parts[2].read_bytes())
    refused(parts[0], "small-00002-of-00003.gguf is part 3 of 3", "part 2 of 3 is needed")
    other = small.changed()
    del other.tensors["blk.2.ffn_down.weight"]
    parts[1].write_bytes(other.split(tmp_path, "other", 3)[1].read_bytes())
    refused(parts[0], "small-00002-of-00003.gguf is a part of another model")
