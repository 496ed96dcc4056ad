"""The page of benchmarks, and the bounds beside its rows."""

import argparse
import dataclasses
import pathlib
import sys
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPO / "bench"))

import bounds
import comings
import cores_page
import gpu
import gpu_page
import loads
import neighbours
import page
import pictures
import pictures_page
import results
import traces


def row(**changes):
    return {"coppice": 0.5, "peer": 2.0, "setting": "-fa on", "faster": 4.1, "range": [3.9, 4.4], "bound": 0.25,
            "bound_by": "memory", "rounds": 3, "date": "2026-02-02", "commit": "new"} | changes


class TableTest(unittest.TestCase):
    def table(self, name, measure, **changes):
        return "\n".join(page.table({name: {measure: row(**changes)}}))

    def test_a_row_says_what_was_reached_of_the_goal_and_of_the_bound(self):
        text = self.table("cold-8-1500", "wall_s")
        self.assertIn("| 8 at once sharing 1,500 tokens, cold: total time | 0.50 s | 2.00 s | -fa on | **4.10x** (3.90–4.40) "
                      "| ≥ 10x: no | 50 %, memory | a |", text)
        self.assertIn("≥ 10x: yes", self.table("cold-8-1500", "wall_s", faster=10.0))

    def test_a_setting_is_shown_without_what_is_the_rule(self):
        for setting, shown in (("AMX, -fa on, --no-kv-unified, -np 8", "-fa on, split"), ("no AMX, -fa off, -np 1", "no AMX, -fa off, -np 1"),
                               ("-fa off, --kv-unified, -np 16", "-fa off, unified")):
            self.assertIn(f"| {shown} |", self.table("cold-8-1500", "wall_s", setting=setting))

    def test_a_loads_later_rows_do_not_repeat_its_title(self):
        text = "\n".join(page.table({"cold-8-1500": {"wall_s": row(), "ttft_max_s": row()}}))
        self.assertIn("| … slowest first token |", text)

    def test_a_faster_round_than_its_bound_shows(self):
        self.assertIn("200 %, memory", self.table("engine-2048", "decode_tokens_per_s", coppice=50.0, bound=25.0))

    def test_our_own_figures_have_limits(self):
        own = {"peer": None, "setting": None, "faster": None, "range": None, "bound": None, "bound_by": None}
        for measure, value, cell in (("bookkeeping", 0.0035, "| 0.35 % | – | – | – | ≤ 2 %: yes | – |"),
                                     ("bookkeeping", 0.03, "≤ 2 %: no"), ("kv_read_ratio", 1.2, "≤ 1.05: no")):
            found = {key: value for key, value in row(coppice=value).items() if key not in own}
            self.assertIn(cell, "\n".join(page.table({"engine-16-shared": {measure: found}})))
        self.assertIn("≥ 70 %: yes", self.table("kernel", "bandwidth_share", coppice=0.71))

    def test_the_runs_are_named_and_noise_is_marked(self):
        text = "\n".join(page.table({"stream": {"decode_tokens_per_s": row(busy=0.5)},
                                     "long-prompt": {"wall_s": row(commit="old", rounds=1)}}))
        self.assertIn("a: 2026-02-02, commit new, 3 rounds; b: 2026-02-02, commit old, 1 round.", text)
        self.assertIn("| one stream, short context: decode * |", text)
        self.assertIn("over 10 % of the machine", text)
        self.assertNotIn("\\*", self.table("stream", "decode_tokens_per_s", busy=0.05))
        self.assertNotIn("3.90–4.40", self.table("stream", "decode_tokens_per_s", rounds=1))


class CoresPageTest(unittest.TestCase):
    def section(self, *rows):
        return list(cores_page.section({"machine": "A CPU", "date": "2026-02-02", "models": {"m": [
            {"what": what, "coppice": ours, "llama.cpp": peer} for what, ours, peer in rows]}}))

    def test_what_is_free_is_the_measure(self):
        quiet = [("2 cores", [2000, 200], [500, 100]), ("4 cores", [4000, 300], [1000, 150])]
        for what, ours, of_free in (("4 cores, 2 busy", [1800, 190], "0.90 / 0.95"), ("4 cores, 4 busy", [1500, 90], "0.75 / 0.60"),
                                    ("4 cores, a quota of 2", [2000, 180], "1.00 / 0.90"), ("4 cores, 1 busy", [1, 1], "–")):
            self.assertIn(f"| {what} | {ours[0]:,} / {ours[1]} | 100 / 10 | {ours[0] / 100:.2f} / {ours[1] / 10:.2f} | {of_free} |",
                          self.section(*quiet, (what, ours, [100, 10])))

    def test_what_did_not_end_says_so(self):
        self.assertIn("| 4 cores, 4 busy | 9 / 8 | no end | – | – |", self.section(("4 cores, 4 busy", [9, 8], None)))

    def test_the_host_with_most_cores_has_tables_and_others_a_line(self):
        def host(cores, rate):
            rows = [(f"{cores // 2} cores", rate / 2), (f"{cores} cores", rate), (f"{cores} cores, {cores // 2} busy", rate / 4)]
            return {"machine": f"A CPU, {cores} cores (AVX2)", "date": "2026-02-02",
                    "models": {"m": [{"what": what, "coppice": [ours, 10], "llama.cpp": [rate / 4, 5]} for what, ours in rows]}}
        text = "\n".join(cores_page.page([host(4, 1000), host(8, 4000)]))
        self.assertIn("### A CPU, 8 cores (AVX2)", text)
        self.assertNotIn("### A CPU, 4 cores", text)
        self.assertIn("- 4 cores, m: 4 cores 1,000 / 10, 4.00 / 2.00 times llama.cpp; of what is free, 2 busy 0.50 / 1.00.", text)
        self.assertEqual([], list(cores_page.page([])))

    def test_stretches_of_loads_stand_beside_each_other(self):
        rows = {load: [{"what": "all cores busy", "rate": rate, "p99": 2.5, "settled": settled}]
                for load, rate, settled in (("stream", 200, 0.5), ("prompts", 4000, None))}
        rows["stream"].append({"what": "quiet at last", "rate": 0, "p99": None, "settled": None})
        rows["prompts"].append({"what": "quiet at last", "rate": 9000, "p99": 1, "settled": 1})
        lines = list(cores_page.comings_table(rows | {"pair of stream": [300, 200]}))
        self.assertIn("| quiet at last | – | – | – | 9,000 | 1.0 | 1.00 |", lines)
        self.assertIn("| all cores busy | 200 | 2.5 | 0.50 | 4,000 | 2.5 | – |", lines)
        self.assertIn("Two servers beside each other: stream 300 and 200 tok/s (1.50 to 1).", lines)


class NeighboursTest(unittest.TestCase):
    def rows(self, cores, **options):
        o = argparse.Namespace(**{"loads": ["cores", "neighbours", "threads"], "busy": None} | options)
        with mock.patch("os.sched_getaffinity", lambda _: set(range(cores))):
            return {row.what: row for row in neighbours.rows(o)}

    def test_what_is_free_beside_neighbours_is_measured_too(self):
        rows = self.rows(32, busy=[8, 32, 64])
        self.assertEqual([what for what in rows if what.endswith(("core", "cores"))], [f"{n} core{'s' * (n > 1)}" for n in (1, 2, 4, 8, 16, 24, 32)])
        self.assertEqual([what for what in rows if "busy" in what], ["32 cores, 8 busy", "32 cores, 32 busy"])
        self.assertEqual(rows["32 cores, 8 busy"].busy, tuple(range(8)))
        self.assertEqual(len(rows["24 cores"].cores), 24)

    def test_threads_are_said_below_at_and_above_the_cores(self):
        self.assertEqual([row.threads for row in self.rows(2, loads=["threads"]).values()], [1, 2, 3])

    def test_rows_have_turns_and_what_had_no_end_is_not_tried_again(self):
        asked = []
        def side(name, rates):
            def run(o, row, group):
                asked.append((name, row.what))
                return rates.pop(0)
            return name, run
        o = argparse.Namespace(loads=["cores"], busy=None, rounds=3)
        with mock.patch("os.sched_getaffinity", lambda _: {0}), mock.patch("neighbours.say"):
            ((row, rates),) = neighbours.measured(o, [side("coppice", [[1, 9], [3, 7], [2, 8]]), side("llama.cpp", [[5, 5], None])])
        self.assertEqual((row.what, rates), ("1 core", {"coppice": [2, 8], "llama.cpp": None}))
        self.assertEqual([name for name, _ in asked], ["coppice", "llama.cpp", "coppice", "llama.cpp", "coppice"])


class ComingsTest(unittest.TestCase):
    def test_a_stretch_is_settled_where_a_quarter_second_comes_near(self):
        slow = [(10 + 0.05 * i, 5, 0.05) for i in range(1, 20)]           # 100 tok/s until 11.0
        fast = [(11 + 0.01 * i, 5, 0.01) for i in range(1, 298)]          # 500 tok/s, one gap of which is long
        found = comings.figures(slow + fast + [(13.99, 5, 0.04)], 10, 14)
        self.assertAlmostEqual(found["rate"], 500, delta=10)
        self.assertEqual(found["settled"], 1.25)
        self.assertAlmostEqual(found["p99"], 1, delta=0.1)
        self.assertEqual(comings.figures(slow, 10, 14), {"rate": 0, "p99": None, "settled": None})



class PicturesPageTest(unittest.TestCase):
    def test_the_last_column_is_without_the_encoder(self):
        def figures(wall, encode, first):
            return {"wall_s": wall, "encode_s": encode, "ttft_median_s": first}

        ours = [{"side": "coppice", "cold": figures(6.0 + i, 4.0 + i, 5.0), "warm": figures(1.0, 0.0, 0.1)} for i in range(3)]
        theirs = [{"side": "llama-server", "cold": figures(14.0, 4.0, 9.0), "warm": figures(8.0, 0.0, 4.0)}]
        content = {"machine": "A CPU", "date": "2026-02-02", "commit": "abc", "model": "A shape", "threads": 2, "rounds": 3, "peer_options": "--swa-full",
                   "prompt_tokens": 311, "sides": pictures.summary([*ours, *theirs])}
        text = "\n".join(pictures_page.page([content]))
        self.assertIn("| cold, against llama-server | 7.00 | 5.00 | 5.00 | 14.00 | 4.00 | 9.00 | **2.00x** | **5.00x** |", text)
        self.assertIn("| warm, against llama-server | 1.00 | 0.00 | 0.10 | 8.00 | 0.00 | 4.00 | **8.00x** | **8.00x** |", text)
        self.assertIn("A CPU, 2 threads, 3 rounds, prompts of 311 tokens; 2026-02-02, commit abc; llama-server with `--swa-full`.", text)
        self.assertEqual([], list(pictures_page.page([])))


class GpuPageTest(unittest.TestCase):
    def test_goals_are_met_in_the_right_direction(self):
        parts = {name: 1.0 for name in ("norm", "rows", "attention", *gpu_page.PRODUCTS)}
        copy = {"case": "copy", "tb_s": 4.0}
        content = {"device": "NVIDIA H200", "driver": "1", "date": "2026-02-02",
                   "attention": [copy, {"case": "2,048 shared + 256, B = 8", "us": 12.0, "floor_us": 3.0}],
                   "steps": [copy, {"weights": "bf16", "case": "8,192 shared + 256, B = 32", "us": 5000, "bound_us": 4000,
                                    "tokens_s": 6400, "parts": parts}]}
        full = "\n".join(gpu_page.section(content, True))
        self.assertIn("| 12.0 | 3.0 | – | 25 % | ≤ 10: no |", full)
        self.assertIn("| 6,400 | 5,000 | 4,000 | 128 | 32 | 96 | ≥ 5,500: yes |", full)
        short = "\n".join(gpu_page.section(content))
        self.assertIn("| 12.0 | 3.0 | – |\n", short)
        self.assertIn("| 6,400 | 5,000 | 4,000 |", short)
        self.assertNotIn("≥", short)
        self.assertNotIn("6,400", "\n".join(gpu_page.section(content, newest=False)))

    def test_other_programs_attention_stands_beside_ours_where_it_was_measured(self):
        copy, case = {"case": "copy", "tb_s": 4.0}, "2,048 shared + 256, B = 8"
        content = {"attention": [copy, {"case": case, "us": 12.0, "floor_us": 3.0}, {"case": "one decode", "us": 9.0, "floor_us": 1.0}],
                   "FlashInfer 1": [{"case": case, "decode_us": 32.0, "cascade_us": 18.5}]}
        self.assertIn(f"| {case} | 12.0 | 3.0 | 18.5 |", list(gpu_page._attention(content, False)))
        self.assertNotIn("PAT", "\n".join(gpu_page._attention(content, False)))
        content["PAT 2"] = [{"case": case, "as_it_is_us": 30.5, "cut_finer_us": 25.0}, {"case": "failed"}]
        self.assertIn("| step | coppice | floor | FlashInfer | PAT |", list(gpu_page._attention(content, False)))
        self.assertIn(f"| {case} | 12.0 | 3.0 | 18.5 | 25.0 | 25 % | ≤ 10: no |", list(gpu_page._attention(content, True)))
        self.assertIn("| one decode | 9.0 | 1.0 | – | – |", list(gpu_page._attention(content, False)))

    def test_the_server_is_compared_with_the_peers_best_setting_and_with_a_slot_each(self):
        def side(name, first, wall):
            return {"side": name, "first_s": first, "wall_s": wall, "rounds": 1}
        content = {"device": "NVIDIA H200", "server": [side("coppice", 1, 2), side("llama-server, -np 1", 30, 18), side("llama-server, -np 64", 90, 200)]}
        self.assertIn("against llama-server's best setting: 30x and 9x; against a slot for each request: 90x and 100x.", "\n".join(gpu_page.short(content)))
        self.assertIn("30x (≥ 30: yes), total 9x (≥ 10: no)", "\n".join(gpu_page._server(content, True)))
        del content["server"][2]
        self.assertIn("setting: 30x and 9x.", "\n".join(gpu_page.short(content)))
        self.assertEqual([], list(gpu_page.short({"device": "NVIDIA H200"})))

    def test_mixtures_of_experts_stand_beside_the_peer(self):
        row = {"model": "Qwen 3", "load": "a prompt of 512", "coppice": 26000.4, "llama-server": 10400}
        self.assertIn("| Qwen 3 | a prompt of 512 | 26,000 | 10,400 | **2.50x** |", list(gpu_page._experts({"experts": [row]})))
        self.assertEqual([], list(gpu_page._experts({})))

    def test_parts_are_read_from_what_the_bench_prints(self):
        self.assertEqual([{"norm": 1.5, "rows": 2.0}], gpu.parts_of("H200\nbf16 x 5 us\n   norm 1.50  rows 2.00\n"))


class PageTest(unittest.TestCase):
    def test_the_page_is_what_the_results_say(self):
        files = sorted((REPO / "bench/results").glob("*.json"))
        self.assertGreaterEqual(len(files), 2)
        contents = [results.read(file) for file in files]
        for content in contents:
            for found in content["results"].values():
                for name, rows in found.items():
                    for measure in rows:
                        self.assertIsNotNone(loads.row_of(name, measure), f"{name}: {measure} is no row of bench/loads.py")
        self.assertEqual((REPO / "bench/README.md").read_text(), page.text(*page.contents(REPO / "bench/results")), "run bench/page.py")

    def test_every_question_is_a_row_of_a_load(self):
        for name, measure, _ in page.QUESTIONS:
            self.assertIsNotNone(loads.row_of(name, measure))

    def test_all_loads_stand_in_one_table(self):
        loads_of = {"cold-8-1500": {"wall_s": row(busy=0.5), "ttft_max_s": row(rounds=1)}}
        machines = [{"machine": "Box A, 2 cores (AMX)", "results": {"m": loads_of}},
                    {"machine": "Box B, 2 cores (AVX2)", "results": {"m": {}, "n": {"stream": {"decode_tokens_per_s": row(coppice=99.0)}}}}]
        text = "\n".join(page.all_loads(machines))
        self.assertIn("| load | Box A AMX | Box B |", text)
        self.assertIn("| 8 at once sharing 1,500 tokens, cold: total time, s; slowest first token, s | 0.50\\*, **4.10x**; 0.50†, **4.10x** | – |", text)
        self.assertIn("| one stream, short context: decode, tok/s | – | 99, **4.10x** |", text)
        loads_of["cold-8-1500-queue"] = {"wall_s": row()}
        text = "\n".join(page.all_loads(machines))
        self.assertIn("| 8 at once sharing 1,500 tokens, cold (peer in turn): total time, s | 0.50, **4.10x** | – |", text)
        self.assertNotIn("cold: total time", text, "the peer's setting of that row suits it less")
        own = {"engine-16-shared": {"bookkeeping": {"coppice": 0.0035, "rounds": 3}}}
        self.assertIn("share of a step | 0.35 % |", "\n".join(page.all_loads([{"machine": "A", "results": {"m": own}}])))

    def test_goals_are_printed_for_every_machine_and_card(self):
        text = page.goals(*page.contents(REPO / "bench/results"))
        self.assertIn("≥ 10x: ", text)
        self.assertIn("| goal, tokens/s |", text)

    def test_the_summary_shows_each_machine_and_what_it_lacks(self):
        machines = [{"machine": "Box A, 2 cores (AMX)", "results": {"m": {"stream": {"decode_tokens_per_s": row(coppice=99.0)}}}},
                    {"machine": "Box B, 2 cores (AVX2)", "results": {"m": {}}}]
        text = "\n".join(page._short(machines))
        self.assertIn("Box A AMX: coppice | llama-server | faster | Box B: coppice", text)
        self.assertIn("| one chat: tokens a second | 99 tok/s | 2 tok/s | **4.10x** (3.90–4.40) | – | – | – |", text)


class TracesTest(unittest.TestCase):
    def test_a_replay_becomes_a_table(self):
        budget = {"budget_percent": 1, "budget_blocks": 20, "lru": 0.1, "coppice": 0.15, "optimum": 0.3, "processor_seconds": 0.5}
        report = traces.report_of({"trace": "chat", "requests": 1000, "tokens": 2e6, "distinct_blocks": 2000, "blocks": 4000,
                                   "infinite": 0.4, "rows": [budget, budget | {"optimum": 0.1}], "tiers": [
                                       {"pool_percent": 1, "disk_percent": 20, "all_evicted": False, "cached": 0.2, "loaded": 0.05, "stored": 0.01},
                                       {"pool_percent": 1, "disk_percent": 20, "all_evicted": True, "cached": 0.35, "loaded": 0.2, "stored": 0.7}]})
        rates = {"insert_with_eviction": 40e6, "match_32k": 900e6, "other": 1}
        tree = traces.tree_of([{"run_name": f"{name}/{blocks}/x", "aggregate_name": kind, "items_per_second": rate / blocks}
                               for name, rate in rates.items() for blocks in (4, 1) for kind in ("median", "mean")])
        self.assertEqual(tree, {"blocks": [1, 4], "inserted": [40, 10], "matched": [900, 225]})
        text = "\n".join(page._traces({"machine": "m", "traces": {"date": "d", "reports": [report], "tree": tree}}))
        self.assertIn("`chat`: 1,000 requests, 2.0 M prompt tokens. A cache without end serves **40.0** %.", text)
        self.assertIn("| 1 % | 10.0 | **15.0** | 30.0 |", text)
        self.assertIn("A pool of 1 % with a [disk](../docs/operations.md#a-second-tier) of 20 %", text)
        self.assertIn("| chat | 15.0 | what is used twice | **20.0** | 5.0 | 1.0 |", text)
        self.assertIn("| chat | 15.0 | all that is evicted | **35.0** | 20.0 | 70.0 |", text)
        self.assertIn("4 to 4 M prompt tokens a second in the replay", text)
        self.assertIn("With 1 to 4 blocks the tree matches 225 to 900 M tokens a second, and takes in 10 to 40 M.", text)


class MissingTest(unittest.TestCase):
    def test_a_model_lacks_only_its_own_loads(self):
        content = {"machine": "m", "threads": 2, "bounds": {"gb_per_s": [1, 2], "multiply_adds_per_s": 1e9},
                   "results": {"gemma": {"gemma3-cold-8-1500": {"wall_s": row()}}}}
        self.assertIn("Not run: gemma3-cold-8-1500-queue, gemma3-warm-8-1500.", "\n".join(page._machine(content)))


class Model:
    weight_bytes, kv_bytes_per_token, head_size = 16 * 2**20, 0, 64
    layer_multiply_adds, output_multiply_adds, attention_multiply_adds = 1000, 100, 10
    whole = True


class BoundsTest(unittest.TestCase):
    def bounds(self, rates, peaks, loads_measured=1):
        found = bounds.Bounds(Model, 2, "machine_peak")
        found.byte_dots, found.attention_dots = 4, 2
        answers = {"read": iter(rates), "multiply": iter(peaks)}
        with mock.patch("bounds.output_of", lambda command: next(answers[command[1]])):
            for _ in range(loads_measured):
                with found.measured(loads.LOADS["stream"]):
                    pass
        return found

    def test_the_most_that_was_seen_around_any_load_of_a_size_counts(self):
        found = self.bounds(["100", "300", "200", "150"], ["7", "9", "8", "6"], 2)
        self.assertEqual(found.bandwidths, {16 * 2**20: 300.0})
        self.assertEqual(found.peak, 9)
        again = bounds.Bounds(Model, 2, "machine_peak", {"bytes_per_s": {"16777216": 300.0}, "multiply_adds_per_s": 9})
        self.assertEqual(again.as_json(), found.as_json())

    def test_a_smaller_buffer_is_never_slower(self):
        found = self.bounds(["100", "100"], ["1e9", "1e9"])
        found.bandwidths |= {32 * 2**20: 400.0, 8 * 2**20: 900.0}
        self.assertEqual(found.step_seconds(1, 5, 9), (16 * 2**20 / 400, "memory"))

    def test_a_step_reads_or_multiplies_and_a_prefill_multiplies(self):
        found = self.bounds([str(2**20)] * 2, ["1e9"] * 2)
        self.assertEqual(found.step_seconds(4, 5, 9), (16, "memory"))
        found.peak = 10.0
        products, attention = 4 * (1000 + 100) / 4, 4 * 9 * 10 / 2
        self.assertEqual(found.step_seconds(4, 5, 9), ((products + attention) / 10, "multiplication"))
        # Tokens 7 and 8 see 8 and 9 keys.
        self.assertEqual(found.prefill_seconds(2, 7, 1), ((2 * 1000 + 100) / 4 + 17 * 10 / 2) / 10)

    def test_cold_loads_prefill_each_groups_prefix_once(self):
        found = self.bounds([str(2**20)] * 2, ["10"] * 2)
        load = loads.Burst("x", "x", (), 4, 100, groups=2, own=3, out=5)
        own = 8 * found.prefill_seconds(3, 100, 1)
        shared = 2 * found.prefill_seconds(100, 0, 0)
        step, _ = found.step_seconds(8, load.unique_tokens, 105)

        def of(measure, load=load):
            return found.of(load, loads.Row(measure))
        self.assertEqual(of("ttft_max_s"), (shared + own, "multiplication"))
        self.assertEqual(of("wall_s")[0], shared + own + 4 * step)
        self.assertEqual(of("wall_s", dataclasses.replace(load, warm=True))[0], own + 4 * step)
        self.assertEqual(of("decode_tokens_per_s")[0], 8 / step)
        self.assertIsNone(of("ttft_median_s"))
        with mock.patch.object(Model, "whole", False):  # the figures of such a model say too much
            self.assertIsNone(of("wall_s"))

    def test_a_format_of_fewer_bytes_has_a_higher_bound(self):
        class Small(Model):
            weight_bytes, kv_bytes_per_token = 1e6, 1000
            layer_multiply_adds = output_multiply_adds = attention_multiply_adds = 1

        found = bounds.Bounds(Small, 1, "machine_peak")
        found.bandwidths, found.peak = {2**24: 1e9}, 1e12
        # 16,416 tokens: 1 + 16.416 MB; of int8 66 of 128 bytes, of turbo4 34.
        for name, rate in (("deep-int8", 106), ("deep-turbo4", 187)):
            load = loads.LOADS[name]
            self.assertEqual((round(found.of(load, load.rows[0])[0]), found.of(load, load.rows[0])[1]), (rate, "memory"))


if __name__ == "__main__":
    unittest.main()
