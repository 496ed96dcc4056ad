#!/usr/bin/env python3
"""Runs clang-tidy over C++ files of this repository; lint.sh is its front door and says what the options mean."""
import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

repo = Path(__file__).resolve().parent.parent
folders = ("src", "tests", "bench")


def git(*args):
    return subprocess.run(["git", *args], cwd=repo, check=True, capture_output=True, text=True).stdout.split()


def write_commands():
    """Our own files only, each once: a source that is built into two targets would be looked at twice. What build/lint would have to
    make first (headers that are compiled or written) is there in build."""
    commands = (repo / "build/lint/compile_commands.json").read_text().replace(str(repo / "build/lint"), str(repo / "build"))
    entries = {entry["file"]: entry for entry in json.loads(commands)}
    ours = {
        str(path): entry
        for file, entry in entries.items()
        if (path := Path(file)).is_relative_to(repo) and path.relative_to(repo).parts[0] in folders
    }
    (repo / "build/lint/ours").mkdir(exist_ok=True)
    (repo / "build/lint/ours/compile_commands.json").write_text(json.dumps(list(ours.values())))
    return {str(Path(file).relative_to(repo)) for file in ours}


def changed_since(base):
    """C++ files that differ between a commit and the working tree, those of the newest commits first."""
    patterns = [f"{folder}/*.{ending}" for folder in folders for ending in ("cpp", "h")]
    present = set(git("diff", "--name-only", "--diff-filter=d", base, "--", *patterns))
    by_age = git("diff", "--name-only", "HEAD", "--", *patterns)
    by_age += git("log", "--format=", "--name-only", f"{base}..HEAD", "--", *patterns)
    return [file for file in dict.fromkeys(by_age) if file in present]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--base")
    parser.add_argument("--commits", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()

    known = write_commands()
    if options.all:
        changed = sorted(known)
    else:
        base = options.base
        if options.commits:
            older = git("rev-list", "HEAD", "--skip", str(options.commits), "-n", "1")
            base = older[0] if older else git("rev-list", "--max-parents=0", "HEAD")[-1]
        changed = changed_since(base)
    # A header is looked at with the source of its name, or by itself where there is none.
    sources = (str(Path(f).with_suffix(".cpp")) if f.endswith(".h") else f for f in changed)
    files = list(dict.fromkeys(s if s in known else f for s, f in zip(sources, changed)))
    # What isn't built here has no command, nor have headers of folders of which nothing is (the GPU's, without its compiler). A
    # -inl.h is a part of the sources that include it, and looked at with them.
    built = {Path(f).parent for f in known}
    files = [f for f in files if f in known or (f.endswith(".h") and not f.endswith("-inl.h") and Path(f).parent in built)]

    end = time.monotonic() + options.seconds

    def lint(file):
        if time.monotonic() > end:
            return None
        command = ["clang-tidy-19", "-p", "build/lint/ours", "--quiet", file]
        run = subprocess.run(command, cwd=repo, capture_output=True, text=True)
        if run.returncode != 0:
            print(run.stdout or run.stderr, flush=True)
        return run.returncode == 0

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lint, files))
    late, bad = results.count(None), results.count(False)
    print(f"clang-tidy: {len(files) - late} of {len(files)} files, {bad} with findings.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
