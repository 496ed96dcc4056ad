"""How bench/run.py chooses what to run, what it makes of the figures and what it keeps. No server runs here."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import client
import engine
import kept
import loads
import machine
import results
import run
import serving
import sides
from process import Failure

COPPICE = sides.Side("coppice", pathlib.Path("coppice"))


def settings(load):
    return list(sides.peers_of(load, {"": pathlib.Path("/peers")}))


class Bursts(serving.BurstRuns):
    """Settings take as long as `walls` says, in the order in which they are tried."""

    def __init__(self, walls):
        super().__init__(None, None)
        self.text, self.walls, self.tried = mock.Mock(), walls, []

    def ready(self, load, of):
        found = mock.MagicMock()
        found.__enter__.return_value = ({side: mock.Mock() for side in of}, None)
        self.tried += [side.name for side in of]
        return found

    def prompts(self, load, heads):
        return []

    def burst(self, server, load, bodies, out, limit=1800):
        wall = self.walls[len(self.tried) - 1]
        if wall > limit:
            raise client.TooSlow("too slow")
        return {"wall_s": wall, "ttft_max_s": wall / 2, "decode_tokens_per_s": wall,  # what is slow in all decodes fast
                "prompt_tokens": [1], "cached_tokens": 1e6}


class LoadsTest(unittest.TestCase):
    def test_names_and_their_beginnings_choose(self):
        self.assertEqual([load.name for load in loads.chosen(["cold-8-1500-queue", "engine-16"])],
                         ["cold-8-1500-queue", "engine-16-shared"])
        self.assertEqual(len(loads.chosen(["all", "demo"])), len(loads.LOADS))
        self.assertEqual({load.name.split("-")[0] for load in loads.chosen(["engine"])}, {"engine"})
        with self.assertRaises(KeyError):
            loads.chosen(["cold-8-15"])

    def test_every_figure_and_peer_of_a_row_is_known(self):
        for load in loads.LOADS.values():
            for row in load.rows:
                self.assertIn(row.measure, loads.MEASURES)
                self.assertIn(row.peer.split(" ")[0], ("", "llama-bench", "llama-batched-bench"))

    def test_the_peer_gets_every_setting(self):
        names = [side.name for side in settings(loads.LOADS["cold-8-1500-queue"])]
        self.assertEqual(names[0], "-fa on, -np 1")
        self.assertEqual(len(names), 6)  # two with one slot, four with four
        self.assertEqual(len(settings(loads.LOADS["engine-2048"])), 2)
        self.assertEqual(len(settings(loads.LOADS["engine-8x400"])), 4)
        self.assertEqual(settings(loads.LOADS["engine-gaps"]), [])
        gemma = settings(loads.LOADS["gemma3-cold-8-1500-queue"])
        self.assertEqual(len(gemma), 12)  # each of the six with all that its windows leave, too
        self.assertEqual((gemma[1].name, gemma[1].options), ("-fa on, --swa-full, -np 1", ("-fa", "on", "--swa-full")))

    def test_loads_of_other_models_have_their_names_and_goals(self):
        self.assertEqual({load.model for load in loads.chosen(["gemma3"])}, {"gemma3"})
        self.assertEqual({load.model for load in loads.chosen(["engine", "demo", "cold", "warm"])}, {""})
        prefill, decode = loads.LOADS["1b-engine-512"].rows
        self.assertEqual((prefill.goal, prefill.depth, decode.goal), (1.5, 0, 1.2))
        self.assertEqual(loads.LOADS["gemma3-warm-8-1500"].rows, (loads.Row("wall_s", 2.5),))


class OthersTest(unittest.TestCase):
    def others(self, name, before=None):
        return sides.others_of(loads.LOADS[name], pathlib.Path("new"), before, {"": pathlib.Path("/peers")})

    def test_the_build_before_runs_with_the_loads_own_options(self):
        (before,) = self.others("engine-int8", pathlib.Path("old"))
        self.assertEqual((before.name, before.program, before.options),
                         ("before", pathlib.Path("old"), ("--kv-format", "int8")))
        self.assertEqual(self.others("cold-8-1500", pathlib.Path("old"))[0].options, ())

    def test_a_format_is_compared_with_f16_of_the_same_build(self):
        (f16,) = self.others("engine-int8")
        self.assertEqual((f16.program, f16.options, f16.peer), (pathlib.Path("new"), ("--kv-format", "f16"), False))


class SearchTest(unittest.TestCase):
    def test_a_cold_load_gives_slow_settings_up_and_longer_ones_leave_them_out(self):
        load, bursts = loads.LOADS["cold-8-1500"], Bursts([10, 100, 12, 9])
        found = bursts.search(load, settings(load))
        self.assertEqual([side in found for side in settings(load)], [True, False, True, True])
        longer = loads.LOADS["cold-16-3500"]
        bursts.walls, bursts.tried = [30, 30, 30], []
        self.assertEqual(len(bursts.search(longer, settings(longer))), 3)

    def test_warm_loads_and_decode_rows_try_every_setting_to_the_end(self):
        for name in ("warm-8-1500", "warm-16-2048", "unrelated-8-1500"):
            load, bursts = loads.LOADS[name], Bursts([10, 1000, 12, 9])
            bursts.hopeless = {side.kind for side in settings(load)}
            found = bursts.search(load, settings(load))
            self.assertEqual(len(found), 4, name)
            slowest = settings(load)[1]
            decodes = load.rows[0].measure == "decode_tokens_per_s"
            self.assertEqual(results.contenders(load, found)[0] == slowest, decodes, name)

    def test_a_warm_peer_must_have_the_prefix_in_its_slots(self):
        load, bursts = loads.LOADS["warm-8-1500"], Bursts([1] * 4)
        burst = bursts.burst
        bursts.burst = lambda *given: burst(*given) | {"cached_tokens": 100}
        with self.assertRaises(Failure):
            bursts.search(load, settings(load))


class ContendersTest(unittest.TestCase):
    def test_each_rows_best_runs_and_the_next_only_when_it_is_close(self):
        load = loads.LOADS["cold-8-1500"]
        found = {"a": {"wall_s": 10, "ttft_max_s": 5}, "b": {"wall_s": 10.9, "ttft_max_s": 9}, "c": {"wall_s": 30, "ttft_max_s": 1}}
        self.assertEqual(results.contenders(load, found), ["a", "b", "c"])
        found["b"]["wall_s"] = 11.1
        self.assertEqual(results.contenders(load, found), ["a", "c"])


class SummaryTest(unittest.TestCase):
    def test_faster_is_the_median_over_the_rounds_against_the_best(self):
        wall = results.summary("wall_s", [1.0, 1.0, 2.0], {"slow": [9.0, 9.0, 9.0], "best": [3.0, 5.0, 4.0]})
        self.assertEqual((wall["faster"], wall["range"], wall["peer"], wall["setting"]), (3, [2, 5], 4, "best"))
        self.assertEqual(wall["pairs"], [[1, 3], [1, 5], [2, 4]])
        decode = results.summary("decode_tokens_per_s", [30.0, 50.0], {"one": [10.0, 10.0]})
        self.assertEqual((decode["faster"], decode["coppice"]), (4, 40))

    def test_a_figure_that_the_other_side_lacks_is_ours_alone(self):
        load, peer = loads.LOADS["engine-8x400"], sides.Side("-fa on", pathlib.Path("/peers"), peer=True)
        rounds = [{COPPICE: {"decode_tokens_per_s": 20, "bookkeeping": 0.01}, peer: {"decode_tokens_per_s": 10}}] * 2
        rows = results.summaries(load, rounds)
        self.assertEqual(rows["decode_tokens_per_s"]["faster"], 2)
        self.assertEqual(rows["bookkeeping"], {"coppice": 0.01, "rounds": 2})


class EngineTest(unittest.TestCase):
    args = argparse.Namespace(model="m", threads=2, repeat=1, attention_bench="true")

    def test_rounds_alternate_which_build_begins(self):
        runs, before = engine.EngineRuns(self.args), sides.Side("before", pathlib.Path("old"))
        order = []
        runs.figures = lambda load, side: order.append(side.name)
        list(runs.rounds(None, [COPPICE, before], 3))
        self.assertEqual(order, ["coppice", "before", "before", "coppice", "coppice", "before"])

    def test_every_program_is_asked_for_the_load_and_the_setting(self):
        commands = []

        def answer(command):
            commands.append(" ".join(map(str, command)))
            if "llama-batched-bench" in commands[-1]:
                return 'noise\n{"speed_tg": 7}\n'
            return '[{"samples_ts": [1, 3, 2]}]' if "llama-bench" in commands[-1] else '{"p99_ms": 6, "median_ms": 3}'

        with mock.patch("engine.output_of", answer):
            runs = engine.EngineRuns(self.args)
            batch, stream = loads.LOADS["engine-8x400"], loads.LOADS["engine-512"]
            self.assertEqual(runs.figures(batch, settings(batch)[0]), {"decode_tokens_per_s": 7})
            self.assertEqual(runs.figures(stream, settings(stream)[1]), {"prefill_tokens_per_s": 2, "decode_tokens_per_s": 2})
            self.assertEqual(runs.figures(loads.LOADS["engine-gaps"], COPPICE)["p99_over_median"], 2)
        self.assertIn("-c 4096 ", commands[0])
        self.assertIn("-fa on --kv-unified", commands[0])
        self.assertIn("-p 512 -n 0 -fa off -r 1", commands[1])
        self.assertIn("coppice bench --model m --case gaps --threads 2 --repeat 1", commands[3])

    def test_no_figures_are_a_failure(self):
        with self.assertRaises(Failure):
            engine.EngineRuns(self.args).figures(loads.LOADS["kernel"], COPPICE)


class RoundsTest(unittest.TestCase):
    def test_servers_that_count_different_tokens_are_a_failure(self):
        load, peer = loads.LOADS["stream"], settings(loads.LOADS["stream"])[0]
        self.assertEqual(len(list(Bursts([1.0, 1.0]).rounds(load, [COPPICE, peer], 2))), 2)
        bursts, counts = Bursts([1.0, 1.0]), iter([[1], [2]])
        burst = bursts.burst
        bursts.burst = lambda *given: burst(*given) | {"prompt_tokens": next(counts)}
        with self.assertRaises(Failure):
            list(bursts.rounds(load, [COPPICE, peer], 2))

    def test_a_long_burst_runs_once(self):
        load = loads.LOADS["stream"]
        self.assertEqual(len(list(Bursts([serving.LONG + 1]).rounds(load, [COPPICE], 3))), 1)


class KeepTest(unittest.TestCase):
    """measure_all() with rounds that are made up."""

    def measure(self, folder, **changes):
        class Bounds:
            def __init__(self, *_):
                self.measured = lambda load: mock.MagicMock(__exit__=lambda *_: False)
                self.as_json, self.of = dict, lambda load, row: (100.0, "memory") if row.measure == "decode_tokens_per_s" else None

        class Bench:
            model = argparse.Namespace(context=8192)

            def __init__(self, *_):
                pass

            def rounds(_, load, count):
                self.ran.append(load.name)
                return [{COPPICE: {"decode_tokens_per_s": 20.0, "bookkeeping": 0.01},
                         sides.Side("-fa on", pathlib.Path("p"), peer=True): {"decode_tokens_per_s": 10.0}}] * count

        self.ran = []
        args = {"results": folder, "name": "box", "threads": 2, "machine_peak": "", "model": pathlib.Path("tiny.gguf"),
                "resume": False, "rounds": 3, "repeat": 1, "save": True, "page": folder / "page.md", "logs": folder} | changes
        of = args.pop("of", "new")
        with mock.patch.multiple(run, Bounds=Bounds, Bench=Bench, commit=lambda: of, machine=lambda: "m"), \
                mock.patch("builtins.print"), mock.patch.object(run.page, "write") as page:
            run.measure_all(argparse.Namespace(**args), [loads.LOADS["engine-8x400"]])
        self.wrote_page = page.called
        return results.read(folder / "box.json")

    def test_results_are_kept_by_model_load_and_figure(self):
        with tempfile.TemporaryDirectory() as name:
            content = self.measure(pathlib.Path(name))
            row = content["results"]["tiny"]["engine-8x400"]["decode_tokens_per_s"]
            self.assertEqual((row["faster"], row["bound"], row["bound_by"], row["commit"], row["rounds"]), (2, 100, "memory", "new", 3))
            self.assertNotIn("bound", content["results"]["tiny"]["engine-8x400"]["bookkeeping"])
            self.measure(pathlib.Path(name), model=pathlib.Path("other.gguf"))
            self.assertEqual(set(results.read(pathlib.Path(name) / "box.json")["results"]), {"tiny", "other"})

    def test_resume_leaves_out_what_the_commit_has(self):
        with tempfile.TemporaryDirectory() as name:
            for resume, of, rounds, ran in ((False, "a", 3, 1), (True, "a", 3, 0), (True, "a", 4, 1), (False, "a", 3, 1),
                                            (True, "b", 3, 1)):
                self.measure(pathlib.Path(name), resume=resume, of=of, rounds=rounds)
                self.assertEqual(len(self.ran), ran, (resume, of, rounds))

    def test_nothing_is_written_without_save_or_over_another_machines_file(self):
        with tempfile.TemporaryDirectory() as name:
            self.assertEqual(self.measure(pathlib.Path(name), save=False), {})
            self.assertFalse(self.wrote_page)
            self.measure(pathlib.Path(name))
            self.assertTrue(self.wrote_page)
            with self.assertRaises(Failure):
                self.measure(pathlib.Path(name), threads=1)


class ResumeTest(unittest.TestCase):
    """Runs that are cut off, one after the other, with the same file of what is kept."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "kept.json"

    def kept(self, of="a"):
        return kept.Kept(self.path, of)

    def engine_runs(self, cut_off_after, of="a"):
        runs, self.ran = engine.EngineRuns(EngineTest.args, self.kept(of)), []

        def figures(_, side):
            if len(self.ran) == cut_off_after:
                raise KeyboardInterrupt
            self.ran.append(side.name)
            return {"decode_tokens_per_s": 10.0 + len(self.ran)}

        runs.figures = figures
        return runs

    def test_an_engine_load_goes_on_with_the_program_that_was_cut_off(self):
        load = loads.LOADS["engine-8x400"]
        with self.assertRaises(KeyboardInterrupt):
            self.engine_runs(3).search(load, settings(load))
        runs = self.engine_runs(2)
        found = runs.search(load, settings(load))
        self.assertEqual([found[side]["decode_tokens_per_s"] for side in settings(load)], [11, 12, 13, 11])
        with self.assertRaises(KeyboardInterrupt):
            list(runs.rounds(load, [COPPICE, settings(load)[0]], 2))
        self.assertEqual(self.ran, ["-fa off, --no-kv-unified", "coppice"])
        self.assertEqual(len(list(self.engine_runs(3).rounds(load, [COPPICE, settings(load)[0]], 2))), 2)
        self.assertEqual(self.ran, ["-fa on, --kv-unified", "-fa on, --kv-unified", "coppice"])

    def test_a_setting_that_was_given_up_stays_so(self):
        load = loads.LOADS["cold-8-1500"]
        for walls, tried in (([10, 100, 12, 9], 4), ([], 0)):
            bursts = Bursts(walls)
            bursts.kept = self.kept()
            self.assertEqual(len(bursts.search(load, settings(load))), 3)
            self.assertEqual((len(bursts.tried), len(bursts.hopeless)), (tried, 1))

    def test_nothing_is_kept_of_another_commit_or_of_what_begins_anew(self):
        load = loads.LOADS["engine-8x400"]
        self.engine_runs(4).search(load, settings(load))
        for changes, ran in (({}, 0), ({"of": "b"}, 4), ({"of": "b"}, 0)):
            self.engine_runs(4, **changes).search(load, settings(load))
            self.assertEqual(len(self.ran), ran)
        again = self.engine_runs(4, "b")
        again.kept.forget([load])
        again.search(load, settings(load))
        self.assertEqual(len(self.ran), 4)

    def test_what_others_used_before_the_cut_counts(self):
        load = loads.LOADS["engine-8x400"]
        with mock.patch.object(machine.OthersShare, "_times", side_effect=[(0, 0, 0), (9, 4, 10), (20, 0, 20), (30, 5, 30)]):
            self.kept().get(load, "coppice", dict)
            others = machine.OthersShare(self.kept().seconds(load))
            self.assertEqual(others.share(), 0.5)  # 5 of 10 s, then 5 of 10


class ModelsTest(unittest.TestCase):
    def test_each_load_runs_on_its_model(self):
        chosen = loads.chosen(["stream", "gemma3", "1b", "demo"])
        args = argparse.Namespace(model=pathlib.Path("smol"), also=["gemma3=g.gguf", "1b=a=b.gguf"], threads=2)
        found = [(of.model.name, of.threads, len(its)) for of, its in run.by_model(args, chosen)]
        self.assertEqual(found, [("smol", 2, 2), ("g.gguf", 2, 3), ("a=b.gguf", 2, 2)])
        args.also = ["gemma3=g.gguf"]
        with self.assertRaisesRegex(Failure, "--also 1b=FILE"):
            list(run.by_model(args, chosen))


class BeforeTest(unittest.TestCase):
    def test_pairs_of_two_builds_are_compared_in_turn(self):
        with tempfile.TemporaryDirectory() as name:
            args = argparse.Namespace(logs=pathlib.Path(name), pairs=2, before=pathlib.Path("old"), coppice=pathlib.Path("new"),
                                      llama=None, llama_no_amx=None, model="m", also=[])
            speeds = {"old": iter([100.0, 100.0]), "new": iter([110.0, 130.0])}

            def figures(_, load, side):
                return {"decode_tokens_per_s": next(speeds[str(side.program)]), "bookkeeping": 0.01}

            with mock.patch.object(run, "read_model"), mock.patch.object(engine.EngineRuns, "figures", figures), \
                    mock.patch("builtins.print") as printed:
                run.compare_builds(args, [loads.LOADS["engine-8x400"]])
            found = json.loads((pathlib.Path(name) / "bench-pairs.json").read_text())["results"]["engine-8x400"]
            self.assertEqual(found["decode_tokens_per_s"]["pairs"], [[110, 100], [130, 100]])
            table = printed.call_args_list[-1].args[0]
            self.assertIn("decode | 100 tok/s | 120 tok/s | **1.200x** |", table)
            self.assertIn("| 1.100–1.300 | 2 |", table)
            self.assertIn("| 1.00 % | 1.00 % | **1.000x** |", table)


class CommandTest(unittest.TestCase):
    def test_an_unknown_load_is_told_in_one_sentence(self):
        done = subprocess.run([sys.executable, run.REPO / "bench/run.py", "--model", "none.gguf", "--only", "cold-9"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("there is no load named 'cold-9'; the loads are: cold-8-1500-queue, cold-8-1500,", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)


class MachineTest(unittest.TestCase):
    def test_the_file_is_named_after_the_processor(self):
        for model, flags, name in (("Intel(R) Xeon(R) Processor", {"avx2", "avx512f", "amx_int8"}, "intel-xeon-amx"),
                                   ("AMD EPYC", {"avx2", "avx512f"}, "amd-epyc-avx512")):
            with mock.patch.multiple(machine, cpu_model=lambda: model, cpu_flags=lambda: flags):
                self.assertEqual(machine.file_name(), name)


if __name__ == "__main__":
    unittest.main(buffer=True)
