"""Prints how many of the peer's tests passed, and why the others did not. Status 1 where one failed that README.md doesn't explain."""

import collections
import json
import re
import sys
from pathlib import Path


def explained(readme: str) -> list[re.Pattern]:
    """The tests of the table "What doesn't, and why": files and functions, with … or * for any text, and with any parameters."""
    text = readme.partition("\n## What doesn't, and why\n")[2]
    names = [name for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.M) for name in re.findall(r"`([^`]+)`", cell)]
    return [re.compile(".*".join(map(re.escape, re.split("[…*]", name))) + r"(\[.*)?") for name in names]


def unexplained(results: dict, readme: str) -> list[str]:
    known = explained(readme)

    def is_known(test: str) -> bool:
        file, _, name = test.partition("::")
        return any(pattern.fullmatch(name) or pattern.fullmatch(Path(file).stem) for pattern in known)

    return [test for test, result in results.items() if result["outcome"] == "failed" and not is_known(test)]


def main(report: str) -> int:
    results = json.loads(Path(report).read_text())
    outcomes = collections.Counter(result["outcome"] for result in results.values())
    ours = [result for result in results.values() if result["default_model"]]
    reasons = collections.defaultdict(list)
    for test, result in results.items():
        if result["outcome"] == "failed":
            reasons[result["why"]].append(test)
    for why, tests in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(tests)}: {why}", *(f"    {test}" for test in tests), "", sep="\n")
    print(f"{outcomes['passed']} of {len(results)} passed, {outcomes['skipped']} were skipped")
    print(f"of those with the tests' default model: {sum(r['outcome'] == 'passed' for r in ours)} of {len(ours)}")
    if not outcomes["passed"]:
        print("No test passed")
    faults = unexplained(results, Path(__file__).with_name("README.md").read_text())
    if faults:
        print("Failed, and tests/peer/README.md doesn't say why:", *faults, sep="\n    ")
    return int(bool(faults) or not outcomes["passed"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
