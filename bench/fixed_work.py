#!/usr/bin/env python3
"""What the scheduler and the host alone do to work of a fixed size: the bound of gaps between tokens beside busy programs (bench/comings.py).

    bench/fixed_work.py [--ms 3.6] [--seconds 4] [--rounds 2]

A loop that takes --ms where nobody else runs is repeated on one thread, while nobody else runs, and beside loops on all cores. Prints the median time
and the 99th percentile, and one over the other.
"""
import argparse
import os
import statistics
import time

from neighbours import busy


def work(loops):
    for _ in range(loops):
        pass


def repeat(loops, seconds):
    """How long each one took, in order of size."""
    found, before = [], time.perf_counter()
    end = before + seconds
    while before < end:
        work(loops)
        after = time.perf_counter()
        found.append(after - before)
        before = after
    return sorted(found)


def show(what, times):
    median, p99 = statistics.median(times), times[int(0.99 * len(times))]
    print(f"{what}: median {median * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, {p99 / median:.2f} medians", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ms", type=float, default=3.6)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    o = parser.parse_args()
    some = 100_000
    loops = round(some * o.ms * 1e-3 / repeat(some, 1)[0])
    for _ in range(o.rounds):
        show("quiet", repeat(loops, o.seconds))
        with busy(sorted(os.sched_getaffinity(0))):
            show("all cores busy", repeat(loops, o.seconds))


if __name__ == "__main__":
    main()
