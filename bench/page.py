#!/usr/bin/env python3
"""docs/benchmarks.md from the files of bench/results and bench/results/cuda: page.py writes it anew."""

import pathlib
import statistics
import sys

import gpu_page
import results
from loads import LOADS, MEASURES, Engine, row_of

REPO = pathlib.Path(__file__).resolve().parent.parent
QUIET = 0.1  # share of the machine that others may use before a figure counts as noise
QUESTIONS = (  # load, measure, what a practitioner asks
    ("cold-8-1500-queue", "wall_s", "8 requests at once on a new prefix of 1,500 tokens: until all are answered"),
    ("cold-8-1500-queue", "ttft_max_s", "the same: slowest first token"),
    ("warm-8-1500", "wall_s", "8 requests at once on a prefix that was served before: until all are answered"),
    ("unrelated-8-400", "decode_tokens_per_s", "8 chats that share nothing: tokens a second, all together"),
    ("stream", "decode_tokens_per_s", "one chat: tokens a second"),
    ("long-prompt", "ttft_max_s", "one prompt of 4,000 tokens: first token"),
)

HEAD = """# Benchmarks

<!-- Written by bench/page.py from bench/results/*.json. `make bench` measures and writes both. -->

coppice against llama.cpp's `llama-server` and bench tools. Both are built from the same llama.cpp sources with the same
compiler, run on the same cores and get the same requests from the same client. The model is SmolLM2-135M-Instruct in
Q4_1: small enough that everybody can repeat this. A model with a billion parameters follows.

## In short

llama-server runs here in the way that suits it best. For a burst on one new prefix that is one slot: the requests run one
after the other, and all but the first find the prefix in the slot. With a slot for each request it computes the prefix
in each of them, and takes three to five times as long (the rows without "peer in turn" below).
"""

METHOD = """
## How it is measured

- Each setting of llama-server runs each load once: flash attention on and off, one KV cache for all slots ("unified") or
  one for each ("split"), with and without AMX where there is AMX. The fastest then runs in turn with coppice, and so does
  the second if it is within 10 %. coppice runs with its defaults.
- A round has new prompts, the same for both. The server whose turn it isn't is stopped. Both are warmed up and have the
  same room for keys and values. Figures are medians over the rounds; "faster" is the median of their ratios, with the range.
- *Cold*: random text that nobody has seen. *Warm*: the shared text was served before, but not the 20 tokens that each
  request has of its own. Answers have 32 tokens (128 for unrelated streams and one stream, 64 for 16 on one prefix).
  *Decode* counts while all streams write. *Peer in turn*: llama-server has one or four slots; else a slot for each request.
- *Engine*: without HTTP, `coppice bench` runs against `llama-bench` and `llama-batched-bench`. Rows that name an option of coppice as
  the setting compare coppice with itself.
- *Of the bound*: our share of what the machine allows, and what limits it (bench/bounds.py). A decode step reads the
  weights and each different key and value once, or multiplies, whichever takes longer; a prefill multiplies; HTTP takes no
  time. bench/machine_peak.c measures both around each load; the best that was ever seen counts.
- A cold setting that takes 1.6 times as long as the best before it is given up. A burst of over 100 s runs once.
"""

TRACES = """
## Recorded traffic: how much comes from the cache

`make bench-traces TRACES=DIR` replays two public traces (Mooncake, FAST 2025: the *.jsonl files in FAST25-release/traces
of github.com/kvcache-ai/Mooncake, Apache-2.0) against `kv::Cache`, one request after the other, with blocks of 32
tokens. A trace names each block of 512 prompt tokens by an id; it has no answers, so nothing is decoded. The budget is a
share of the trace's different blocks. Figures are the share of all prompt tokens found in the cache, in per cent. LRU
(the leaf used longest ago goes first) and the optimum (the leaf whose next use is farthest away, which needs the future)
come from a simulator. "Closed": how far coppice is on the way from LRU to the optimum. Last column: the cache's own work
on one core, hashing included.
"""


def figure(measure, value):
    unit = MEASURES[measure][1]
    if value is None:
        return "–"
    if unit == "%":
        return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.0f} %"
    digits = {"tok/s": 0, "s": 2, "": 2}.get(unit, 1)
    return f"{value:.{digits}f} {unit}".strip()


def title(name, measure, first=True):
    """Of a row; those behind a load's first one don't repeat the load."""
    row, load = row_of(name, measure), LOADS[name]
    start = f"{'engine: ' if isinstance(load, Engine) else ''}{load.title}:" if first else "…"
    return f"{start} {row.title or MEASURES[measure][0]}"


def _setting(row):
    """Without what is the rule: AMX where there is AMX, a slot for each request."""
    if "setting" not in row:
        return "–"
    short = row["setting"].replace("--no-kv-unified", "split").replace("--kv-unified", "unified").removeprefix("AMX, ")
    return ", ".join(part for part in short.split(", ") if part not in ("-np 8", "-np 16"))


def _ratio(measure, row):
    """The median of the rounds' ratios, or the ratio of the medians where that is all that was kept."""
    return row.get("faster") or results.faster(measure, row["coppice"], row["peer"])


def _faster(measure, row):
    if "peer" not in row:
        return "–"
    spread = " ({:.2f}–{:.2f})".format(*row["range"]) if "range" in row and row["rounds"] > 1 else ""
    return f"**{_ratio(measure, row):.2f}x**{spread}"


def _goal(name, measure, row):
    wanted, higher = row_of(name, measure), MEASURES[measure][2]
    if wanted.goal is not None:
        return f"≥ {wanted.goal}x: {'yes' if _ratio(measure, row) >= wanted.goal else 'no'}"
    if wanted.limit is not None:
        reached = row["coppice"] >= wanted.limit if higher else row["coppice"] <= wanted.limit
        limit = f"{100 * wanted.limit:g} %" if MEASURES[measure][1] == "%" else f"{wanted.limit:g}"
        return f"{'≥' if higher else '≤'} {limit}: {'yes' if reached else 'no'}"
    return "–"


def _bound(measure, row):
    if "bound" not in row:
        return "–"
    share = row["coppice"] / row["bound"] if MEASURES[measure][2] else row["bound"] / row["coppice"]
    return f"{100 * share:.0f} %, {row['bound_by']}"


def _origin(row):
    return f"{row['date']}, commit {row['commit']}, {row['rounds']} round{'s' if row['rounds'] > 1 else ''}"


def table(loads):
    """The rows of {load: {measure: row}}, in the order of the loads."""
    origins = sorted({_origin(row) for rows in loads.values() for row in rows.values()})
    letters = {origin: chr(ord("a") + i) for i, origin in enumerate(origins)}
    lines = ["| load | coppice | llama.cpp | its setting | faster | goal | of the bound | run |",
             "|---|---|---|---|---|---|---|---|"]
    noisy = False
    for name in LOADS:
        for measure, row in loads.get(name, {}).items():
            mark = " *" if row.get("busy", 0) > QUIET else ""
            noisy |= bool(mark)
            lines.append(f"| {title(name, measure, measure == next(iter(loads[name])))}{mark} "
                         f"| {figure(measure, row['coppice'])} | {figure(measure, row.get('peer'))} | {_setting(row)} | {_faster(measure, row)} | {_goal(name, measure, row)} | {_bound(measure, row)} "
                         f"| {letters[_origin(row)]} |")
    lines += ["", "Runs: " + "; ".join(f"{letter}: {origin}" for origin, letter in letters.items()) + "."]
    if noisy:
        lines += ["", f"\\*: other programs used over {100 * QUIET:.0f} % of the machine meanwhile. Take the figure as noise."]
    return lines


def pairs_table(loads):
    """Two builds: "before" is the other side."""
    lines = ["| load | before | after | after is faster | quartiles | range | pairs |", "|---|---|---|---|---|---|---|"]
    for name, rows in loads.items():
        for measure, row in rows.items():
            ratios = [results.faster(measure, *pair) for pair in row["pairs"]]
            quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
            lines.append(f"| {title(name, measure)} | {figure(measure, row['peer'])} | {figure(measure, row['coppice'])} "
                         f"| **{row['faster']:.3f}x** | {quartiles[0]:.3f}–{quartiles[2]:.3f} "
                         f"| {min(ratios):.3f}–{max(ratios):.3f} | {len(ratios)} |")
    return lines


def _short(machines):
    names = [content["machine"].split(",")[0].replace("(R)", "") for content in machines]
    extras = ["AMX" if "AMX" in content["machine"] else "AVX-512" if "AVX-512" in content["machine"] else "" for content in machines]
    heads = [f"{name} {extra}".strip() for name, extra in zip(names, extras)]
    yield "| | " + " | ".join(f"{head}: coppice | llama-server | faster" for head in heads) + " |"
    yield "|---|" + "---|---|---|" * len(machines)
    for load, measure, question in QUESTIONS:
        cells = []
        for content in machines:
            row = next((loads[load][measure] for loads in content["results"].values() if load in loads), None)
            cells += [figure(measure, row["coppice"]), figure(measure, row["peer"]), _faster(measure, row)] if row else ["–"] * 3
        yield f"| {question} | " + " | ".join(cells) + " |"


def _machine(content):
    bounds = content.get("bounds", {})
    rates = [*bounds.get("gb_per_s", ()), *(rate / 1e9 for rate in bounds.get("bytes_per_s", {}).values())]
    for model, loads in content["results"].items():
        yield from ("", f"## {content['machine']}", "")
        yield (f"{content['threads']} threads; {model}. Memory gave {min(rates):.0f} to {max(rates):.0f} GB/s, depending on the "
               f"buffer's size, and the cores {bounds['multiply_adds_per_s'] / 1e9:.0f} G multiply-adds/s of f32.")
        yield ""
        yield from table(loads)
        models = {LOADS[name].model for name in loads if name in LOADS}
        missing = [name for name in LOADS if name not in loads and LOADS[name].model in models]
        if missing:
            yield from ("", f"Not run: {', '.join(missing)}.")


def _traces(content):
    found = content["traces"]
    yield from (f"{content['machine']}; {found['date']}.", "")
    for report in found["reports"]:
        yield (f"`{report['trace']}`: {report['requests']:,} requests, {report['tokens'] / 1e6:.1f} M prompt tokens, "
               f"{report['distinct_blocks']:,} different blocks of {report['blocks']:,}. A cache without end serves "
               f"**{100 * report['infinite']:.1f}** %.")
        yield from ("", "| budget | blocks of 512 | LRU | coppice | optimum | closed | M prompt tokens/s |", "|---|---|---|---|---|---|---|")
        for row in report["rows"]:
            closed = "–" if row["closed"] is None else f"{100 * row['closed']:.0f} %"
            yield (f"| {row['budget_percent']:g} % | {row['budget_blocks']:,} | {100 * row['lru']:.1f} | **{100 * row['coppice']:.1f}** "
                   f"| {100 * row['optimum']:.1f} | {closed} | {row['million_tokens_per_s']:.0f} |")
        yield ""
    sizes = found["tree"]["blocks"]
    yield from ("The tree's own work, without a trace (`build/bench/kv_bench`), M tokens/s on one core:", "")
    yield "| | " + " | ".join(f"{size:,} blocks" for size in sizes) + " | goal |"
    yield "|" + "---|" * (len(sizes) + 2)
    for name, goal in (("inserted, with eviction", 20), ("matched, prompts of 32,768 tokens, out of the processor's caches", 100)):
        rates = found["tree"]["inserted" if goal == 20 else "matched"]
        reached = "yes" if min(rates) >= goal and max(rates) <= 2 * min(rates) else "no"
        yield f"| {name} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + f" | ≥ {goal}, and within 2x: {reached} |"


def text(machines, gpus=()):
    """machines, gpus: the files' contents."""
    lines = [HEAD, *_short(machines), METHOD.rstrip()]
    for content in machines:
        lines += _machine(content)
    for content in machines:
        if "traces" in content:
            lines += [TRACES, *_traces(content)]
    for content in gpus:
        lines += gpu_page.section(content)
    return "\n".join(lines) + "\n"


def write(folder, path):
    pathlib.Path(path).write_text(
        text([results.read(file) for file in sorted(folder.glob("*.json"))], gpu_page.read(folder / "cuda")))


if __name__ == "__main__":
    sys.exit(write(REPO / "bench/results", REPO / "docs/benchmarks.md"))
