"""The GPU's part of docs/benchmarks.md, from the files of bench/results/cuda (gpu.py says what they hold)."""

import json

GOALS_US = {"2,048 shared + 256, B = 8": 10, "2,048 shared + 256, B = 32": 20, "2,048 shared + 256, B = 64": 35,
            "8,192 shared + 256, B = 8": 22, "8,192 shared + 256, B = 32": 30, "8,192 shared + 256, B = 64": 45}
GOALS_TOKENS = {"2,048 shared + 256, B = 8": ("bf16", 1500), "8,192 shared + 256, B = 32": (None, 5500),
                "8,192 shared + 256, B = 64": (None, 10000), "prompt of 2,048": ("bf16", 36000),
                "depth 2,048, B = 1": ("Q4_K, logits Q6_K", 400)}
LAYERS = 32
PRODUCTS = ("qkv", "output", "gate_up", "down")

HEAD = """
Random weights in the shape of an 8B Llama (32 layers of 32/8 heads x 128), bf16 keys and values. Measured by
`scripts/bench-cuda.sh` inside CUDA graphs, medians; planning and the engine are not in it, and a step ends with greedy sampling. A floor is the
different bytes that must be read, over the bandwidth of a copy in the same run. The nearer a row is to it, the more the
memory bounds it; what is missing is what the columns beside it name.
"""


def read(folder):
    """The files' contents, in the order of their names."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _reached(value, goal, higher):
    if goal is None:
        return ""
    return f"{'≥' if higher else '≤'} {goal:,}: {'yes' if (value >= goal if higher else value <= goal) else 'no'}"


def _attention(content):
    others = {row["case"]: min(us for way, us in row.items() if way != "case")
              for key, rows in content.items() if key.startswith("FlashInfer") for row in rows}
    yield from ("### Attention, one layer", "",
                f"{content['attention'][0]['tb_s']:.2f} TB/s in copies. FlashInfer's figures are of the same run, the best of four ways: "
                "batched decode with and without tensor cores, batched prefill, two-level cascade (`bench/gpu_flashinfer.py`).", "",
                "| | coppice, µs | floor | share of the bandwidth | FlashInfer | goal |", "|---|---|---|---|---|---|")
    for row in content["attention"][1:]:
        other = f"{others[row['case']]:.1f}" if row["case"] in others else ""
        yield (f"| {row['case']} | {row['us']:.1f} | {row['floor_us']:.1f} | {100 * row['floor_us'] / row['us']:.0f} % | {other} "
               f"| {_reached(row['us'], GOALS_US.get(row['case']), False)} |")


def _steps(content):
    yield from ("", "### A whole step", "",
                f"{content['steps'][0]['tb_s']:.2f} TB/s in copies. The parts are timed alone, one launch behind the other, so their sum isn't "
                "the step's time.", "",
                "| weights | | tokens/s | µs | floor | products | attention | norms, rotations, gates | goal, tokens/s |",
                "|---|---|---|---|---|---|---|---|---|")
    for row in content["steps"][1:]:
        weights, goal = GOALS_TOKENS.get(row["case"], (None, None))
        parts = row["parts"]
        products = LAYERS * sum(parts[name] for name in PRODUCTS)
        between = LAYERS * (2 * parts["norm"] + parts["rows"] + parts["gate"])
        yield (f"| {row['weights']} | {row['case']} | {row['tokens_s']:,} | {row['us']:,} | {row['bound_us']:,} | {products:,.0f} "
               f"| {LAYERS * parts['attention']:,.0f} | {between:,.0f} "
               f"| {_reached(row['tokens_s'], goal, True) if weights in (None, row['weights']) else ''} |")


def _server(content):
    rows = content.get("server", [])
    if not rows:
        return
    peers = [row for row in rows if not row["side"].startswith("coppice")]
    yield from ("", "### The server", "",
                "64 requests at once that share 8,192 tokens nobody has seen, 20 of their own each, 32 tokens of answer; random 8B weights in "
                "Q4_K_M; `bench/gpu_server.py`. llama-server with fewer slots than requests lets those that wait find the shared tokens in a slot.", "",
                "| | slowest first token, s | total, s | rounds |", "|---|---|---|---|")
    for row in rows:
        yield f"| {row['side']} | {row['first_s']:.2f} | {row['wall_s']:.2f} | {row['rounds']} |"
    ours = min((row for row in rows if row not in peers), key=lambda row: row["wall_s"])
    for words, chosen in (("llama-server's best setting", min(peers, key=lambda row: row["wall_s"])),
                          ("a slot for each request", peers[-1])):
        first, wall = chosen["first_s"] / ours["first_s"], chosen["wall_s"] / ours["wall_s"]
        yield from ("", f"Against {words}: first token {first:.0f}x ({_reached(first, 30, True)}), total {wall:.0f}x ({_reached(wall, 10, True)}).")


def section(content):
    """Lines about one card."""
    yield from ("", f"## {content['device']}", "", f"Driver {content['driver']}; {content['date']}.", *HEAD.rstrip().split("\n"), "")
    yield from _attention(content)
    yield from _steps(content)
    yield from _server(content)
