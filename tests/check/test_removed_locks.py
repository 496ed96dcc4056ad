"""Taking a lock out must break the build: the sources are compiled with locks of another mutex in place of those that they take, and the
compiler must complain in each of the places."""
import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
BUILD = Path(os.environ["COPPICE_BUILD"])
LOCK = re.compile(r"^ *(const )?check::Lock lock\(.*\);$")
WRONG = "check::Mutex none_of_these; check::Lock lock(none_of_these);"
WARNING = re.compile(r"^(.*?):(\d+):\d+: error: .*\[-Werror,-Wthread-safety-")


def takes_locks(path: Path) -> bool:
    """Files of src/executor/cuda need CUDA's headers, which most machines lack."""
    return path.suffix in (".cpp", ".h") and path.parent.name != "cuda" and any(map(LOCK.match, path.read_text().splitlines()))


# The compiler looks at templates where they are used.
USES = {
    "tier/queued_store.h": "struct Store : coppice::tier::QueuedStore { void use() { take<int>(nullptr, [](auto&, auto) { return true; }); } };",
    "vision/remembered.h": "template class coppice::vision::Remembered<int>;",
}
FILES = sorted(str(path.relative_to(SOURCE)) for path in filter(takes_locks, SOURCE.rglob("*.*")))
ENTRIES = [shlex.split(entry["command"]) for entry in json.loads((BUILD / "compile_commands.json").read_text())]


def command_like(name: str) -> list[str]:
    """How the build compiles a file of the nearest target, without what names that file, its output, precompiled headers and src itself."""
    for folder in Path(name).parents:
        for words in ENTRIES:
            if words[words.index("-o") + 1].startswith(f"src/{folder}/CMakeFiles/"):
                compiler = next(at for at, word in enumerate(words) if "clang" in Path(word).name)
                options = [word for word in words if re.match(r"-(I|D|m|std|W)", word) and word != f"-I{SOURCE}"]
                system = [word for before, word in pairwise(words) if before == "-isystem"]
                return [words[compiler], *options, *(f"-isystem{folder}" for folder in system)]
    raise LookupError(f"nothing near {name} is in compile_commands.json")


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What the compiler says of a copy of src with all locks taken out: pairs of file and line. All files are compiled as one, with all
    their options, for nearly all of the work is in headers."""
    copy = tmp_path_factory.mktemp("removed") / "src"
    shutil.copytree(SOURCE, copy)
    command, together = [], []
    for name in FILES:
        lines = (SOURCE / name).read_text().splitlines()
        without = [WRONG if LOCK.match(line) else line for line in lines]
        (copy / name).write_text("\n".join([*without, USES.get(name, "")]))
        together.append(f'#include "{copy / name}"')
        command += [word for word in command_like(name) if word not in command]
    run = subprocess.run([*command, f"-I{copy}", "-fsyntax-only", "-ferror-limit=0", "-x", "c++", "-"],
                         input="\n".join(together), text=True, capture_output=True, cwd=BUILD)
    errors = [line for line in run.stderr.splitlines() if "error: " in line]
    places = [WARNING.match(line) for line in errors]
    assert all(places), [line for line, place in zip(errors, places) if not place]
    return {(str(Path(place[1]).relative_to(copy)), int(place[2])) for place in places}


def test_there_are_locks():
    assert len(FILES) > 5


@pytest.mark.parametrize("name", FILES)
def test_the_compiler_misses_each_lock(name, complaints):
    lines = (SOURCE / name).read_text().splitlines()
    taken = [number for number, line in enumerate(lines, 1) if LOCK.match(line)]
    for number, following in zip(taken, [*taken[1:], len(lines)]):
        assert any(file == name and number < place <= following for file, place in complaints), (
            f"{name}:{number}: without this lock the compiler says nothing. What it guards needs COPPICE_GUARDED_BY.")
