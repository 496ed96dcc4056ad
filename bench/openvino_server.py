#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching behind the part of OpenAI's API that bench/client.py asks: its own server is in no package. Runs in
an environment that has openvino-genai. One thread steps the pipeline and writes what came, as token numbers: turning them into text would
only take time."""

import argparse
import http.server
import json
import queue
import threading

import openvino_genai


class Stream:
    """A request and its connection."""

    def __init__(self, tokens, limit, out):
        self.tokens, self.limit, self.out, self.written, self.done = tokens, limit, out, 0, threading.Event()

    def begin(self, pipeline, number):
        options = openvino_genai.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = self.limit, True, False
        self.handle = pipeline.add_request(number, self.tokens, options)

    def write(self):
        """What came since the last time; whether that was all."""
        while self.handle.can_read():
            new = [token for output in self.handle.read().values() for token in output.generated_ids]
            self.written += len(new)
            if new:
                self.send({"choices": [{"index": 0, "text": "".join(f" {token}" for token in new)}]})
        if self.handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return False
        prompt = self.tokens.shape[-1]
        self.send({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": self.written, "total_tokens": prompt + self.written}})
        self.write_chunk(b"data: [DONE]\n\n")
        self.write_chunk(b"")
        self.done.set()
        return True

    def send(self, event):
        self.write_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def write_chunk(self, data):
        self.out.write(b"%x\r\n%s\r\n" % (len(data), data))


def step(pipeline, arrivals):
    """Without end: takes in who has come, and steps while anybody waits for tokens."""
    streams, number = [], 0
    while True:
        while not streams or not arrivals.empty():
            streams.append(arrivals.get())
            streams[-1].begin(pipeline, number)
            number += 1
        pipeline.step()
        streams = [stream for stream in streams if not stream.write()]


def handler(tokenizer, arrivals):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", 0

        def do_GET(self):
            self.answer(("Content-Length", "0"))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = tokenizer.encode(body["prompt"], add_special_tokens=False).input_ids
            self.answer(("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
            stream = Stream(tokens, body["max_tokens"], self.wfile)
            arrivals.put(stream)
            stream.done.wait()

        def answer(self, *headers):
            self.send_response(200)
            for name, value in (*headers, ("Connection", "close")):
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            pass

    return Handler


class HttpServer(http.server.ThreadingHTTPServer):
    request_queue_size, daemon_threads = 64, True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gib", type=int, required=True, help="for keys and values")
    parser.add_argument("--max-seqs", type=int, default=256)
    parser.add_argument("--step-tokens", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    o = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = o.gib, True
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs = o.step_tokens, o.max_seqs
    pipeline = openvino_genai.ContinuousBatchingPipeline(o.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": o.threads})
    arrivals = queue.Queue()
    threading.Thread(target=step, args=(pipeline, arrivals), daemon=True).start()
    HttpServer((o.host, o.port), handler(pipeline.get_tokenizer(), arrivals)).serve_forever()


if __name__ == "__main__":
    main()
