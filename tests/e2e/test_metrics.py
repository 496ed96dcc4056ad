"""docs/operations.md says what `/metrics` says, and nothing else."""

import json
import re
import urllib.request
from pathlib import Path

import openai
import pytest

from coppice_process import Coppice, free_port

REPO = Path(__file__).parents[2]
OPERATIONS = (REPO / "docs" / "operations.md").read_text()
DASHBOARD = REPO / "packaging" / "examples" / "grafana.json"
ALERTS = REPO / "packaging" / "examples" / "alerts.yaml"
NAME = r"coppice_[a-z0-9_]+"
SERIES = re.compile(rf"(?<!lib)({NAME})(?:\{{([^}}]*)\}})?")
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def documented() -> dict[str, tuple[str, str]]:
    """Of each metric in the table: the labels and the meaning, as they are written."""
    table = {}
    for names, meaning in re.findall(rf"^\| (`{NAME}.*?) \| (.*) \|$", OPERATIONS, re.MULTILINE):
        for name, labels in SERIES.findall(names):
            assert name not in table, name
            table[name] = (labels.replace("\\|", "|"), meaning)
    return table


def is_of_gpus(meaning: str) -> bool:
    """Nothing here has one: tests/server/api/figures_test.cpp looks at these."""
    return meaning.startswith("with a GPU: ")


def documented_here() -> dict[str, tuple[str, str]]:
    return {name: row for name, row in documented().items() if not is_of_gpus(row[1])}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Of each metric: its type, and of each label its values, once a request was refused and one came to its end. There are all tiers."""
    tiers = ("--host-kv-bytes", "10MB", "--kv-dir", str(tmp_path_factory.mktemp("kv") / "kv"), "--kv-url", f"redis://127.0.0.1:{free_port()}", "--kv-trust-store")
    with Coppice("--kv-bytes", "64MiB", *tiers) as server:
        server.wait(lambda: server.stats()["stores"])
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            client.completions.create(model="default", prompt="a", max_tokens=2)
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="nobody", prompt="a")
        with urllib.request.urlopen(server.url + "/metrics") as reply:
            text = reply.read().decode()
    metrics = {name: (kind, {}) for name, kind in re.findall(rf"^# TYPE ({NAME}) (\w+)$", text, re.MULTILINE)}
    for name, labels in re.findall(rf"^({NAME})\{{(.*)\}} ", text, re.MULTILINE):
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            if label != "le":
                metrics[name][1].setdefault(label, set()).add(value)
    return metrics


def test_the_table_has_every_metric_and_no_other(scraped):
    assert len(scraped) > 30
    assert documented_here().keys() == scraped.keys()


def test_types_and_labels_are_those_of_the_table(scraped):
    for name, (labels, meaning) in documented_here().items():
        kind, found = scraped[name]
        assert meaning.startswith("histogram: ") == (kind == "histogram"), name
        assert name.endswith("_total") == (kind == "counter"), name
        stated = {label: values for label, values in re.findall(r'(\w+)(?:="([^"]*)")?', labels)}
        assert stated.keys() == found.keys(), name
        for label, values in stated.items():
            if values:
                assert set(values.split("|")) == found[label], name
    for name, label in ("coppice_requests_total", "outcome"), ("coppice_requests_rejected_total", "reason"):
        meaning = documented()[name][1]
        assert set(re.findall(r"\w+", meaning.rpartition(": ")[2])) == scraped[name][1][label], name


def test_alerts_use_metrics_and_labels_that_exist(scraped):
    rules = ALERTS.read_text()
    alerts = set(re.findall(r"alert: (\w+)", rules))
    assert alerts and alerts == set(re.findall(r"^\| (Coppice\w+) \|", OPERATIONS, re.MULTILINE))
    uses = SERIES.findall(rules)
    assert len(uses) > 5
    for name, labels in uses:
        base = name.removesuffix("_bucket")
        kind, found = scraped[base]
        assert (base != name) == (kind == "histogram"), name
        for label, values in re.findall(r'(\w+)=~"([^"]*)"', labels):
            assert set(values.split("|")) <= found[label], name


def test_the_dashboard_shows_metrics_and_labels_that_exist(scraped):
    """For Grafana. Each expression filters by instance, and groups by labels that its metric has."""
    board = json.loads(DASHBOARD.read_text())
    of_gpus = documented().keys() - documented_here().keys()
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20
    for expression in [*asked, *(v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query")]:
        used = SERIES.findall(expression)
        assert used, expression
        for name, labels in used:
            base = name.removesuffix("_bucket")
            assert base in scraped or base in of_gpus, name
            if expression in asked:
                assert labels == 'instance=~"$instance"', expression
            if base in scraped:
                kind, found = scraped[base]
                assert (base != name) == (kind == "histogram"), name
                assert ("rate(" in expression) == (kind != "gauge"), expression
                assert set(re.findall(r"sum by \((\w+)\)", expression)) - {"le"} <= found.keys(), expression


def test_prose_names_no_metric_that_is_not_there(scraped):
    of_gpus = documented().keys() - documented_here().keys()
    for name, _ in SERIES.findall(OPERATIONS):
        assert name in scraped or name in of_gpus or any(name.removesuffix(part) in scraped for part in HISTOGRAM_PARTS), name
