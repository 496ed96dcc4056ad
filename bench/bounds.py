"""What memory and multiplication allow: the least time that a load can take on this machine, HTTP left out.

A decode step must read the weights and each different key and value once, and multiply; whichever takes longer counts. A
prefill must multiply. Attention multiplies 16-bit numbers, of which an instruction does twice as many as of f32 (with AMX
16 times as many bf16, of which f16 takes three products), and weights multiply as bytes, of which it does more.
"""

import contextlib

from common import cpu_flags, output_of

BYTE_DOTS = (("amx_int8", 32), ("avx512_vnni", 4), ("avx_vnni", 4))  # byte multiply-adds for each one of f32, at most
ATTENTION_DOTS = (("amx_bf16", 16 / 3),)  # multiply-adds of f16 for each one of f32; else 2
HEAD_BYTES = {"f16": lambda size: 2 * size, "int8": lambda size: size + 2,
              "turbo4": lambda size: (size + 31) // 32 * 16 + 2}  # as in src/attention/kv_format.h


class Bounds:
    """Measures around each load. What counts is the best that was ever seen, by any load: a bound from a slow moment would be
    none. So bounds are asked for when all is measured."""

    def __init__(self, model, threads, program):
        """program: bench/machine_peak.c, compiled."""
        self.model, self.threads, self.program = model, threads, program
        self.bandwidths = {}  # bytes of a buffer: bytes/s, the most that was seen
        self.peak = 0.0       # f32 multiply-adds/s
        self.byte_dots = next((times for flag, times in BYTE_DOTS if flag in cpu_flags()), 2)
        self.attention_dots = next((times for flag, times in ATTENTION_DOTS if flag in cpu_flags()), 2)

    def _step_bytes(self, unique_tokens, kv_format):
        size = self.model.head_size
        part_of_f16 = HEAD_BYTES[kv_format](size) / HEAD_BYTES["f16"](size)
        return self.model.weight_bytes + unique_tokens * self.model.kv_bytes_per_token * part_of_f16

    @staticmethod
    def _buffer_size(byte_count):
        return max(1, round(byte_count / 2**24)) * 2**24

    @contextlib.contextmanager
    def measured(self, unique_tokens, kv_formats=("f16",)):
        """Before and after the load within; the bandwidth on buffers of the size that its decode steps read."""
        sizes = {self._buffer_size(self._step_bytes(tokens, kv_format))
                 for tokens in unique_tokens for kv_format in kv_formats}

        def measure():
            for size in sizes:
                rate = float(output_of([self.program, "read", str(self.threads), str(size)]))
                self.bandwidths[size] = max(rate, self.bandwidths.get(size, 0.0))
            self.peak = max(self.peak, float(output_of([self.program, "multiply", str(self.threads)])))
        measure()
        yield
        measure()

    def _bandwidth(self, byte_count):
        """A smaller buffer is never slower: what was reached on a larger one counts, too."""
        size = self._buffer_size(byte_count)
        return max((rate for other, rate in self.bandwidths.items() if other >= size), default=max(self.bandwidths.values()))

    def _multiply_seconds(self, rows, outputs, pairs):
        """rows: through all layers; outputs: of these, through the output head; pairs: of a row and a key that it sees."""
        m = self.model
        products = rows * m.layer_multiply_adds + outputs * m.output_multiply_adds
        return (products / self.byte_dots + pairs * m.attention_multiply_adds / self.attention_dots) / self.peak

    def prefill_seconds(self, rows, first, outputs):
        """One text's tokens [first, first + rows); `outputs` of them are asked what comes next."""
        return self._multiply_seconds(rows, outputs, rows * (first + (rows + 1) / 2))

    def step_seconds(self, streams, unique_tokens, depth, kv_format="f16"):
        step_bytes = self._step_bytes(unique_tokens, kv_format)
        return max(step_bytes / self._bandwidth(step_bytes),
                   self._multiply_seconds(streams, streams, streams * depth))

    def of(self, load, measure):
        """The bound of a row of a load: in seconds, or tokens/s."""
        step = self.step_seconds(load.requests, load.unique_tokens, load.prompt + load.out // 2)
        if measure == "decode_tokens_per_s":
            return load.requests / step
        shared = 0 if load.warm else load.groups * self.prefill_seconds(load.shared, 0, 0)
        first = shared + load.requests * self.prefill_seconds(load.own, load.shared, 1)
        return first if measure == "ttft_max_s" else first + (load.out - 1) * step
