"""What `make bench` does with programs that bring nothing."""

import argparse
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import common
import compare


class KernelTest(unittest.TestCase):
    def test_no_figures_are_a_failure(self):
        bench = compare.Bench(argparse.Namespace(threads=1, peers=".", attention_bench="true"))
        with self.assertRaises(common.Failure):
            bench.kernel()


if __name__ == "__main__":
    unittest.main()
