"""The sections of docs/benchmarks.md that bench/results/cores/*.json hold: bench/neighbours.py writes these."""

import json

HEAD = """
## Cores, neighbours and quotas

Tokens a second of a prefill of 512 and of one stream behind it, without HTTP; llama.cpp in the same run (`bench/neighbours.py`). `busy`: a loop in
Python on each of the first so many cores, while the programs may use all. coppice chooses its threads; llama.cpp gets one for each core, or for each CPU of the
quota, and both as many as the row says where it names threads. "Of what is free": coppice against itself on the cores that are left, or on as many as the quota
allows; where all are busy, against half of the quiet rate. "No end": not within 10 to 20 s. Other guests on the hosts make single figures vary by 25 %; with 32
cores, and on the busy host, rows are medians of two or three rounds, in which all rows have their turns.

While others come and go (`bench/comings.py`): a server with one stream after the other, and one with a prompt of 2,048 new tokens after the other. Tokens a
second in the second half of each stretch of time; the 99th percentile of gaps (of a prompt: of its time) there over their median; after how many seconds
a quarter of a second came within a tenth of that rate. "–": nothing came in that half. "Alone on the other half": a server that may use only the half of the
cores that had no loops, and nobody else runs.
"""


def read(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def free_rates(rows, what):
    """What coppice reaches on the cores that `what` leaves it; None: wasn't measured."""
    alone = {int(row["what"].split()[0]): row["coppice"] for row in rows if row["what"].split()[1:] in (["core"], ["cores"])}
    words = what.replace(",", "").split()
    if "busy" in words:
        cores, busy = int(words[0]), int(words[2])
        if busy == cores:
            return [rate / 2 for rate in alone[cores]] if cores in alone else None
        return alone.get(cores - busy)
    return alone.get(int(words[-1])) if "quota" in words else None


def rates(found):
    return "no end" if found is None else " / ".join(f"{rate:,.0f}" for rate in found)


def ratios(ours, theirs):
    return "–" if not ours or not theirs else " / ".join(f"{one / other:.2f}" for one, other in zip(ours, theirs))


def comings_table(found):
    """By load: [{what, rate, p99, settled}] of each stretch, or the rates of two servers beside each other."""
    loads = [load for load in ("stream", "prompts") if load in found]
    if not loads:
        return
    yield from ("", "| | " + " | ".join(f"{load}: tok/s | p99 | settled" for load in loads) + " |", "|---|" + "---|" * 3 * len(loads))
    for rows in zip(*(found[load] for load in loads)):
        cells = [" | ".join("–" if value is None else format(value, form) for value, form in
                            ((row["rate"] or None, ",.0f"), (row["p99"], ".1f"), (row["settled"], ".2f"))) for row in rows]
        yield f"| {rows[0]['what']} | " + " | ".join(cells) + " |"
    pairs = [(load, found[f"pair of {load}"]) for load in loads if f"pair of {load}" in found]
    if pairs:
        yield ""
        yield "Two servers beside each other: " + "; ".join(
            f"{load} {more:,.0f} and {less:,.0f} tok/s ({more / less:.2f} to 1)" for load, (more, less) in pairs) + "."


def section(content):
    yield from ("", f"### {content['machine']}", "", f"{content['date']}.")
    for model, rows in content["models"].items():
        yield from ("", f"{model}:", "", "| | coppice | llama.cpp | times llama.cpp | of what is free |", "|---|---|---|---|---|")
        for row in rows:
            ours, peer = row["coppice"], row.get("llama.cpp")
            yield (f"| {row['what']} | {rates(ours)} | {rates(peer)} | {ratios(ours, peer)} | {ratios(ours, free_rates(rows, row['what']))} |")
    for model, found in content.get("comings", {}).items():
        yield from ("", f"{model}, while others come and go:")
        yield from comings_table(found)
