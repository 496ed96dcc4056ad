"""How `make bench-peers` chooses what to run and what to keep: no server runs here."""

import dataclasses
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import bounds
import client
import common
import loads
import peers
import peers_report


def result(wall=1.0, decode=10.0, cached=0):
    return client.Result(wall, 0.1, 0.2, 10.0, decode, [1], [1], cached)


class Bench(peers.PeerBench):
    """Settings take as long as `walls` says, in the order in which they are tried."""

    def __init__(self, walls):
        self.builds, self.hopeless, self.walls, self.tried = {"": None}, set(), walls, []

    def outcome(self, setting, limit):
        wall = self.walls[len(self.tried)]
        self.tried.append(str(setting))
        if wall > limit:
            raise client.TooSlow("too slow")
        return result(wall, decode=wall)  # what is slow in all decodes fast

    def try_cold(self, load, setting, limit):
        return self.outcome(setting, limit)

    def try_warm(self, load, setting):
        return self.outcome(setting, 1800)


class ComparisonTest(unittest.TestCase):
    def test_faster_is_the_median_over_the_pairs(self):
        wall = common.Comparison("wall", "s", 4, higher_is_better=False)
        for ours, peer in ((1.0, 3.0), (1.0, 5.0)):
            wall.add(ours, {"setting": peer})
        self.assertEqual(wall.faster(), 4)
        decode = common.Comparison("decode", "tok/s", 4)
        for ours, peer in ((30.0, 10.0), (50.0, 10.0)):
            decode.add(ours, {"setting": peer})
        self.assertEqual(decode.faster(), 4)


def load_named(name):
    return next(load for load in loads.all_loads() if load.name == name)


class SearchTest(unittest.TestCase):
    def test_a_cold_load_gives_slow_settings_up_and_longer_ones_leave_them_out(self):
        bench = Bench([10, 100, 12, 9])
        load = load_named("cold-8-1500")
        found = bench.search(load)
        self.assertEqual([isinstance(f, client.Result) for f in found.values()], [True, False, True, True])
        bench.remember_hopeless(load, {"search": {str(setting): f for setting, f in found.items()}})
        bench.walls, bench.tried = [30, 30, 30], []
        self.assertEqual(len(bench.search(load_named("cold-16-3500"))), 4)
        self.assertEqual(len(bench.tried), 3)

    def test_warm_loads_and_decode_rows_try_every_setting_to_the_end(self):
        for name in ("warm-8-1500", "warm-16-2048", "unrelated-8-1500"):
            bench = Bench([10, 1000, 12, 9])
            load = load_named(name)
            bench.hopeless = {bench.without_slots(str(setting)) for setting in bench.settings(load)}
            found = bench.search(load)
            self.assertTrue(all(isinstance(f, client.Result) for f in found.values()), name)
            slowest = list(found)[1]
            best = bench.contenders(load, found)[0]
            self.assertEqual(best == slowest, load.rows[0].measure == "decode_tokens_per_s", name)


class ResumeTest(unittest.TestCase):
    def kept(self, resume, **changes):
        report = {"machine": "m", "threads": 2, "model": "o", "rounds": 3, "commit": "new", "date": "2026-02-02"}
        old = report | {"date": "2026-01-01", "bandwidth_bytes_per_s": {"16777216": 3.0}} | changes
        old["loads"] = {"stream": {"rows": []}, "cold-8-1500": {"rows": [], "commit": "new", "date": "2026-02-01"}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "peers.json"
            path.write_text(json.dumps(old))
            return peers.kept(path, report, resume)

    def test_other_commits_are_kept_only_when_asked_for(self):
        self.assertEqual(list(self.kept("same")[0]), ["cold-8-1500"])
        found, bandwidths, _ = self.kept("any")
        self.assertEqual(found["stream"]["commit"], "unknown")
        self.assertEqual(found["stream"]["date"], "2026-01-01")
        self.assertEqual(bandwidths, {16777216: 3.0})
        self.assertEqual(self.kept(""), ({}, {}, 0.0))
        self.assertEqual(self.kept("any", threads=1), ({}, {}, 0.0))

    def test_the_table_names_the_commits_and_what_is_unknown(self):
        row = {"title": "load", "unit": "s", "higher_is_better": False, "coppice": 1.0, "peer": 2.0, "setting": "-fa on",
               "faster": 2.0, "goal": None, "bound": 0.5, "all_coppice": [1.0, 0.4],
               "all_peers": {"-fa on": [2.0, 1.2]}}
        report = {"machine": "m", "threads": 2, "model": "o", "rounds": 3, "commit": "new", "date": "2026-02-02",
                  "amx": False, "loads": {
                      "old": {"rows": [row], "commit": "unknown", "date": "2026-01-01"},
                      "new": {"rows": [row], "commit": "new", "date": "2026-02-02", "busy": 0.5}}}
        text = peers_report.markdown(report, "chart.png", 0.1, 1.1, 1.6, 100, [])
        self.assertIn("2026-01-01, commit unknown: old; 2026-02-02, commit new: new.", text)
        self.assertIn("| load ? |", text)
        self.assertIn("| load * |", text)
        self.assertIn("50 %", text)
        self.assertIn("**2.00x** (2.00–3.00)", text)
        self.assertIn("0.50 s (50 %): in one round memory was faster than whenever it was measured", text)


class BoundsTest(unittest.TestCase):
    def bounds(self, rates, peaks):
        class Model:
            weight_bytes, kv_bytes_per_token, head_size = 16 * 2**20, 0, 64
            layer_multiply_adds, output_multiply_adds, attention_multiply_adds = 1000, 100, 10

        bounds_of_model = bounds.Bounds(Model, 2, "machine_peak")
        bounds_of_model.byte_dots = 4
        bounds_of_model.attention_dots = 2
        answers = {"read": iter(rates), "multiply": iter(peaks)}
        bounds.output_of, before = lambda command: next(answers[command[1]]), bounds.output_of
        self.addCleanup(setattr, bounds, "output_of", before)
        for _ in range(len(rates) // 2):
            with bounds_of_model.measured([5]):
                pass
        return bounds_of_model

    def test_the_most_that_was_seen_around_any_load_of_a_size_counts(self):
        found = self.bounds(["100", "300", "200", "150"], ["7", "9", "8", "6"])
        self.assertEqual(found.bandwidths, {16 * 2**20: 300.0})
        self.assertEqual(found.peak, 9)

    def test_a_smaller_buffer_is_never_slower(self):
        found = self.bounds(["100", "100"], ["1e9", "1e9"])
        found.bandwidths |= {32 * 2**20: 400.0, 8 * 2**20: 900.0}
        self.assertEqual(found.step_seconds(1, 5, 9), 16 * 2**20 / 400)

    def test_a_step_reads_or_multiplies_and_a_prefill_multiplies(self):
        found = self.bounds([str(2**20)] * 2, ["1e9"] * 2)
        self.assertEqual(found.step_seconds(4, 5, 9), 16)
        found.peak = 10.0
        products, attention = 4 * (1000 + 100) / 4, 4 * 9 * 10 / 2
        self.assertEqual(found.step_seconds(4, 5, 9), (products + attention) / 10)
        # Tokens 7 and 8 see 8 and 9 keys.
        self.assertEqual(found.prefill_seconds(2, 7, 1), ((2 * 1000 + 100) / 4 + 17 * 10 / 2) / 10)

    def test_cold_loads_prefill_each_groups_prefix_once(self):
        found = self.bounds([str(2**20)] * 2, ["10"] * 2)
        load = loads.Load("x", "x", 4, 100, (), groups=2, own=3, out=5)
        own = 8 * found.prefill_seconds(3, 100, 1)
        shared = 2 * found.prefill_seconds(100, 0, 0)
        step = found.step_seconds(8, load.unique_tokens, 105)
        self.assertEqual(found.of(load, "ttft_max_s"), shared + own)
        self.assertEqual(found.of(load, "wall_s"), shared + own + 4 * step)
        self.assertEqual(found.of(dataclasses.replace(load, warm=True), "wall_s"), own + 4 * step)
        self.assertEqual(found.of(load, "decode_tokens_per_s"), 8 / step)


if __name__ == "__main__":
    unittest.main()
