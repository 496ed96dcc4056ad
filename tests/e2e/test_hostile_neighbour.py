"""The test of the hostile neighbour (tests/soak/hostile.py) finds faults that are planted: without that, its passing says nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = Path(__file__).resolve().parents[1] / "soak" / "hostile.py"


def hostile(tmp_path, *options):
    done = subprocess.run([sys.executable, HOSTILE, "--quiet", "1", "--seed", "1", "--out", tmp_path, *options], capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options, finding", [
    (("--plant", "crash", "--seconds", "3"), "the process ended with status -11"),
    (("--plant", "stall", "--seconds", "3"), "a short chat took"),
    (("--budget-mib", "-100000", "--seconds", "1"), "too much memory"),
    (("--plant", "bodies", "--seconds", "150"), "too much memory"),
    (("--plant", "steps", "--judge", "--seconds", "40"), "a short chat took|the 99th percentile"),
])
def test_a_planted_fault_is_found(tmp_path, options, finding):
    status, output = hostile(tmp_path, *options)
    assert status == 1 and re.search(f"FINDING ({finding})", output), output


def test_a_neighbour_with_pictures_is_served(tmp_path):
    """Once its words were not in the tiny model's vocabulary, and each of its chats was refused."""
    status, output = hostile(tmp_path, "--pictures", "--seconds", "2")
    assert status == 0 and " 0 short chats" not in output, output
