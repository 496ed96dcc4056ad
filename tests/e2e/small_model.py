"""Random weights of a few MB with a real model's vocabulary."""

import subprocess
import sys
from pathlib import Path

from coppice_process import model_path

WRITER = Path(__file__).resolve().parents[2] / "bench/random_model.py"


def write_small(folder: Path, layers=2, context=512) -> Path:
    path = folder / "small.gguf"
    shape = ["--types", "q8_0", "--embd", "64", "--ff", "64", "--layers", str(layers), "--heads", "2", "--kv-heads", "1", "--head-size", "32",
             "--context", str(context)]
    subprocess.run([sys.executable, WRITER, *shape, "--vocabulary", model_path(), path], check=True, timeout=60)
    return path
