"""The sections of bench/README.md that bench/results/cores/*.json hold: bench/neighbours.py writes these."""

import json

HEAD = """
## Cores, neighbours and quotas

Tokens a second of a prefill of 512 and of one stream behind it, without HTTP; llama.cpp in the same run (`bench/neighbours.py`). `busy`: a loop in Python on
each of the first so many cores, while the programs may use all. coppice chooses its threads; llama.cpp gets one for each core or CPU of the quota. "Of what is free":
of coppice's own rate on the cores that are left; where all are busy, of half the quiet rate. "No end": not within 10 to 20 s. Single figures vary by 25 %.

While others come and go (`bench/comings.py`): tokens a second in the second half of each stretch; the 99th percentile of gaps (of a prompt: of its time) over their median; seconds
until a quarter of a second came within a tenth of that rate. "Alone on the other half": a server on the cores that had no loops.
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


def most_cores(content):
    """The cores of its rows; 0: it has none."""
    return max((int(row["what"].split()[0]) for rows in content["models"].values() for row in rows), default=0)


def short(content):
    """A line for each model: all cores, and what is reached beside neighbours and within quotas."""
    for model, rows in content["models"].items():
        quiet = [row for row in rows if row["what"].split()[1:] in (["core"], ["cores"])][-1]
        shares = [f"{row['what'].partition(', ')[2]} {ratios(row['coppice'], free)}" for row in rows if (free := free_rates(rows, row["what"]))]
        yield (f"- {content['machine'].partition(', ')[2].partition(' (')[0]}, {model}: {quiet['what']} {rates(quiet['coppice'])}, {ratios(quiet['coppice'], quiet['llama.cpp'])} times llama.cpp; "
               f"of what is free, {', '.join(shares)}.")


def page(contents):
    """The host with most cores in tables, the others in lines."""
    if not contents:
        return
    first = max(contents, key=most_cores)
    yield HEAD.rstrip()
    yield from section(first)
    others = [line for content in contents if content is not first for line in short(content)]
    if others:
        yield from ("", "Other hosts (all rows: `bench/results/cores`):", "", *others)
