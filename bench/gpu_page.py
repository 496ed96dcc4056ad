"""The GPU's part of bench/README.md, from the files of bench/results/cuda (gpu.py says what they hold)."""

import json

GOALS_US = {"2,048 shared + 256, B = 8": 10, "2,048 shared + 256, B = 32": 20, "2,048 shared + 256, B = 64": 35,
            "8,192 shared + 256, B = 8": 22, "8,192 shared + 256, B = 32": 30, "8,192 shared + 256, B = 64": 45}
GOALS_TOKENS = {"2,048 shared + 256, B = 8": ("bf16", 1500), "8,192 shared + 256, B = 32": (None, 5500),
                "8,192 shared + 256, B = 64": (None, 10000), "prompt of 2,048": ("bf16", 36000),
                "depth 2,048, B = 1": ("Q4_K, logits Q6_K", 400)}
LAYERS = 32
PRODUCTS = ("qkv", "output", "gate_up", "down")
SERVER = "64 requests at once share 8,192 new tokens, with 20 of their own each and answers of 32; random 8B weights in Q4_K_M"
OTHERS = {
    "FlashInfer": "FlashInfer: the best of decode with and without tensor cores, prefill and cascade, in the same run (`bench/gpu_flashinfer.py`).",
    "PAT": "PAT: the best packing by its own scheduler, over pages of 32 to 128 tokens, in the same run (`bench/gpu_pat.py`).",
}

HEAD = """
Random weights in the shape of an 8B Llama (32 layers of 32/8 heads x 128), bf16 keys and values; medians inside CUDA graphs
(`make bench-cuda`). A floor is the time to read the different bytes, as fast as a copy.
"""


def read(folder):
    """The files' contents, in the order of their names."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _reached(value, goal, higher):
    if goal is None:
        return ""
    return f"{'≥' if higher else '≤'} {goal:,}: {'yes' if (value >= goal if higher else value <= goal) else 'no'}"


def _table(head, rows, shown):
    """The first `shown` columns."""
    yield "| " + " | ".join(head[:shown]) + " |"
    yield "|" + "---|" * shown
    for cells in rows:
        yield "| " + " | ".join(cells[:shown]) + " |"


def _best_of(content, other):
    """{case: µs} of another program's attention, its fastest way each."""
    return {row["case"]: min(us for way, us in row.items() if way != "case")
            for key, rows in content.items() if key.startswith(f"{other} ") for row in rows if len(row) > 1}


def _attention(content, full):
    others = {name: best for name in OTHERS if (best := _best_of(content, name)) or name == "FlashInfer"}
    yield from ("### Attention, one layer, µs", "", *(OTHERS[name] for name in others), "")
    yield from _table(["step", "coppice", "floor", *others, "share of the bandwidth", "goal"], [
        [row["case"], f"{row['us']:.1f}", f"{row['floor_us']:.1f}",
         *(f"{best[row['case']]:.1f}" if row["case"] in best else "–" for best in others.values()),
         f"{100 * row['floor_us'] / row['us']:.0f} %", _reached(row["us"], GOALS_US.get(row["case"]), False)]
        for row in content["attention"][1:]], 5 + len(others) if full else 3 + len(others))


def _steps(content, full):
    yield from ("", "### A whole step, with greedy sampling", "")
    rows = []
    for row in content["steps"][1:]:
        if not full and row["weights"] == "Q8_0":
            continue  # lies between the others
        weights, goal = GOALS_TOKENS.get(row["case"], (None, None))
        parts = row["parts"]  # timed alone, one launch behind the other: their sum isn't the step's time
        products = LAYERS * sum(parts[name] for name in PRODUCTS)
        between = LAYERS * (2 * parts["norm"] + parts["rows"] + parts.get("gate", 0))  # older runs have gates of their own
        rows.append([row["weights"], row["case"], f"{row['tokens_s']:,}", f"{row['us']:,}", f"{row['bound_us']:,}", f"{products:,.0f}",
                     f"{LAYERS * parts['attention']:,.0f}", f"{between:,.0f}",
                     _reached(row["tokens_s"], goal, True) if weights in (None, row["weights"]) else ""])
    yield from _table(["weights", "step", "tokens/s", "µs", "floor", "products", "attention", "norms, rotations, gates", "goal, tokens/s"],
                      rows, 9 if full else 5)


def _against(content):
    """Of the server: words for a setting of llama-server, and how much faster coppice is to the first token and to the end."""
    rows = content["server"]
    peers = [row for row in rows if not row["side"].startswith("coppice")]
    ours = min((row for row in rows if row not in peers), key=lambda row: row["wall_s"])
    each = [("a slot for each request", row) for row in peers if "64" in row["side"]]
    for words, chosen in [("llama-server's best setting", min(peers, key=lambda row: row["wall_s"])), *each]:
        yield words, chosen["first_s"] / ours["first_s"], chosen["wall_s"] / ours["wall_s"]


def _server(content, full, newest=True):
    if not content.get("server"):
        return
    yield from ("", "### The server", "", f"{SERVER} (`bench/gpu_server.py`)." if newest else "As above.", "")
    yield from _table(["", "slowest first token, s", "total, s", "rounds"], [
        [row["side"], f"{row['first_s']:.2f}", f"{row['wall_s']:.2f}", f"{row['rounds']}"] for row in content["server"]], 4 if full else 3)
    for words, first, wall in _against(content) if full else ():
        yield from ("", f"Against {words}: first token {first:.0f}x ({_reached(first, 30, True)}), total {wall:.0f}x ({_reached(wall, 10, True)}).")


def _experts(content):
    if not content.get("experts"):
        return
    yield from ("", "### Mixtures of experts, tokens a second", "", "Random weights in the models' shapes; both servers over HTTP in the same run, "
                "llama-server with a slot for each stream (`bench/gpu_experts.py`).", "")
    yield from _table(["model", "load", "coppice", "llama-server", "faster"], [
        [row["model"], row["load"], f"{row['coppice']:,.0f}", f"{row['llama-server']:,.0f}", f"**{row['coppice'] / row['llama-server']:.2f}x**"]
        for row in content["experts"]], 5)


def short(content):
    """The card's lines for the head of the page."""
    if content.get("server"):
        against = "; ".join(f"against {words}: {first:.0f}x and {wall:.0f}x" for words, first, wall in _against(content))
        yield from ("", f"On an {content['device']}, 64 requests at once share 8,192 new tokens (8B weights, Q4_K_M). Slowest first token and "
                    f"total time {against}.")


def section(content, full=False, newest=True):
    """Lines about one card; full: also the goals, and what a step spends its time on. Of older cards the page has what they serve."""
    yield from ("", f"## {content['device']}", "", f"Driver {content['driver']}; {content['date']}.")
    if full or newest:
        yield from (*HEAD.rstrip().split("\n"), "")
        yield from _attention(content, full)
        yield from _steps(content, full)
    yield from _server(content, full, newest)
    yield from _experts(content)
