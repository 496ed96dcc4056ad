#!/usr/bin/env python3
"""What FlashInfer's wrappers take for the loads of attention_cuda_bench: gpu_flashinfer.py RESULTS.json. Wants torch, flashinfer and a GPU.

One layer of 32/8 heads x 128, bf16, pages of 16 tokens, a query a request. As in attention_cuda_bench: launches stand in a CUDA graph and
take one pool after the other, so that no key is left in the L2 cache; planning is apart; medians. The pages of a shared prefix
are the same ones for all requests. All wrappers' outputs are compared with each other. A wrapper that fails is named, with its error."""

import json
import pathlib
import statistics
import sys

import flashinfer
import torch

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 16
POOLS, ROUNDS, REPEATS = 8, 4, 25
CASES = [(2048, 256, 8), (2048, 256, 32), (2048, 256, 64), (8192, 256, 8), (8192, 256, 32), (8192, 256, 64), (0, 2048, 32)]
SHAPE = dict(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, page_size=PAGE, q_data_type=torch.bfloat16)


def name_of(shared, own, batch):
    return f"{shared:,} shared + {own}, B = {batch}" if shared else f"nothing shared, depth {own:,}, B = {batch}"


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def tables(shared, own, batch):
    """Pages of the prefix, and of each request."""
    return list(range(shared // PAGE)), [[shared // PAGE + i * (own // PAGE) + p for p in range(own // PAGE)] for i in range(batch)]


def offsets(lists):
    sums = [0]
    for pages in lists:
        sums.append(sums[-1] + len(pages))
    return ints(sums)


def decode(tensor_cores):
    def plan(workspace, prefix, own):
        whole = [prefix + pages for pages in own]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        wrapper.plan(offsets(whole), ints(sum(whole, [])), ints([PAGE] * len(own)), head_dim=SIZE, kv_data_type=torch.bfloat16, **SHAPE)
        return wrapper
    return plan


def prefill(workspace, prefix, own):
    whole = [prefix + pages for pages in own]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(ints(range(len(own) + 1)), offsets(whole), ints(sum(whole, [])), ints([PAGE] * len(own)), head_dim_qk=SIZE, causal=True,
                 kv_data_type=torch.bfloat16, **SHAPE)
    return wrapper


def cascade(workspace, prefix, own):
    if not prefix:
        return None
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, "NHD")
    rows = len(own)
    wrapper.plan([ints([0, rows]), ints(range(rows + 1))], [ints([0, len(prefix)]), offsets(own)], [ints(prefix), ints(sum(own, []))],
                 [ints([PAGE]), ints([PAGE] * rows)], head_dim=SIZE, **SHAPE)
    return wrapper


WRAPPERS = {"decode_tensor_cores_us": decode(True), "cascade_us": cascade, "prefill_us": prefill, "decode_us": decode(False)}


def median_us(wrapper, queries, pools):
    def launches():
        for _ in range(ROUNDS):
            for pool in pools:
                wrapper.run(queries, pool)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    times = []
    for i in range(REPEATS + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1000 / (ROUNDS * POOLS))
    return statistics.median(times)


def main(path):
    rows, outputs = [{"case": name_of(*case)} for case in CASES], {}
    for wrapper_name, plan in WRAPPERS.items():
        for row, (shared, own, batch) in zip(rows, CASES):
            torch.manual_seed(1)
            prefix, requests = tables(shared, own, batch)
            pages = len(prefix) + sum(map(len, requests))
            pools = [torch.randn(pages, 2, PAGE, KV_HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(POOLS)]
            queries = torch.randn(batch, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
            workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            try:
                if (wrapper := plan(workspace, prefix, requests)) is None:
                    continue
                output = wrapper.run(queries, pools[0]).float()
                expected = outputs.setdefault(row["case"], output)
                if (far := (output - expected).abs().max().item()) > 0.02:
                    raise RuntimeError(f"its output differs by {far}")
                row[wrapper_name] = round(median_us(wrapper, queries, pools), 1)
            except Exception as error:  # noqa: BLE001 - whatever one wrapper says, the others are measured
                print(f"{wrapper_name}, {row['case']}: {error}", file=sys.stderr)
            print(row, flush=True)
            pathlib.Path(path).write_text(json.dumps({"version": flashinfer.__version__, "device": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1])
