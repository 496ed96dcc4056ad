"""bench/structured.py with a grammar_bench that says what it is told to."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def judged(tmp_path, texts):
    """texts: (bytes between the quotes of a JSON string, whether it ended)."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.json").write_text('{"type": "string"}')
    row = {"name": "a.json", "walk_us": 1, "compile_us": 1, "mask_us": [1], "accept_us": [1]}
    written = b",".join(b'{"text": "' + text + b'", "ended": %s, "stuck": false}' % json.dumps(ended).encode() for text, ended in texts)
    (tmp_path / "said").write_bytes(json.dumps(row).encode()[:-1] + b', "texts": [' + written + b"]}\n")
    program = tmp_path / "grammar_bench"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\ncat '{tmp_path}/said'\n")
    program.chmod(0o755)
    return subprocess.run([sys.executable, BENCH / "structured.py", program, "model", tmp_path / "schemas"], capture_output=True, text=True)


def test_texts_may_stop_within_a_character_and_hold_any_lines_end(tmp_path):
    done = judged(tmp_path, [(b'\\"caf\xc3', False), ('\\"one\u2028two\x85three\\"'.encode(), True)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2, 1 ended, 0 of these are not valid" in done.stdout


def test_a_text_that_ended_is_utf8(tmp_path):
    done = judged(tmp_path, [(b'\\"caf\xc3\\"', True)])
    assert done.returncode == 1 and "not JSON in UTF-8" in done.stdout, done.stdout + done.stderr
