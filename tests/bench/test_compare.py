"""What `make bench` does with programs that bring nothing."""

import argparse
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import bounds
import common
import compare


class KernelTest(unittest.TestCase):
    def test_no_figures_are_a_failure(self):
        bench = compare.Bench(argparse.Namespace(threads=1, peers=".", attention_bench="true"))
        with self.assertRaises(common.Failure):
            bench.kernel()


class TableTest(unittest.TestCase):
    """Bounds beside the rows, on a model whose weights take 1 MB and a token's keys and values 1 kB."""

    def setUp(self):
        class Model:
            weight_bytes, kv_bytes_per_token, head_size = 1e6, 1000, 64
            layer_multiply_adds = output_multiply_adds = attention_multiply_adds = 1

        self.bounds = bounds.Bounds(Model, 1, "machine_peak")
        self.bounds.bandwidths, self.bounds.peak = {2**24: 1e9}, 1e12

    def test_a_format_of_fewer_bytes_has_a_higher_bound(self):
        speeds = {"f16": [100.0], "int8": [130.0], "turbo4": [90.0]}
        f16, int8, turbo4 = compare.format_rows({"deep": speeds}, self.bounds)
        # 16,416 tokens: 1 + 16.416 MB; of int8 66 of 128 bytes, of turbo4 34.
        self.assertIn("| 57 tok/s (174 %) |", f16)
        self.assertIn("| 1.30 | ≥ 1.3 | yes | 106 tok/s (123 %) |", int8)
        self.assertIn("| 0.90 | ≥ 1.3 | no | 187 tok/s (48 %) |", turbo4)

    def test_the_demos_requests_as_the_server_counted_them(self):
        load = compare.demo_as_load([{"answers": [""] * 8, "prompt_tokens": 8 * 1500, "cached_tokens": 7 * 1400,
                                      "completion_tokens": 8 * 48}])
        self.assertEqual((load.requests, load.shared, load.own, load.out), (8, 1400, 100, 48))

    def test_a_share_of_a_bound_in_seconds_is_the_bound_over_ours(self):
        row = common.Comparison("load", "s", 0.5, higher_is_better=False)
        row.add(2.0, {"-fa on": 8.0})
        self.assertEqual(row.as_row(0.5), "| load | 2.00 s | 8.00 s (-fa on) | **0.25** | ≤ 0.5 | yes | 0.50 s (25 %) |")


if __name__ == "__main__":
    unittest.main()
