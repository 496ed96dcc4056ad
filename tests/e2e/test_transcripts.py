"""A hybrid in Qwen3-Next's shape, small and of random weights in f32: agents' transcripts in half the room that they would fill, and
perplexity token by token. bench/transcripts.py and bench/perplexity.py measure and judge; `make bench-hybrids` runs them at full size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coppice_process import binary, model_path

BENCH = Path(__file__).parents[2] / "bench"
# Each token goes to all experts. Of eight, two may score alike; then sums in another order choose another one, and answers differ for no fault.
SHAPE = ["--shape", "qwen3-next-80b-a3b", "--types", "f32", "--embd", "64", "--heads", "4", "--kv-heads", "2", "--head-size", "32",
         "--experts", "2", "--experts-used", "2", "--expert-ff", "32", "--states", "4", "--state-keys", "2", "--state-size", "32"]


def run(program, *arguments):
    """Its output; it ends with status 1 where its figures miss their bounds."""
    done = subprocess.run([sys.executable, BENCH / program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "hybrid.gguf"
    run("random_model.py", *SHAPE, "--vocabulary", model_path(), path)
    return path


def test_transcripts_come_from_half_the_room_and_say_what_is_said_without_sharing(model):
    found = json.loads(run("transcripts.py", "--coppice", binary(), "--model", model, "--threads", 1, "--kv-bytes", "256MiB",
                           "--sessions", 2, "--turns", 10, "--answer", 4, "--check-every", 1))
    assert found["requests"] == 2 * 5 + 2 * 3 * 5
    assert found["same_texts"] + found["ties"] == found["requests"]
    assert found["evictions"] > 0 and found["integrity_checks"] > 0
    assert found["cached_with_half"] > 0.9


def test_perplexity_token_by_token_is_that_in_one_go(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Tree {n} has {n * n % 97} leaves, and tree {n * 7 % 31} stands beside it." for n in range(60)) + "\n")
    assert "| hybrid | 255 |" in run("perplexity.py", "--coppice", binary(), "--text", text, "--single-windows", 1, "--threads", 1, model)
