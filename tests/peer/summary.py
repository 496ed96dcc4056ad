"""Prints how many of the peer's tests passed, and why the others did not."""

import collections
import json
import sys

results = json.load(open(sys.argv[1]))
outcomes = collections.Counter(result["outcome"] for result in results.values())
print(f"{outcomes['passed']} of {len(results)} passed, {outcomes['skipped']} were skipped")
ours = [result for result in results.values() if result["default_model"]]
print(f"of those with the tests' default model: {sum(r['outcome'] == 'passed' for r in ours)} of {len(ours)}")
reasons = collections.defaultdict(list)
for test, result in results.items():
    if result["outcome"] == "failed":
        reasons[result["why"]].append(test)
for why, tests in sorted(reasons.items(), key=lambda item: -len(item[1])):
    print(f"\n{len(tests)}: {why}")
    for test in tests:
        print(f"    {test}")
