#!/usr/bin/env python3
"""Checks that a word names one thing: no type and no field of src/ has a name of docs/glossary.md's table "Names" outside of its folders.

A row says which name, what it means, and where a type or a field may have it: folders of src/ or single files; "nowhere" for words that
meant too much. Plain local variables and functions are free.
"""
import re
import sys
from pathlib import Path

repo = Path(__file__).resolve().parent.parent
src = repo / "src"


def read_table():
    """Name -> the paths below src/ that may use it."""
    lines = (repo / "docs/glossary.md").read_text().split("## Names", 1)[1].splitlines()
    table = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        for name in names if len(cells) == 3 else []:
            table[name] = [] if cells[2] == "nowhere" else re.findall(r"`([\w/.]+)`", cells[2])
    return table


def declarations(path):
    """(line, name) of the types that a file declares, and of its classes' fields: in a header, statements that begin with a type."""
    text = path.read_text()
    for n, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0]
        if match := re.match(r"\s*(?:template <.*> )?(?:struct|class|enum class|enum|using) (\w+)\b(?!.*;\s*$|::)", code):
            yield n, match[1]
        elif match := re.match(r"\s*using (\w+) =", code):
            yield n, match[1]
        elif path.suffix == ".h" and (match := re.match(
                r"\s+(?:(?:static|constexpr|const|mutable|inline) )*[A-Za-z_][\w:]*(?:<[^;()]*>)?(?:\*|&| const)* (\w+?)_?"
                r"(?: COPPICE_\w+\(\w+\))?(?:\{[^}]*\}| = [^;]*)?;", code)) and not code.strip().startswith("return"):
            yield n, match[1]


def main():
    table = read_table()
    if not table:
        sys.exit("docs/glossary.md has no table of names")
    wrong = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        at = path.relative_to(src).as_posix()
        for line, name in declarations(path):
            for word in {name, name.lower()} & table.keys():
                if not any(at == where or at.startswith(where + "/") for where in table[word]):
                    wrong.append(f"src/{at}:{line}: `{name}`: docs/glossary.md keeps this name for something else")
    print("\n".join(wrong) if wrong else "Types and fields of src/ keep to the glossary's names.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
