#!/usr/bin/env python3
"""What FlashInfer's wrappers take, as gpu_attention.py says, over pages of 16 tokens: gpu_flashinfer.py RESULTS.json."""

import sys

import flashinfer
import torch

from gpu_attention import HEADS, KV_HEADS, SIZE, in_a_graph, measure

PAGE = 16
SHAPE = dict(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, page_size=PAGE, q_data_type=torch.bfloat16)


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def offsets(lists):
    sums = [0]
    for pages in lists:
        sums.append(sums[-1] + len(pages))
    return ints(sums)


def workspace():
    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def decode(tensor_cores):
    def plan(prefix, own):
        whole = [prefix + pages for pages in own]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=tensor_cores)
        wrapper.plan(offsets(whole), ints(sum(whole, [])), ints([PAGE] * len(own)), head_dim=SIZE, kv_data_type=torch.bfloat16, **SHAPE)
        return wrapper.run
    return plan


def prefill(prefix, own):
    whole = [prefix + pages for pages in own]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(ints(range(len(own) + 1)), offsets(whole), ints(sum(whole, [])), ints([PAGE] * len(own)), head_dim_qk=SIZE, causal=True,
                 kv_data_type=torch.bfloat16, **SHAPE)
    return wrapper.run


def cascade(prefix, own):
    if not prefix:
        return None
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(), "NHD")
    rows = len(own)
    wrapper.plan([ints([0, rows]), ints(range(rows + 1))], [ints([0, len(prefix)]), offsets(own)], [ints(prefix), ints(sum(own, []))],
                 [ints([PAGE]), ints([PAGE] * rows)], head_dim=SIZE, **SHAPE)
    return wrapper.run


WAYS = {"decode_tensor_cores_us": decode(True), "cascade_us": cascade, "prefill_us": prefill, "decode_us": decode(False)}

if __name__ == "__main__":
    measure(sys.argv[1], flashinfer.__version__, {name: (PAGE, plan, in_a_graph) for name, plan in WAYS.items()})
