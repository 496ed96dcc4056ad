"""What memory and multiplication allow: the least time that a load can take on this machine, HTTP left out.

A decode step must read the weights and each different key and value once, and multiply; whichever takes longer counts. A
prefill must multiply. Attention multiplies 16-bit numbers, of which an instruction does twice as many as of f32 (with AMX
16 times as many bf16, of which f16 takes three products). Weights multiply as bytes, of which it does more.
"""

import contextlib

from loads import DECODE, FIRST, Burst
from machine import cpu_flags
from process import output_of

DECODED = 64  # tokens that `coppice bench` decodes
BYTE_DOTS = (("amx_int8", 32), ("avx512_vnni", 4), ("avx_vnni", 4))  # byte multiply-adds for each one of f32, at most
ATTENTION_DOTS = (("amx_bf16", 16 / 3),)  # multiply-adds of f16 for each one of f32; else 2
HEAD_BYTES = {"f16": lambda size: 2 * size, "int8": lambda size: size + 2,
              "turbo4": lambda size: (size + 31) // 32 * 16 + 2}  # as in src/attention/kv_format.h


class Bounds:
    """Measures before and after each load. The best that any load ever saw counts: a bound from a slow moment would be
    none. So ask for bounds when all is measured."""

    def __init__(self, model, threads, program, kept=None):
        """program: bench/machine_peak.c, compiled. kept: what as_json() gave in an earlier run."""
        self.model, self.threads, self.program = model, threads, program
        kept = kept or {}
        self.bandwidths = {int(size): rate for size, rate in kept.get("bytes_per_s", {}).items()}  # by bytes of a buffer
        self.peak = kept.get("multiply_adds_per_s", 0.0)  # of f32
        self.byte_dots = next((times for flag, times in BYTE_DOTS if flag in cpu_flags()), 2)
        self.attention_dots = next((times for flag, times in ATTENTION_DOTS if flag in cpu_flags()), 2)

    def as_json(self):
        return {"bytes_per_s": self.bandwidths, "multiply_adds_per_s": self.peak}

    def _step_bytes(self, unique_tokens, kv_format):
        size = self.model.head_size
        part_of_f16 = HEAD_BYTES[kv_format](size) / HEAD_BYTES["f16"](size)
        return self.model.weight_bytes + unique_tokens * self.model.kv_bytes_per_token * part_of_f16

    @staticmethod
    def _buffer_size(byte_count):
        return max(1, round(byte_count / 2**24)) * 2**24

    def _step_sizes(self, load):
        if isinstance(load, Burst):
            return {self._buffer_size(self._step_bytes(load.unique_tokens, "f16"))}
        return {self._buffer_size(self._step_bytes(self._engine_tokens(load, row), load.kv_format))
                for row in load.rows if row.measure == DECODE and row.depth is not None}

    @contextlib.contextmanager
    def measured(self, load):
        """Before and after the load within; the bandwidth on buffers of the size that its decode steps read."""
        def measure():
            for size in self._step_sizes(load):
                rate = float(output_of([self.program, "read", self.threads, size]))
                self.bandwidths[size] = max(rate, self.bandwidths.get(size, 0.0))
            self.peak = max(self.peak, float(output_of([self.program, "multiply", self.threads])))
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
        """(seconds, what they are bound by) of a decode step."""
        step_bytes = self._step_bytes(unique_tokens, kv_format)
        return max((step_bytes / self._bandwidth(step_bytes), "memory"),
                   (self._multiply_seconds(streams, streams, streams * depth), "multiplication"))

    @staticmethod
    def _engine_tokens(load, row):
        return load.shared + load.streams * (row.depth - load.shared + DECODED // 2)

    def of(self, load, row):
        """(the bound of a row in its unit, what sets it); None for rows without one, and where layers slide or have experts."""
        if not self.model.whole:
            return None
        if isinstance(load, Burst):
            return self._of_burst(load, row.measure)
        if row.depth is None:
            return None
        if row.measure != DECODE:
            return 512 / self.prefill_seconds(512, row.depth, 1), "multiplication"
        step, by = self.step_seconds(load.streams, self._engine_tokens(load, row), row.depth + DECODED // 2, load.kv_format)
        return load.streams / step, by

    def _of_burst(self, load, measure):
        step, by = self.step_seconds(load.requests, load.unique_tokens, load.prompt + load.out // 2)
        if measure == DECODE:
            return load.requests / step, by
        shared = 0 if load.warm else load.groups * self.prefill_seconds(load.shared, 0, 0)
        first = shared + load.requests * self.prefill_seconds(load.own, load.shared, 1)
        decode = (load.out - 1) * step
        if measure == FIRST:
            return first, "multiplication"
        return (first + decode, by if decode > first else "multiplication") if measure == "wall_s" else None
