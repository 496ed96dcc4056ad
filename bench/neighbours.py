#!/usr/bin/env python3
"""coppice, and llama-bench in the same run, on some cores, beside busy programs, and within a quota of CPU time.

    bench/neighbours.py --coppice build/coppice --model M.gguf [--llama-bench PATH] [--loads cores,neighbours,quota] [--json FILE]

Prints a table: tokens a second of a prefill of 512 and of one stream behind it. With --json FILE it also writes them there, by model: a file in
bench/results/cores becomes a section of docs/benchmarks.md (bench/cores_page.py). `cores`: in a cpuset of 1, 2, 4 and so on. `neighbours`: loops
that keep half or all of the cores busy, begun and ended here. `quota`: a control group of version 1 or 2 with the time of a number of CPUs, which
only root may make. coppice chooses its threads; llama.cpp gets one for each core, or for each CPU of the quota.
"""
import argparse
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from machine import machine


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


def of_coppice(o, cores, _threads, group):
    out = output_of(o, [o.coppice, "bench", "--model", o.model, "--case", "stream", "--repeat", o.repeat], cores, group)
    if out is None:
        return None
    found = json.loads(out)
    return [found["prefill_tokens_per_s"], found["decode_tokens_per_s"]]


def of_llama(o, cores, threads, group):
    out = output_of(o, [o.llama_bench, "-m", o.model, "-t", threads, "-p", 512, "-n", 64, "-r", o.repeat, "-o", "json"], cores, group)
    return None if out is None else [run["avg_ts"] for run in json.loads(out)]


def shown(rates):
    return "no end" if rates is None else " / ".join(f"{rate:,.0f}" for rate in rates)


@contextlib.contextmanager
def busy(cores):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda c=core: os.sched_setaffinity(0, {c}))
             for core in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def quota(n):
    """A control group with the time of n CPUs, or None: it cannot be made here."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")):
        group = mount / f"coppice-bench-{os.getpid()}"
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


def rows(o):
    """(what, cores, threads of llama.cpp, busy cores, CPUs of the quota)"""
    every = sorted(os.sched_getaffinity(0))
    n = len(every)
    if "cores" in o.loads:
        for i in sorted({2 ** k for k in range(n.bit_length()) if 2 ** k <= n} | {n}):
            yield f"{i} core{'s' if i > 1 else ''}", every[:i], i, [], 0
    if "neighbours" in o.loads:
        for i in sorted({max(n // 2, 1), n}):
            yield f"{n} cores, {i} busy", every, n, every[:i], 0
    if "quota" in o.loads:
        for i in sorted({1, 2} & set(range(1, n + 1))):
            yield f"{n} cores, a quota of {i}", every, i, [], i


def content_of(file):
    """What a file of results holds, or the beginning of one; of today."""
    content = json.loads(file.read_text()) if file.exists() else {"machine": machine(), "models": {}}
    return content | {"date": datetime.date.today().isoformat()}


def keep(o, row):
    content = content_of(o.json)
    rows = content["models"].setdefault(o.model.stem, [])
    rows[:] = [other for other in rows if other["what"] != row["what"]] + [row]
    o.json.write_text(json.dumps(content, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", type=lambda name: Path(name).resolve(), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-bench", type=lambda name: Path(name).resolve())
    parser.add_argument("--loads", type=lambda text: re.split(",", text), default=["cores", "neighbours", "quota"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=120, help='a run takes no longer: "no end" then')
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    sides = [("coppice", of_coppice)] + ([("llama.cpp", of_llama)] if o.llama_bench else [])
    print("| | " + " | ".join(name for name, _ in sides) + " |\n|---|" + "---|" * len(sides))
    for what, cores, threads, taken, cpus in rows(o):
        with busy(taken), (quota(cpus) if cpus else contextlib.nullcontext()) as group:
            if cpus and not group:
                print(f"| {what} | no control group can be made here |")
                continue
            row = {"what": what} | {name: run(o, cores, threads, group) for name, run in sides}
            print(f"| {what} | " + " | ".join(shown(row[name]) for name, _ in sides) + " |", flush=True)
            if o.json:
                keep(o, row)


if __name__ == "__main__":
    main()
