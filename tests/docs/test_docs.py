"""What README.md and docs/ tell a reader to type works, and what they name exists."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import REPO, Reader, blocks
from coppice_process import Coppice, binary

README, OPERATIONS, API = REPO / "README.md", REPO / "docs" / "operations.md", REPO / "docs" / "api.md"
DECISIONS = REPO / "docs" / "decisions.md"
MOST_WORDS = 25_000  # of all of docs/ (docs/decisions.md, "How long documents are")
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md"), *(REPO / "bench").rglob("*.md")])


@pytest.mark.parametrize("page", [README, OPERATIONS], ids=lambda page: page.name)
def test_commands_run(page, tmp_path):
    found = blocks(page.name, page.read_text())
    assert len(found) >= 2
    with Reader(tmp_path) as reader:
        for block in found:
            print(f"{block.place}:\n{reader.run(block)}")


@pytest.mark.parametrize("command", ["build/coppice serve --modle /path/to/model.gguf", "make nothing", "false\ntrue",
                                     "curl http://127.0.0.1:8080/health", "build/coppice --nothing"])
def test_a_command_that_breaks_is_seen(command, tmp_path):
    [block] = blocks("page", f"```sh\n{command}\n```\n")
    with pytest.raises(AssertionError, match="page:1"), Reader(tmp_path) as reader:
        reader.run(block)


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells, row by row, of the first table below a heading."""
    text = page.read_text().partition(f"\n## {heading}\n")[2]
    body = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", text, re.M).group(1)
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in body.splitlines()]


def help_of(*command: str) -> str:
    return subprocess.run([binary(), *command, "--help"], capture_output=True, text=True, check=True).stdout


def options_of(command: str) -> dict[str, str]:
    """Of each option in the help: its default, if it states one."""
    text = help_of(command)
    found = re.findall(r"^  (?:-\w,)?(--[a-z-]+)(.*)$", text, re.M)
    return {name: (re.findall(r"^\S* \S+ \(([^\s()]+)\)(?: |$)", rest) or [""])[0] for name, rest in found}


def names_of(command: str) -> set[str]:
    """Of the options in the help, the further names that each may have included."""
    return {name for line in re.findall(r"^  (-\S+)", help_of(command), re.M) for name in line.split(",")}


def test_options_are_those_of_help():
    offered = options_of("serve")
    del offered["--help"]
    described = {}
    for names, _, default in table(OPERATIONS, "Options"):
        names = re.findall(r"`(--[a-z-]+)", names)
        defaults = default.split(",") if len(names) > 1 else [default]
        described |= {name: value.strip().replace(" MiB", "MiB") for name, value in zip(names, defaults, strict=True)}
    assert described.keys() == offered.keys()
    for name, default in offered.items():
        assert default in ("", described[name]), name


# Options with a number that bound nothing that a client may take.
NO_BOUNDS = {"--threads", "--block-size", "--check-every", "--port", "--ping-seconds", "--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty",
             "--presence-penalty", "--frequency-penalty", "--seed", "--kv-dir-bytes", "--kv-dir-age", "--kv-dir-free", "--kv-dir-writes",
             "--kv-url-age", "--host-kv-bytes", "--sleep-idle-seconds"}


def test_every_bound_is_in_the_table_of_limits():
    """What a client meets there is said there. An option with a number is a bound, unless it is named above."""
    numbers = {line.split()[0].split(",")[1 if re.match(r"\S\w,|-\w,", line.split()[0]) else 0]
               for line in re.findall(r"^  (-.*)$", help_of("serve"), re.M) if re.search(r"^\S+ (?:N|SIZE|SECONDS|NUMBER)\b", line)}
    assert numbers >= NO_BOUNDS - {"--block-size"} and len(numbers) > 20, numbers
    named = {name for row in table(OPERATIONS, "Limits") for name in re.findall(r"`(--[a-z-]+)`", row[1])}
    assert named == numbers - NO_BOUNDS
    for row in table(OPERATIONS, "Limits"):
        assert len(row) == 3 and row[0].strip() and row[2].strip(), row


@pytest.mark.parametrize("page", [README, OPERATIONS, API], ids=lambda page: page.name)
def test_no_option_is_named_that_is_not_there(page):
    commands = re.findall(r"^  (\w+)", help_of().partition("Subcommands:")[2], re.M)
    known = set().union(*map(names_of, commands))
    of_others = r"^(vllm-router|python -m sglang_router\S*|podman build) .*$|^podman run .* (?=-p )|\bmake \w+ ARGS=\S+"
    ours = re.sub(of_others, "", page.read_text().replace("\\\n", ""), flags=re.M)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours)) <= known


def leaves(value, path="") -> set[str]:
    if not isinstance(value, dict):
        return {path}
    return set().union(*(leaves(inner, f"{path}.{name}".lstrip(".")) for name, inner in value.items()))


def test_cache_figures_are_those_of_the_server(tmp_path):
    described = set()
    for names, _ in table(API, "Figures"):
        parent = ""
        for name in re.findall(r"`([a-z_.]+)`", names):
            parent = parent if name.startswith(".") else name.partition(".")[0]
            described.add(parent + name if name.startswith(".") else name)
    with Coppice("--kv-bytes", "64MiB", "--threads", "1", "--kv-dir", str(tmp_path / "kv")) as server:
        server.wait(lambda: server.stats()["stores"])
        assert described == leaves(server.stats())


def test_every_target_of_the_makefile_is_run_before_a_release():
    listed = subprocess.run([REPO / "scripts" / "everything.sh", "--list"], capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split("|")] for line in listed.splitlines()]
    targets = re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.M)
    assert sorted(row[0] for row in rows) == sorted(set(targets) - {"everything"})
    assert all(len(row) == 4 and bool(row[1]) == bool(row[2]) for row in rows), "what a target needs is said in words"


@pytest.fixture
def everything(tmp_path):
    """Runs `make everything` of these targets, with a Makefile that has these two."""
    (tmp_path / "scripts").mkdir()
    for name in ("everything.sh", "lib.sh", "stages.sh"):
        shutil.copy(REPO / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "scripts" / "packages.sh").write_text("#!/bin/sh\n")
    (tmp_path / "scripts" / "packages.sh").chmod(0o755)
    rule = re.search(r"^everything:.*\n(?:\t.*\n)+", (REPO / "Makefile").read_text(), re.M).group()
    (tmp_path / "Makefile").write_text(f"{rule}page bench-structured:\n\t@echo '$@ with <$(ARGS)>'\n")
    return lambda *targets, **variables: subprocess.run(
        ["make", "-C", tmp_path, "everything", f"ARGS={' '.join(targets)}", *(f"{name}={value}" for name, value in variables.items())],
        capture_output=True, text=True, check=True).stdout


def test_a_targets_name_is_no_argument_of_it(everything):
    said = everything("page")
    assert "page with <>\n" in said and "passed  page" in said


def test_a_mistyped_target_fails(everything):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        everything("page", "sok")
    assert "no target 'sok'" in failed.value.stderr and "soak" in failed.value.stderr


def test_data_may_lie_in_folders_of_the_folder(everything, tmp_path):
    """JSONSchemaBench has its schemas so."""
    schemas = tmp_path / "data"
    (schemas / "Github_easy").mkdir(parents=True)
    assert "skipped bench-structured" in everything("bench-structured", SCHEMAS=schemas)
    (schemas / "Github_easy" / "o1.json").write_text("{}")
    assert "passed  bench-structured" in everything("bench-structured", SCHEMAS=schemas)


def test_what_has_passed_is_left_out_of_a_run_that_goes_on(everything, tmp_path):
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    assert "passed  page (" in everything("page") and "page with <>\n" in (tmp_path / "build/everything/page.log").read_text()
    said = everything("--resume", "page")
    assert "passed  page (in an earlier run)" in said and "page with" not in said
    with (tmp_path / "Makefile").open("a") as makefile:
        makefile.write("# other files than those that passed\n")
    assert "page with <>\n" in everything("--resume", "page")


def test_a_target_that_changes_files_of_the_repository_fails(everything, tmp_path):
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    (tmp_path / "Makefile").write_text((tmp_path / "Makefile").read_text() + "\techo '# x' >>Makefile\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        everything("page")
    assert "page changed files that git knows" in failed.value.stdout and "FAILED  page" in failed.value.stdout


def test_targets_without_their_data_are_skipped(everything):
    said = everything("bench-tools", "bench-structured", "bench-traces")
    assert re.findall(r"^skipped (\S+): it needs [A-Z]+=folder of", said, re.M) == ["bench-tools", "bench-structured", "bench-traces"]


def test_a_peers_test_that_fails_is_explained_or_fails_the_target():
    sys.path.insert(0, str(REPO / "tests" / "peer"))
    from summary import unexplained

    readme = "`test_e` |\n## What doesn't, and why\n\n| tests | why |\n|---|---|\n| `test_a[…64…]`, `test_b` | `test_c` |\n| `test_d_*` | |\n"
    names = ["u/f.py::test_a[x-64-y]", "u/f.py::test_b", "u/f.py::test_b[1]", "u/test_b.py::test_x", "u/f.py::test_d_1[x]",
             "u/f.py::test_a[x-65-y]", "u/f.py::test_bb", "u/f.py::test_c", "u/f.py::test_e", "u/test_d.py::test_f"]
    assert unexplained({name: {"outcome": "failed"} for name in names}, readme) == names[5:]
    assert not unexplained({"u/f.py::test_z": {"outcome": "passed"}, "u/f.py::test_y": {"outcome": "skipped"}}, readme)


def anchors_of(page: Path) -> set[str]:
    """Of each heading outside of fences, as GitHub makes it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def test_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or there.suffix != ".md" or anchor in anchors_of(there), f"{page.name}: {target}#{anchor}"


def test_the_map_names_files_that_exist():
    text = (REPO / "docs" / "architecture.md").read_text()
    named = [path for path in re.findall(r"`((?:bench|cmake|packaging|scripts|src|tests|web)/[^`]*)`", text) if "DEVICE" not in path]
    assert len(named) > 100
    assert [path for path in named if not (REPO / path).exists()] == []
    alone = re.findall(r"`(\w+\.(?:cpp|cu|h))`", text)  # files beside one that is named with its folder
    assert [name for name in alone if not any((REPO / "src").rglob(name))] == []


def test_decisions_are_called_by_their_names():
    names = set(re.findall(r"^### (.*)$", DECISIONS.read_text(), re.M))
    named = set()
    for folder in ("src", "tests", "bench", "scripts", "cmake", "packaging"):
        for file in (REPO / folder).rglob("*"):
            if file.suffix in (".h", ".cpp", ".cuh", ".cu", ".py", ".sh", ".txt", ".cmake", ".c") and file != Path(__file__):
                text = re.sub(r"\n *(?:///?|#) *", " ", file.read_text())
                named |= {(name, file.name) for name in re.findall(r'docs/decisions\.md, "([^"]*)"', text)}
    assert len(named) > 30
    assert [(name, file) for name, file in sorted(named) if name not in names] == []


def test_docs_stay_short():
    words = {page.name: len(page.read_text().split()) for page in (REPO / "docs").rglob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, words
    assert len((REPO / "CONTRIBUTING.md").read_text().split()) <= 700


def test_the_version_is_the_newest_of_the_changelog():
    version = re.search(r"project\(coppice VERSION (\S+)", (REPO / "CMakeLists.txt").read_text()).group(1)
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    commit = subprocess.run(["git", "-C", REPO, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    built = re.match(rf"coppice {re.escape(version)}, commit ([0-9a-f]+|unknown)(-dirty)?\nkernels: \w+ \(of .+\)\nggml's kernels: \w+", said)
    assert built and (commit or built[1]).startswith(built[1]), said
    headings = re.findall(r"^## \[?([^\]\s]+)", (REPO / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == ["Unreleased", version]


def architecture_of(model: Path) -> str:
    """`general.architecture` of a GGUF file, whose key comes early."""
    head = model.read_bytes()[:4096]
    at = head.index(b"general.architecture") + len("general.architecture") + 4  # the value's type
    size = int.from_bytes(head[at:at + 8], "little")
    return head[at + 8:at + 8 + size].decode()


def test_families_are_those_that_are_tested():
    models = (REPO / "tests" / "support" / "family_models.cpp").read_text()
    known = set(re.findall(r'Family\{"([\w.-]+)"', (REPO / "src" / "model" / "families.cpp").read_text(), re.M))
    with_libllama = set(re.findall(r'architecture = "([\w-]+)"', models)) | {"llama"}
    with_transformers = {architecture_of(m) for m in (REPO / "tests" / "oracle" / "fixtures").glob("*/model.gguf")}
    text = (REPO / "docs" / "models.md").read_text().partition("\n## ")[0]
    said = {}
    for names, tests in re.findall(r"^\| (`[^|]+) \|.*\| ([FHTV ]*) \|$", text, re.M):
        for name in re.findall(r"`([\w.-]+)`", names):
            said[name] = said.get(name, set()) | set(tests.split())
    assert set(said) == known
    assert {name for name, tests in said.items() if tests & {"F", "H"}} == with_libllama
    assert {name for name, tests in said.items() if "T" in tests} == with_transformers
    with_pictures = {architecture_of(m) for m in (REPO / "tests" / "vision" / "fixtures").glob("*/model.gguf")}
    assert {name for name, tests in said.items() if "V" in tests} == with_pictures
