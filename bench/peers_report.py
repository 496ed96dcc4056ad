"""The table and the chart of `make bench-peers`, from the figures that it left as JSON."""

from common import figure

WIN, LOSE, GOAL = "#2f7d4f", "#b3452c", "#333333"


def rows_of(report):
    return [row for load in report["loads"].values() for row in load.get("rows", ())]


def pairs_of(row):
    """How many times faster in each round."""
    pairs = zip(row["all_coppice"], row["all_peers"][row["setting"]])
    return [ours / peer if row["higher_is_better"] else peer / ours for ours, peer in pairs]


def as_line(row, mark):
    goal = "–" if row["goal"] is None else f"≥ {row['goal']}x"
    pairs = pairs_of(row)
    spread = f" ({min(pairs):.2f}–{max(pairs):.2f})" if len(pairs) > 1 else ""
    reached = "–" if row["goal"] is None else "yes" if row["faster"] >= row["goal"] else "no"
    def share(ours):
        return ours / row["bound"] if row["higher_is_better"] else row["bound"] / ours
    bound = f"{figure(row['bound'], row['unit'])} ({100 * share(row['coppice']):.0f} %)"
    if max(map(share, row["all_coppice"])) > 1:
        bound += ": in one round memory was faster than whenever it was measured"
    return (f"| {row['title']}{mark} | {figure(row['coppice'], row['unit'])} | {figure(row['peer'], row['unit'])} "
            f"| `{row['setting']}` | **{row['faster']:.2f}x**{spread} | {goal} | {reached} | {bound} |")


def origin(report):
    """When the loads ran, with which commit of coppice; which ones, where they differ."""
    loads = {}
    for name, load in report["loads"].items():
        loads.setdefault((load["date"], load["commit"]), []).append(name)
    if len(loads) < 2:
        return "".join(f"{date}, commit {commit}" for date, commit in loads) or report["date"]
    return "; ".join(f"{date}, commit {commit}: {', '.join(names)}" for (date, commit), names in loads.items())


def markdown(report, chart, quiet, close, give_up, long, missing):
    amx = ("with and without AMX" if report["amx"] else "without AMX, which this CPU lacks")
    rates = [float(rate) / 1e9 for rate in report.get("bandwidth_bytes_per_s", {}).values()]
    lines = [
        "## Against llama-server, load by load", "",
        "Written by `make bench-peers`. llama-server and its bench tools come from the same sources and the same compiler as",
        f"the parts that coppice links. For each load the peer's settings are tried ({amx}; `-fa`",
        "on and off; `--kv-unified` and not), and the fastest one runs in turn with coppice (A B A B), with the same new prompts",
        "from the same client; the server whose turn it isn't stands still. Both servers have been warmed up, and the same",
        "room for keys and values; the peer has a slot for each request, `--cache-reuse 256`, and no prompt cache in main memory",
        "(it would only add copies here). coppice runs with its defaults. Figures are medians; \"faster\" is the median over the",
        f"pairs, and their range. A load's setting is chosen by its first row; of settings within {close} of each other in the search two run in",
        "the rounds. Where that row is the time of a cold load, a setting that takes more than",
        f"{give_up} times the best before it is given up, and longer such loads don't try it again; every other load tries all",
        f"settings to the end. A burst that takes the peer more than {long} s runs in one round. Answers are 32 tokens (128 for",
        "unrelated streams and one stream, 64 for decodes on one prefix), greedy; a request has 20 tokens of its own. Cold:",
        "random text that nobody has seen. Warm: the shared text was served before, the requests' own tokens weren't; the peer",
        "served it in one slot, and that slot's state was copied to all others. Decode is counted while all streams write.",
        "\"Peer in turn\": it has fewer slots than requests, so that those which wait find the prefix in a slot; for a cold burst",
        "that is its best way of all, though the requests then run one after the other.",
        "Without HTTP (\"engine\"), settings 1.4 times slower than the best in the first round are not run again.", "",
        f"{report['machine']}; {report['threads']} threads; {report['model']}; {report['rounds']} "
        f"{'round' if report['rounds'] == 1 else 'rounds'}; {origin(report)}.",
        "",
    ]
    busiest = max((load.get("busy") or 0 for load in report["loads"].values()), default=0)
    if busiest > quiet:
        lines += [f"**The machine was not always quiet: while the loads marked * ran, other programs used up to "
                  f"{100 * busiest:.0f} % of it. Take their figures as noise.**", ""]
    if any("busy" not in load for load in report["loads"].values()):
        lines += ["Whether the machine was quiet isn't known of the loads marked ?.", ""]
    lines += [
        "| load | coppice | llama.cpp, best setting | its setting | faster | goal | reached | bound (our share of it) |",
        "|---|---|---|---|---|---|---|---|",
        *(as_line(row, " ?" if "busy" not in load else " *" if load["busy"] > quiet else "")
          for load in report["loads"].values() for row in load.get("rows", ())), "",
    ]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    skipped = [load["skipped"] for load in report["loads"].values() if "skipped" in load]
    if skipped:
        lines += [*skipped, ""]
    if rates:
        low, high = f"{min(rates):.0f}", f"{max(rates):.0f}"
        peak = report.get("multiply_adds_per_s", 0) / 1e9
        lines += ["The bound is what memory and multiplication allow (bench/bounds.py): a decode step reads the weights and every",
                  "different key and value once, or multiplies, whichever takes longer; prefill multiplies; HTTP takes no time.",
                  "Measured before and after each load (bench/machine_peak.c, reading on a buffer of the size that the",
                  "step reads); the most that was seen counts, on that size or a larger one: "
                  f"{low if low == high else f'{low} to {high}'} GB/s, and {peak:.0f} G multiply-adds/s of f32, more of "
                  "16-bit numbers (attention) and of bytes (weights) as this CPU's instructions have it.", ""]
    if rows_of(report):
        lines += [f"![How many times faster than llama.cpp at its best, by load]({chart})"]
    return "\n".join(lines) + "\n"


def draw(report, path):
    """Bars of "times faster", log scale, losing rows in another colour, goals as ticks."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows = rows_of(report)
    if not rows:
        return
    pyplot.rcParams["font.size"] = 9
    shape, axes = pyplot.subplots(figsize=(12, 1.3 + 0.32 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        faster = row["faster"]
        # From 1 outwards: a loss goes to the left.
        axes.barh(place, faster - 1, left=1, height=0.7, color=WIN if faster >= 1 else LOSE)
        axes.annotate(f"{faster:.2f}x", (faster, place), xytext=(4 if faster >= 1 else -4, 0), textcoords="offset points",
                      va="center", ha="left" if faster >= 1 else "right")
        if row["goal"]:
            axes.plot([row["goal"]] * 2, [place - 0.42, place + 0.42], color=GOAL, linewidth=2)
    reach = [row["faster"] for row in rows] + [row["goal"] or 1 for row in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(0.6, 0.5 * min(reach)), max(2, 1.8 * max(reach)))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.xaxis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", which="minor", length=0)
    shape.suptitle("coppice: times faster than llama.cpp at its best in each load (black tick: goal)", x=0.01, ha="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    shape.savefig(path, dpi=110)
    pyplot.close(shape)
