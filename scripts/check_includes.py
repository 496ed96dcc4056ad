#!/usr/bin/env python3
"""Checks the include graph of src/: no arrow between folders that docs/architecture.md doesn't allow, and no circle.

The table under "Folders" is the rule. A folder may include what its last column names, and what those may include in turn.
Any may include check. A name with a slash that is no folder, such as kv/types, allows that one header. A folder that the table doesn't list
belongs to the one above it. And only src/port, and src/simd, which asks the processor, include what only Linux has.
"""
import re
import sys
from pathlib import Path

repo = Path(__file__).resolve().parent.parent
src = repo / "src"


ANYWHERE = "check"  # a folder that any may use
# Headers that only Linux has, and the folders that may include them: macOS is compiled for by `make macos`, which is seldom run.
LINUX_HEADERS = r"asm/.*|linux/.*|sys/(?:auxv|epoll|eventfd|inotify|prctl|sendfile|signalfd|sysinfo|timerfd)\.h|elf\.h|link\.h|malloc\.h|numa\.h"
LINUX_FOLDERS = {"port", "simd"}


def read_table():
    """Folder -> names it uses, as the table says: {"engine": {"kv", "executor", ...}}. None stands for all."""
    table = {}
    for line in (repo / "docs/architecture.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        folder = re.fullmatch(r"`src/([\w/]+)`", cells[0])
        if folder:
            words = {re.sub(r"\(.*?\)", "", word).strip(" `") for word in cells[-1].split(",")}
            table[folder[1]] = None if words == {"all"} else words
    return table


def find_circle(graph):
    """A circle of a graph {node: nodes} as a list that ends where it begins, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if circle := visit(following):
                return circle
        path.pop()
        done.add(node)
        return None

    return next((circle for node in sorted(graph) if (circle := visit(node))), None)


def main():
    table = read_table()
    if not table:
        return ["docs/architecture.md has no table of folders"]
    folders = set(table)
    errors = []

    arrows = {f: (folders - {f} if uses is None else uses & folders) for f, uses in table.items()}
    if circle := find_circle(arrows):
        errors.append("docs/architecture.md: the table has a circle: " + " -> ".join(circle))

    def reachable(folder, seen):
        for following in arrows[folder] - seen:
            seen.add(following)
            reachable(following, seen)
        return seen

    def headers_of(folder):  # single headers such as kv/types
        return {name for f in {folder} | reachable(folder, set()) for name in (table[f] or ()) if "/" in name}

    def owner(path):
        """The listed folder that a path in src belongs to."""
        return next((str(p) for p in Path(path).parents if str(p) in folders), None)

    files = {}
    for file in sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".cuh")):
        name = str(file.relative_to(src))
        home = owner(name)
        if home is None:
            errors.append(f"src/{name}: its folder is not in docs/architecture.md's table")
            continue
        allowed, single = reachable(home, {home}), headers_of(home)
        text = file.read_text()
        for included in re.findall(rf"^#include <({LINUX_HEADERS})>", text, re.M):
            if home not in LINUX_FOLDERS:
                errors.append(f"src/{name} includes <{included}>, which only Linux has: what differs between systems is in src/port")
        for included in re.findall(r'^#include "([^"]+)"', text, re.M):
            if not (src / included).exists():
                continue
            files.setdefault(name, set()).add(included)
            there = owner(included)
            if there == ANYWHERE:
                continue
            if there not in allowed and str(Path(included).with_suffix("")) not in single:
                errors.append(f"src/{name} includes {included}: docs/architecture.md allows no arrow {home} -> {there}")
    if circle := find_circle(files):
        errors.append("a circle of files: " + " -> ".join(circle))
    return errors


if __name__ == "__main__":
    found = main()
    print("\n".join(found) if found else "The include graph of src/ has no circle and no arrow upward.")
    sys.exit(1 if found else 0)
