"""What other programs' attention takes for the loads of attention_cuda_bench (gpu_flashinfer.py, gpu_pat.py). Wants torch and a GPU.

One layer of 32/8 heads x 128, bf16, a query a request. As in attention_cuda_bench: launches take one pool after the other, so that no
key is left in the L2 cache; planning is apart; medians. The pages of a shared prefix are the same ones for all requests. The output of the
last timed launch is compared with plain attention in f32. A way that fails is named, with its error."""

import json
import pathlib
import statistics
import sys

import torch

HEADS, KV_HEADS, SIZE = 32, 8, 128
POOLS, ROUNDS, REPEATS = 8, 4, 25
CASES = [(2048, 256, 8), (2048, 256, 32), (2048, 256, 64), (8192, 256, 8), (8192, 256, 32), (8192, 256, 64), (0, 2048, 32)]


def name_of(shared, own, batch):
    return f"{shared:,} shared + {own}, B = {batch}" if shared else f"nothing shared, depth {own:,}, B = {batch}"


def tables(shared, own, batch, page):
    """Pages of the prefix, and of each request."""
    return list(range(shared // page)), [[shared // page + i * (own // page) + p for p in range(own // page)] for i in range(batch)]


def plain(queries, pool, whole):
    """The attention of each query over its request's pages, in f32."""
    outputs = []
    for query, pages in zip(queries.float(), whole):
        keys, values = (pool[pages, side].flatten(0, 1).float().permute(1, 0, 2) for side in (0, 1))
        rows = query.view(KV_HEADS, HEADS // KV_HEADS, SIZE)
        outputs.append((torch.softmax(rows @ keys.transpose(1, 2) / SIZE**0.5, -1) @ values).view(HEADS, SIZE))
    return torch.stack(outputs)


def _event():
    return torch.cuda.Event(enable_timing=True)


def _timed(launches):
    """Microseconds of each of `launches()`, by two events, and whether the first event was waiting when the last launch was queued."""
    begin, end = _event(), _event()
    begin.record()
    launches()
    end.record()
    waiting = not begin.query()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / (ROUNDS * POOLS), waiting


def _rounds(run, pools):
    for _ in range(ROUNDS):
        for pool in pools:
            output = run(pool)
    return output


def in_a_graph(run, pools):
    """The median time of run(pool) in a CUDA graph, µs, and its last output."""
    with torch.cuda.stream(torch.cuda.Stream()):
        _rounds(run, pools)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = _rounds(run, pools)
    times = [_timed(graph.replay)[0] for _ in range(REPEATS + 3)]
    return statistics.median(times[3:]), output.clone()


def behind_a_sleep(run, pools):
    """The same where no graph can be had: a kernel sleeps in front until all launches are queued."""
    times, cycles = [], 10_000_000
    while len(times) < REPEATS + 3:
        torch.cuda._sleep(cycles)
        us, queued = _timed(lambda: _rounds(run, pools))
        if queued:
            times.append(us)
        elif (cycles := cycles * 2) > 1_000_000_000:
            raise RuntimeError("its launches can't be queued behind a sleeping kernel")
    return statistics.median(times[3:]), run(pools[-1])


def measure(path, version, ways):
    """Writes {"version", "device", "rows"} to `path`. `ways`: {name: (page, plan, clock)}; plan(prefix, requests) gives run(queries, pool),
    which returns the output, or None if the way doesn't fit the case; clock is one of the two above."""
    rows = [{"case": name_of(*case)} for case in CASES]
    for way, (page, plan, clock) in ways.items():
        for row, (shared, own, batch) in zip(rows, CASES):
            torch.manual_seed(1)
            prefix, requests = tables(shared, own, batch, page)
            pages = len(prefix) + sum(map(len, requests))
            pools = [torch.randn(pages, 2, page, KV_HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(POOLS)]
            queries = torch.randn(batch, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
            try:
                if (run := plan(prefix, requests)) is None:
                    continue
                us, output = clock(lambda pool: run(queries, pool), pools)
                far = (output.float() - plain(queries, pools[-1], [prefix + own_pages for own_pages in requests])).abs().max().item()
                if not far <= 0.005:
                    raise RuntimeError(f"its output differs by {far}")
                row[way] = round(us, 1)
            except Exception as error:  # noqa: BLE001 - whatever one way says, the others are measured
                print(f"{way}, {row['case']}: {error}", file=sys.stderr)
            print(row, flush=True)
            pathlib.Path(path).write_text(json.dumps({"version": version, "device": torch.cuda.get_device_name(), "rows": rows}))
