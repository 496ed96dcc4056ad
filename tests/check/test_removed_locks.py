"""Taking a lock out must break the build: each source file is compiled with locks of another mutex in place of those that it takes, and the
compiler must complain in each of the places."""
import json
import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
BUILD = Path(os.environ["COPPICE_BUILD"])
LOCK = re.compile(r"^ *(const )?check::Lock lock\(.*\);$")
WRONG = "check::Mutex none_of_these; check::Lock lock(none_of_these);"
WARNING = re.compile(r":(\d+):\d+: error: .*\[-Werror,-Wthread-safety-")


def takes_locks(path: Path) -> bool:
    """Files of src/executor/cuda need CUDA's headers, which most machines lack."""
    return path.suffix in (".cpp", ".h") and path.parent.name != "cuda" and any(map(LOCK.match, path.read_text().splitlines()))


# The compiler looks at templates where they are used.
USES = {
    "tier/queued_store.h": "struct Store : coppice::tier::QueuedStore { void use() { take<int>(nullptr, [](auto&, auto) { return true; }); } };",
    "vision/remembered.h": "template class coppice::vision::Remembered<int>;",
}
FILES = sorted(filter(takes_locks, SOURCE.rglob("*.*")))


def command_like(source: Path) -> list[str]:
    """How the build compiles a file of the nearest target, without what names that file, its output and precompiled headers."""
    entries = [shlex.split(entry["command"]) for entry in json.loads((BUILD / "compile_commands.json").read_text())]
    for folder in source.relative_to(SOURCE).parents:
        for words in entries:
            if words[words.index("-o") + 1].startswith(f"src/{folder}/CMakeFiles/"):
                compiler = next(at for at, word in enumerate(words) if "clang" in Path(word).name)
                options = [word for word in words if re.match(r"-(I|D|m|std|W)", word)]
                system = [word for before, word in pairwise(words) if before == "-isystem"]
                return [words[compiler], *options, *(f"-isystem{folder}" for folder in system), "-fsyntax-only", "-ferror-limit=0",
                        "-Wno-pragma-once-outside-header", "-x", "c++", "-"]
    raise LookupError(f"nothing near {source} is in compile_commands.json")


def test_there_are_locks():
    assert len(FILES) > 5


@pytest.mark.parametrize("source", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_compiler_misses_each_lock(source):
    lines = source.read_text().splitlines()
    taken = [number for number, line in enumerate(lines, 1) if LOCK.match(line)]
    without = [WRONG if LOCK.match(line) else line for line in lines]
    command = command_like(source)
    without.append(USES.get(str(source.relative_to(SOURCE)), ""))
    run = subprocess.run(command, input="\n".join(without), text=True, capture_output=True, cwd=BUILD)
    complaints = [int(match[1]) for match in map(WARNING.search, run.stderr.splitlines()) if match]
    for number, following in zip(taken, [*taken[1:], len(lines)]):
        assert any(number < place <= following for place in complaints), (
            f"{source}:{number}: without this lock the compiler says nothing. What it guards needs COPPICE_GUARDED_BY.\n" + run.stderr)
