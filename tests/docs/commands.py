"""The fenced commands of a Markdown file, and how to run them in order.

Every ```sh and ```python block runs, unless the line before it is `<!-- not run: REASON -->`. Other languages are no
commands. What a reader would put in is put in here: the binary, the model, a free port. `make` targets are looked up
(make --dry-run), not run: they install packages and build.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from coppice_process import TIMEOUT_S, binary, free_port, model_path

REPO = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LANGUAGES = ("sh", "python")

# A command that fails ends its block. An HTTP error is a failure. make: the target exists, and so does its script.
PREAMBLE = """
set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body --max-time 120 "$@"; }
make() {
  local target=$1 script rest
  command make --no-print-directory --dry-run -C "$REPO" "$@" | while read -r script rest; do
    [[ -x $REPO/$script ]] || { echo "make $target runs $script, which isn't there" >&2; return 1; }
  done
}
"""


@dataclass
class Block:
    place: str  # file:line of the fence
    language: str
    text: str


def blocks(page: str, text: str) -> list[Block]:
    assert text.count("```") % 2 == 0, f"{page}: a fence is open"
    found = []
    for match in FENCE.finditer(text):
        if match["language"] in LANGUAGES and not match["reason"]:
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(f"{page}:{line}", match["language"], match["text"]))
    return found


class Reader:
    """Somebody who types a document's commands into a shell, one block after the other. Leaving it ends the server."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.server = None
        (folder / "build").mkdir()
        (folder / "build" / "coppice").symlink_to(binary())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.server and kind is None:
            self.end_server()
        elif self.server:
            self.server.kill()
            self.server.wait()

    def run(self, block: Block) -> str:
        text = block.text.replace("/path/to/model.gguf", model_path())
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}").replace("--port 8080", f"--port {self.port}")
        if block.language == "sh" and "coppice serve" in text:
            self.start_server(block, text)
            return ""
        command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-c", PREAMBLE + text]
        done = subprocess.run(command, cwd=self.folder, env=os.environ | {"REPO": str(REPO)}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{block.place} fails with status {done.returncode}:\n{done.stdout}"
        return done.stdout

    def start_server(self, block: Block, text: str):
        """The block's last command is the server, which goes on while later blocks run."""
        if self.server:
            self.end_server()
        script = PREAMBLE + text.replace("build/coppice serve", "exec build/coppice serve")
        log = self.folder / "server.log"
        with log.open("wb") as out:
            self.server = subprocess.Popen(["bash", "-c", script], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        end = time.monotonic() + TIMEOUT_S
        while not self.healthy():
            ended = self.server.poll() is not None
            assert not ended and time.monotonic() < end, f"{block.place} starts no server:\n{log.read_text()}"
            time.sleep(0.05)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=TIMEOUT_S):
                return True
        except (urllib.error.URLError, ConnectionError):  # not listening yet, or loading
            return False

    def end_server(self):
        self.server.send_signal(signal.SIGTERM)
        assert self.server.wait(TIMEOUT_S) == 0, (self.folder / "server.log").read_text()
        self.server = None
