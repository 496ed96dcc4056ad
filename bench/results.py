"""Figures of both sides into rows, and a machine's file of results (bench/results/NAME.json):

    {"machine", "threads", "bounds", "results": {model: {load: {measure: row}}}, "traces"}

A row: "coppice", "peer" (medians), "setting" (the peer's), "faster" (median of the rounds' ratios), "range" (of these),
"pairs" (both sides' figures, round by round), "bound" and "bound_by", "rounds", "date", "commit", "busy" (share of the
machine that others used). Rows of coppice alone have no peer; rows without several rounds no range.
"""

import json
import statistics

from loads import MEASURES

CLOSE = 1.1  # the second-best setting takes part in the rounds if it is within this factor of the best


def faster(measure, ours, theirs):
    """How many times better than `theirs`."""
    return ours / theirs if MEASURES[measure][2] else theirs / ours


def best_first(measure, figures):
    """Sides in order, the best first. figures: {side: {measure: value}}; a value may be None."""
    known = [side for side in figures if figures[side].get(measure)]
    return sorted(known, key=lambda side: figures[side][measure], reverse=MEASURES[measure][2])


def contenders(load, found):
    """The sides that run in the rounds: each row's best, and the next one where the first row's best is close."""
    chosen = []
    for row in load.rows:
        order = best_first(row.measure, found)
        near = order[1:2] if row is load.rows[0] else []
        for side in order[:1] + [s for s in near if faster(row.measure, *(found[x][row.measure] for x in (order[0], s))) <= CLOSE]:
            if side not in chosen:
                chosen.append(side)
    return chosen


def rounded(value):
    return float(f"{value:.5g}")


def summary(measure, ours, theirs):
    """A row of the file. ours: a figure each round; theirs: {side's name: the same}, of which the best counts."""
    row = {"coppice": rounded(statistics.median(ours)), "rounds": len(ours)}
    if not theirs:
        return row
    medians = {name: {measure: statistics.median(values)} for name, values in theirs.items()}
    best = best_first(measure, medians)[0]
    ratios = [faster(measure, *pair) for pair in zip(ours, theirs[best])]
    return row | {"peer": rounded(medians[best][measure]), "setting": best, "faster": rounded(statistics.median(ratios)),
                  "range": [rounded(min(ratios)), rounded(max(ratios))],
                  "pairs": [[rounded(one), rounded(other)] for one, other in zip(ours, theirs[best])]}


def summaries(load, rounds):
    """{measure: row} from the rounds' figures by side, of which "coppice" is ours."""
    names = {side.name for figures in rounds for side in figures} - {"coppice"}
    rows = {}
    for row in load.rows:
        by_name = [{side.name: found.get(row.measure) for side, found in figures.items()} for figures in rounds]
        theirs = {name: [figures[name] for figures in by_name] for name in sorted(names)}
        theirs = {name: values for name, values in theirs.items() if None not in values}
        rows[row.measure] = summary(row.measure, [figures["coppice"] for figures in by_name], theirs)
    return rows


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
