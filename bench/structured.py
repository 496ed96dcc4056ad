"""Structured output, judged by another validator.

structured.py GRAMMAR_BENCH MODEL SCHEMAS [COUNT]

SCHEMAS: a folder of JSON schemas (*.json, searched), such as the data of JSONSchemaBench. Draws COUNT (500) of them, lets
grammar_bench check and compile each and write texts that its masks allow, and validates these with the jsonschema package.
Ends with 1 if a text that ended is not valid.
"""

import collections
import json
import random
import subprocess
import sys
import warnings
from pathlib import Path

import jsonschema
from jsonschema.validators import validator_for

TEXTS, TOKENS = 4, 300


def draw(folder: Path, count: int):
    names = sorted(folder.rglob("*.json"))
    random.Random(23).shuffle(names)
    schemas = {}
    for name in names:
        try:
            schemas[str(name.relative_to(folder))] = json.loads(name.read_text())
        except ValueError:
            continue
        if len(schemas) == count:
            break
    return schemas


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(len(values) * share))]
    return f"p50 {at(0.5):,.1f}, p90 {at(0.9):,.1f}, p99 {at(0.99):,.1f}, most {values[-1]:,.1f}"


def error_of(schema, text):
    """What is wrong with the text; None: nothing, or nobody can tell."""
    try:
        text.encode()
        document = json.loads(text)
    except ValueError as error:  # UnicodeEncodeError is one
        return f"not JSON in UTF-8: {error}"
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    try:
        error = next(validator.iter_errors(document), None)
    except Exception as error:  # its own: a regex that Python doesn't know, a schema of the wrong form
        print(f"  the validator fails: {error}"[:150])
        return None
    return error and f"{error.json_path}: {error.validator}: {error.message[:200]}"


def main():
    warnings.simplefilter("ignore")
    program, model, folder = sys.argv[1:4]
    schemas = draw(Path(folder), int(sys.argv[4]) if len(sys.argv) > 4 else 500)
    lines = "".join(json.dumps({"name": name, "schema": schema}) + "\n" for name, schema in schemas.items())
    # A text that didn't end may stop within a character; lines of other kinds than \n may stand in one.
    done = subprocess.run([program, model, str(TEXTS), str(TOKENS)], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line.decode(errors="surrogateescape")) for line in done.stdout.split(b"\n") if line]
    accepted = [row for row in rows if "error" not in row]
    refused = collections.Counter(row["keyword"] for row in rows if "error" in row)
    print(f"accepted: {len(accepted)} of {len(rows)}; refused for {dict(refused.most_common())}")
    for key, label in (("walk_us", "check"), ("compile_us", "compile")):
        print(f"{label}, us of CPU: {percentiles([row[key] for row in accepted])}")
    for key, label in (("mask_us", "mask"), ("accept_us", "accept a token")):
        print(f"{label}, us of CPU: {percentiles([x for row in accepted for x in row[key]])}")
    texts = [(row["name"], text) for row in accepted for text in row["texts"]]
    ended = [(name, text["text"]) for name, text in texts if text["ended"]]
    stuck = [name for name, text in texts if text["stuck"]]
    wrong = [(name, error) for name, text in ended if (error := error_of(schemas[name], text))]
    for name, error in wrong:
        print(f"  {name}: {error}")
    print(f"texts: {len(texts)}, {len(ended)} ended, {len(wrong)} of these are not valid; {len(stuck)} could not go on {stuck[:5]}")
    return 1 if wrong else 0


sys.exit(main())
