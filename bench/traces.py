"""`make bench-traces`: replays recorded requests against coppice's cache (bench/traces), and writes the table and the chart
of docs/benchmarks.md."""

import argparse
import datetime
import json
import pathlib
import sys

from common import Failure, machine, output_of, run_to_the_end, say, write_part

COLOURS = {"coppice": "#2f7d4f", "optimum": "#333333", "lru": "#b3452c"}
NAMES = {"coppice": "coppice", "optimum": "offline optimum", "lru": "plain LRU"}


def closed(row):
    """The part of the distance from LRU to the optimum that coppice closes; None where there is none."""
    distance = row["optimum"] - row["lru"]
    return (row["coppice"] - row["lru"]) / distance if distance > 0.0005 else None


def as_line(report, row):
    part = closed(row)
    rate = report["tokens"] / row["processor_seconds"] / 1e6
    return (f"| {row['budget_percent']:g} % | {row['budget_blocks']:,} | {100 * row['lru']:.1f} | **{100 * row['coppice']:.1f}** "
            f"| {100 * row['optimum']:.1f} | {'–' if part is None else f'{100 * part:.0f} %'} | {rate:.0f} |")


def speed_lines(runs):
    """The cache alone at three sizes (bench/micro/kv_bench): tokens/s of processor time, medians."""
    rates = {}
    for run in runs:
        if run.get("aggregate_name") == "median":
            name, blocks = run["run_name"].split("/")[:2]
            rates.setdefault(name, {})[int(blocks)] = run["items_per_second"] / 1e6
    goals = {"insert_with_eviction": 20, "match_32k": 100}
    titles = {"insert_with_eviction": "inserted, with eviction",
              "match_32k": "matched, prompts of 32,768 tokens, the tree not in the processor's caches"}
    sizes = sorted(rates["match_32k"])
    yield "| M tokens/s on one core | " + " | ".join(f"{size:,} blocks" for size in sizes) + " | fastest / slowest | goal | reached |"
    yield "|" + "---|" * (len(sizes) + 4)
    for name, goal in goals.items():
        values = [rates[name][size] for size in sizes]
        spread = max(values) / min(values)
        reached = "yes" if min(values) >= goal and spread <= 2 else "no"
        yield (f"| {titles[name]} | " + " | ".join(f"{value:,.0f}" for value in values)
               + f" | {spread:.2f} | ≥ {goal}, ≤ 2 | {reached} |")


def markdown(reports, speeds, chart):
    lines = [
        "## Real traffic: what is served from the cache", "",
        "Written by `make bench-traces TRACES=DIR`. Two public traces of requests (Mooncake, FAST 2025; the *.jsonl files in",
        "FAST25-release/traces of github.com/kvcache-ai/Mooncake, Apache-2.0) name each block of 512 tokens of",
        "every prompt by an id. They are replayed against `kv::Cache` itself, with blocks of "
        f"{reports[0]['block_size']} tokens, in order of arrival, one",
        "request after another; each id becomes 512 tokens that no other id has. Answers are not in the traces, so nothing is",
        "decoded. The budget is a share of the different blocks of a trace, and holds the running request too. Figures are the",
        "share of all prompt tokens that was found in the cache, in per cent. Plain LRU (the leaf that was used longest ago goes",
        "first) and the offline optimum (the leaf whose next use is farthest away) come from a simulator of their own that",
        "knows nothing of coppice's cache. \"Closed\": how far coppice is on the way from LRU to the optimum. The last column is",
        "the cache's own work on one core: matching, evicting and publishing, hashing included.", "",
        f"{machine()}; {datetime.date.today().isoformat()}.", "",
    ]
    for report in reports:
        refused = sum(row["refused"] for row in report["rows"])
        lines += [
            f"`{report['trace']}`: {report['requests']:,} requests, {report['tokens'] / 1e6:.1f} M prompt tokens, "
            f"{report['distinct_blocks']:,} different blocks of {report['blocks']:,}; a cache without end serves "
            f"**{100 * report['infinite']:.1f}** %{'' if refused == 0 else f'; {refused} requests did not fit'}.", "",
            "| budget | blocks of 512 | plain LRU | coppice | optimum | closed | M prompt tokens/s |",
            "|---|---|---|---|---|---|---|",
            *(as_line(report, row) for row in report["rows"]), "",
        ]
    lines += ["The tree's own work at three sizes, without a trace (`build/bench/kv_bench`):", "", *speed_lines(speeds), ""]
    return "\n".join([*lines, f"![Tokens served from the cache, by budget]({chart})"]) + "\n"


def draw(reports, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams["font.size"] = 9
    shape, all_axes = pyplot.subplots(1, len(reports), figsize=(6 * len(reports), 4.2), layout="constrained", squeeze=False)
    for axes, report in zip(all_axes[0], reports):
        budgets = [row["budget_percent"] for row in report["rows"]]
        for key in ("optimum", "coppice", "lru"):
            axes.plot(budgets, [100 * row[key] for row in report["rows"]], color=COLOURS[key], label=NAMES[key],
                      marker="o", markersize=4, linestyle="--" if key == "optimum" else "-")
        axes.axhline(100 * report["infinite"], color="grey", linewidth=0.8, linestyle=":", label="a cache without end")
        axes.set_xscale("log")
        axes.set_xticks(budgets)
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_title(report["trace"])
        axes.set_xlabel("budget, of all different blocks")
        axes.set_ylabel("% of prompt tokens served from the cache")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    shape.savefig(path, dpi=110)
    pyplot.close(shape)


def run(args):
    traces = sorted(pathlib.Path(args.traces).glob("*.jsonl"))
    if not traces:
        raise Failure(f"there is no trace (*.jsonl) in {args.traces}")
    reports = []
    for trace in traces:
        say(f"{trace.name}: six budgets, about a minute")
        reports.append(json.loads(output_of([args.bench, "--trace", trace])))
    say("the cache alone, about a minute")
    speeds = json.loads(output_of([args.kv_bench, "--benchmark_filter=insert|match", "--benchmark_repetitions=5",
                                   "--benchmark_min_time=0.5", "--benchmark_format=json"]))["benchmarks"]
    pathlib.Path(args.json).write_text(json.dumps({"traces": reports, "kv_bench": speeds}, indent=1) + "\n")
    chart = pathlib.Path(args.markdown).with_name("benchmarks-traces.png")
    draw(reports, chart)
    text = markdown(reports, speeds, chart.name)
    write_part(args.markdown, "make bench-traces", text)
    print(text)
    say(f"figures: {args.json}; chart: {chart}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "kv-bench", "json", "markdown"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--traces", required=True, metavar="DIR", help="folder of the traces, *.jsonl")
    args = parser.parse_args()
    return run_to_the_end(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
