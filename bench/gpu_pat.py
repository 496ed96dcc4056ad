#!/usr/bin/env python3
"""What PAT (flashserve/PAT, ASPLOS 2026) takes, as gpu_attention.py says: gpu_pat.py RESULTS.json.

PAT's own scheduler packs the tree and chooses the tiles. How it cuts a run depends on the size of pages, so several are measured: its own
benchmark has 32 tokens, with which its result of the first case is wrong. PAT launches into the legacy default stream, which no graph can
capture, so its launches are queued behind a sleeping kernel. A build whose launches follow torch's stream is measured in a graph, too."""

import importlib.metadata
import sys

import torch
from prefix_attn import PrefixTreeCPP, prefix_attn_with_kvcache

from gpu_attention import HEADS, KV_HEADS, SIZE, behind_a_sleep, in_a_graph, measure

PAGES = (32, 64, 128)


def packed(page):
    def plan(prefix, own):
        whole = [prefix + pages for pages in own]
        tree = PrefixTreeCPP(page)
        table = torch.tensor(whole, dtype=torch.int32)  # the tree points into it until it is packed
        tree.build_radix_tree([page * len(pages) for pages in whole], table)
        tree.pack_schedule(None, HEADS // KV_HEADS, KV_HEADS)
        tree.kernel_info.to_gpu(torch.device("cuda"))
        torch.cuda.synchronize()
        output = torch.empty(len(own), 1, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")

        def run(queries, pool):
            keys, values = pool.unbind(1)
            prefix_attn_with_kvcache(q=queries.unsqueeze(1), k_cache_paged=keys, v_cache_paged=values, tree=tree, softmax_scale=SIZE**-0.5,
                                     out=output)
            return output.squeeze(1)
        return run
    return plan


WAYS = {f"pages_of_{page}{suffix}_us": (page, packed(page), clock)
        for suffix, clock in (("", behind_a_sleep), ("_graph", in_a_graph)) for page in PAGES}

if __name__ == "__main__":
    measure(sys.argv[1], importlib.metadata.version("prefix_attn"), WAYS)
