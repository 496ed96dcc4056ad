#!/usr/bin/env python3
"""bench/README.md from the files of bench/results, its cuda and its cores: page.py writes it anew.
`page.py --goals` prints more of each figure instead: the peer's setting, the goal, the bound, the run."""

import pathlib
import statistics
import sys

import cores_page
import gpu_page
import peers_page
import pictures_page
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

<!-- Written by bench/page.py from bench/results. `make bench` measures and writes both. -->

coppice against llama.cpp's `llama-server`, with SmolLM2-135M-Instruct in Q4_1: small enough that everybody can repeat this. llama-server has the setting
that suits it best: for a burst on one new prefix one slot, in which later requests find it. In brackets: the range over the rounds. What was tried and
lost: [notes.md](notes.md).
"""

METHOD = """
## All loads

Both programs come from the same llama.cpp sources and compiler, run in turn on the same cores with two threads, and get the same new prompts. Of
llama.cpp's settings (flash attention, one KV cache or one for each slot, AMX) the fastest counts; coppice has its defaults. Figures are coppice's, and how many
times as fast as llama.cpp that is: medians over the rounds.

| word | meaning |
|---|---|
| cold, warm | new random text; the shared text was served before, but not the 20 tokens of each request |
| peer in turn | llama-server has one or four slots: with one for each request, as elsewhere, it takes several times as long (`--goals` has these rows) |
| engine | without HTTP: `coppice bench` against `llama-bench` and `llama-batched-bench` |
| against f16, against dense | coppice against itself with that option |
| (gemma3), (1b), (q6_k), (q8_0) | Gemma 3 270M in Q4_K_M; random weights in the shape of Llama 3.2 1B: Q4_K_M, Q6_K, Q8_0 |
| (qwen3moe), (gptoss), (qwen35) | the same of Qwen 3 30B-A3B and gpt-oss 20B, cut to four layers, and Qwen 3.5 4B, cut to eight |
| \\*, † | noise: others used over 10 % of the machine; one round only |

Answers have 32 tokens: 64 for 16 on one prefix, 128 for unrelated streams and one stream. `bench/page.py --goals` prints both sides,
settings, commits, goals and bounds.
"""

TRACES = """
## Recorded traffic: how much comes from the cache

`make bench-traces TRACES=DIR` replays two public traces (Mooncake, FAST 2025: the *.jsonl files in FAST25-release/traces of
github.com/kvcache-ai/Mooncake, Apache-2.0) against `kv::Cache`. Budgets are shares of a trace's different blocks, figures per cent of all prompt
tokens. LRU evicts the leaf used longest ago; the optimum knows the future.
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


def _found(content, name):
    """The rows of a load on this machine, whichever model it is of."""
    return next((loads[name] for loads in content["results"].values() if name in loads), {})


def _cell(measure, row):
    """Ours, and how much faster that is; the unit stands in the row's title."""
    if row is None:
        return "–"
    unit = MEASURES[measure][1]
    ours = figure(measure, row["coppice"]).removesuffix(f" {unit}" if unit != "%" else "")
    mark = ("\\*" if row.get("busy", 0) > QUIET else "") + ("†" if row["rounds"] == 1 else "")
    return ours + mark + (f", **{_ratio(measure, row):.2f}x**" if "peer" in row else "")


def _unit(measure):
    unit = MEASURES[measure][1]
    return f", {unit}" if unit not in ("", "%") else ""


def all_loads(machines):
    """One table: a row for each load, a column for each machine. A load with a slot for each of the peer's requests is left out where
    it was measured with fewer, which suit the peer better."""
    yield "| load | " + " | ".join(_heads(machines)) + " |"
    yield "|---|" + "---|" * len(machines)
    for name, load in LOADS.items():
        found = [_found(content, name) for content in machines]
        shown = [row.measure for row in load.rows if any(row.measure in rows for rows in found)]
        if not shown or any(_found(content, f"{name}-queue") for content in machines):
            continue
        words = "; ".join(title(name, measure, measure == shown[0]).removeprefix("… ") + _unit(measure) for measure in shown)
        cells = ["; ".join(_cell(measure, rows.get(measure)) for measure in shown) if rows else "–" for rows in found]
        yield f"| {words} | " + " | ".join(cells) + " |"


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


def _heads(machines):
    names = [content["machine"].split(",")[0].replace("(R)", "").removesuffix(" Processor") for content in machines]
    extras = ["AMX" if "AMX" in content["machine"] else "AVX-512" if "AVX-512" in content["machine"] else "" for content in machines]
    return [f"{name} {extra}".strip() for name, extra in zip(names, extras)]


def _short(machines):
    yield "| | " + " | ".join(f"{head}: coppice | llama-server | faster" for head in _heads(machines)) + " |"
    yield "|---|" + "---|---|---|" * len(machines)
    for load, measure, question in QUESTIONS:
        cells = []
        for content in machines:
            row = _found(content, load).get(measure)
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


def _tiers(reports):
    """A small pool with a disk beside it."""
    if not reports:
        return
    first = reports[0]["tiers"][0]
    alone = {report["trace"]: next(row["coppice"] for row in report["rows"] if row["budget_percent"] == first["pool_percent"]) for report in reports}
    yield from ("", f"A pool of {first['pool_percent']} % with a [disk](../docs/operations.md#a-second-tier) of {first['disk_percent']} %: what was "
                "found, in the pool and on the disk, and what was written.", "",
                "| trace | the pool alone | what goes to the disk | found | of it on the disk | written |", "|---|---|---|---|---|---|")
    for report in reports:
        for tier in report["tiers"]:
            rule = "all that is evicted" if tier["all_evicted"] else "what is used twice"
            yield (f"| {report['trace'].removesuffix('_trace')} | {100 * alone[report['trace']]:.1f} | {rule} | **{100 * tier['cached']:.1f}** | "
                   f"{100 * tier['loaded']:.1f} | {100 * tier['stored']:.1f} |")


def _traces(content):
    found = content["traces"]
    for report in found["reports"]:
        yield (f"- `{report['trace']}`: {report['requests']:,} requests, {report['tokens'] / 1e6:.1f} M prompt tokens. A cache without end "
               f"serves **{100 * report['infinite']:.1f}** %.")
    yield from ("", "| budget | " + " | ".join(f"{report['trace'].removesuffix('_trace')}: LRU | coppice | optimum" for report in found["reports"]) + " |",
                "|---|" + "---|---|---|" * len(found["reports"]))
    for rows in zip(*(report["rows"] for report in found["reports"])):
        yield f"| {rows[0]['budget_percent']:g} % | " + " | ".join(
            f"{100 * row['lru']:.1f} | **{100 * row['coppice']:.1f}** | {100 * row['optimum']:.1f}" for row in rows) + " |"
    yield from _tiers([report for report in found["reports"] if "tiers" in report])
    replayed = [row["million_tokens_per_s"] for report in found["reports"] for row in report["rows"]]
    tree = found["tree"]
    yield from ("", f"{content['machine']}; {found['date']}. The cache's own work, on one core: {min(replayed):.0f} to {max(replayed):.0f} M prompt tokens "
                f"a second in the replay. With {min(tree['blocks']):,} to {max(tree['blocks']):,} blocks the tree matches {min(tree['matched']):,.0f} to "
                f"{max(tree['matched']):,.0f} M tokens a second, and takes in {min(tree['inserted']):,.0f} to {max(tree['inserted']):,.0f} M.")


def text(machines, gpus=(), cores=(), peers=(), pictures=()):
    """machines, gpus, cores, peers, pictures: the files' contents."""
    lines = [HEAD, *_short(machines), *(line for content in gpus for line in gpu_page.short(content)), METHOD, *all_loads(machines), *peers_page.page(peers)]
    lines += [*pictures_page.page(pictures), *cores_page.page(cores)]
    newest = max((content["date"] for content in gpus), default="")
    for content in gpus:
        lines += gpu_page.section(content, newest=content["date"] == newest)
    for content in machines:
        if "traces" in content:
            lines += [TRACES, *_traces(content)]
    return "\n".join(lines) + "\n"


def goals(machines, gpus=(), *_):
    """What the page leaves out: for whoever makes coppice faster."""
    return "\n".join(line for part in ([*map(_machine, machines)], [gpu_page.section(content, True) for content in gpus]) for lines in part for line in lines)


def contents(folder):
    return ([results.read(file) for file in sorted(folder.glob("*.json"))], gpu_page.read(folder / "cuda"), cores_page.read(folder / "cores"),
            peers_page.read(folder / "peers"), pictures_page.read(folder / "pictures"))


def write(folder, path):
    pathlib.Path(path).write_text(text(*contents(folder)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--goals"]:
        print(goals(*contents(REPO / "bench/results")))
    else:
        write(REPO / "bench/results", REPO / "bench/README.md")
