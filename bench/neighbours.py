#!/usr/bin/env python3
"""coppice, and llama-bench in the same run, on some cores, beside busy programs, and within a quota of CPU time.

    bench/neighbours.py --coppice build/coppice --model M.gguf [--llama-bench PATH] [--loads cores,neighbours,quota,threads] [--json FILE]

Prints a table: tokens a second of a prefill of 512 and of one stream behind it. With --json FILE it also writes them there, by model: a file in
bench/results/cores becomes a section of bench/README.md (bench/cores_page.py). `cores`: in a cpuset of 1, 2, 4 and so on, and of as many as
`neighbours` leaves. `neighbours`: loops that keep half or all of the cores (--busy: so many) busy, begun and ended here. `quota`: a control group of
version 1 or 2 with the time of a number of CPUs, which only root may make. `threads`: both with half as many, as many and half as many again as there
are cores, by option. Else coppice chooses its threads; llama.cpp gets one for each core, or for each CPU of the quota. Figures are medians of --rounds,
in which the rows have their turns, since rates of a shared host change by the minute. What didn't end is not tried again.
"""
import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from machine import machine
from process import say

GROUPS = itertools.count()


def output_of(o, command, cores, group=None):
    def enter():
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, cores)
    try:
        return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=enter,
                              timeout=o.seconds, check=True).stdout
    except subprocess.TimeoutExpired:
        return None


def of_coppice(o, row, group):
    said = ["--threads", row.threads] if row.said else []
    out = output_of(o, [o.coppice, "bench", "--model", o.model, "--device", "cpu", "--case", "stream", "--repeat", o.repeat, *said], row.cores, group)
    if out is None:
        return None
    found = json.loads(out)
    return [found["prefill_tokens_per_s"], found["decode_tokens_per_s"]]


def of_llama(o, row, group):
    out = output_of(o, [o.llama_bench, "-m", o.model, "-t", row.threads, "-p", 512, "-n", 64, "-r", o.repeat, "-o", "json"], row.cores, group)
    return None if out is None else [run["avg_ts"] for run in json.loads(out)]


def shown(rates):
    return "no end" if rates is None else " / ".join(f"{rate:,.0f}" for rate in rates)


@contextlib.contextmanager
def busy(cores, command=None):
    """A loop in Python on each core, or a command of the shell again and again."""
    loop = ["sh", "-c", f"while :; do {command}; done"] if command else [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                              preexec_fn=lambda c=core: os.sched_setaffinity(0, {c})) for core in cores]
    try:
        yield
    finally:
        for one in loops:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


@contextlib.contextmanager
def quota(n):
    """A control group with the time of n CPUs, or None: it cannot be made here."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")):
        group = mount / f"coppice-bench-{os.getpid()}-{next(GROUPS)}"
        with contextlib.suppress(OSError):
            group.mkdir()
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{n * 100_000} 100000")
        elif (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text(str(n * 100_000))
        else:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    cores: tuple
    threads: int       # of llama.cpp
    busy: tuple = ()   # cores
    cpus: int = 0      # of the quota
    said: bool = False  # to coppice, too


def rows(o):
    every = tuple(sorted(os.sched_getaffinity(0)))
    n = len(every)
    busy = sorted({k for k in (o.busy or (max(n // 2, 1), n)) if k <= n})
    if "cores" in o.loads:
        for i in sorted({2 ** k for k in range(n.bit_length()) if 2 ** k <= n} | {n} | {n - k for k in busy if k < n}):
            yield Row(f"{i} core{'s' if i > 1 else ''}", every[:i], i)
    if "neighbours" in o.loads:
        for i in busy:
            yield Row(f"{n} cores, {i} busy", every, n, every[:i])
    if "quota" in o.loads:
        for i in sorted({1, 2} & set(range(1, n + 1))):
            yield Row(f"{n} cores, a quota of {i}", every, i, cpus=i)
    if "threads" in o.loads:
        for i in sorted({max(n // 2, 1), n, n + max(n // 2, 1)}):
            yield Row(f"{n} cores, {i} threads", every, i, said=True)


def content_of(file):
    """What a file of results holds, or the beginning of one; of today."""
    content = json.loads(file.read_text()) if file.exists() else {"machine": machine(), "models": {}}
    return content | {"date": datetime.date.today().isoformat()}


def keep(o, found):
    content = content_of(o.json)
    before = content["models"].get(o.model.stem, [])
    new = {row["what"] for row in found}
    content["models"][o.model.stem] = [row for row in before if row["what"] not in new] + found
    o.json.write_text(json.dumps(content, indent=1) + "\n")


def median(runs):
    """Of rates; None where one of the runs had no end."""
    return None if None in runs else [statistics.median(each) for each in zip(*runs)]


def measured(o, sides):
    """(row, {side: rates}) of each row; None in place of the rates where no control group can be made."""
    every = list(rows(o))
    found = {row: {name: [] for name, _ in sides} for row in every}
    for _ in range(o.rounds):
        for row in [row for row in every if found[row]]:
            with busy(row.busy), (quota(row.cpus) if row.cpus else contextlib.nullcontext()) as group:
                if row.cpus and not group:
                    found[row] = None
                    continue
                for name, run in sides:
                    if None not in found[row][name]:
                        found[row][name].append(run(o, row, group))
                        say(f"{row.what}, {name}: {shown(found[row][name][-1])}")
    return [(row, runs and {name: median(rates) for name, rates in runs.items()}) for row, runs in found.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", type=lambda name: Path(name).resolve(), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-bench", type=lambda name: Path(name).resolve())
    parser.add_argument("--loads", type=lambda text: re.split(",", text), default=["cores", "neighbours", "quota"])
    parser.add_argument("--busy", type=lambda text: [int(n) for n in text.split(",")], help="so many cores, in place of half and all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="runs in a round")
    parser.add_argument("--seconds", type=int, default=120, help='a run takes no longer: "no end" then')
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    sides = [("coppice", of_coppice)] + ([("llama.cpp", of_llama)] if o.llama_bench else [])
    found = measured(o, sides)
    print("| | " + " | ".join(name for name, _ in sides) + " |\n|---|" + "---|" * len(sides))
    for row, rates in found:
        print(f"| {row.what} | " + (" | ".join(shown(rates[name]) for name, _ in sides) + " |" if rates else "no control group can be made here |"))
    if o.json:
        keep(o, [{"what": row.what} | rates for row, rates in found if rates])


if __name__ == "__main__":
    main()
