"""attention_bench, argv[1], ends with status 2 and one sentence where there is nothing to measure."""

import os
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


def run(*options, simd=None):
    env = {name: value for name, value in os.environ.items() if name != "COPPICE_SIMD"}
    if simd:
        env["COPPICE_SIMD"] = simd
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, timeout=120, env=env)


QUICK = ("--filter", "smollm2-135m/1k/batch1/", "--threads", "1", "--rounds", "1", "--repetitions", "1", "--quick")


class MistakesTest(unittest.TestCase):
    def expect_refused(self, done):
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done)

    def test_a_mistake_is_told(self):
        for options in (["--filter", "nosuch"], ["--list", "--filter", "nosuch"], ["--simd", "nosuch"],
                        [*QUICK, "--csv", "/nonexistent/x"]):
            self.expect_refused(run(*options))

    def test_an_unknown_instruction_set_is_refused(self):
        self.expect_refused(run(*QUICK, simd="AVX9"))

    def test_the_list_is_of_what_would_run(self):
        names = run("--list", "--filter", "8b/1k/batch1/", "--format", "f16,int8,int8").stdout.splitlines()
        self.assertEqual(names, ["8b/1k/batch1/unrelated/f16", "8b/1k/batch1/unrelated/int8"])


class InstructionSetTest(unittest.TestCase):
    def test_a_row_names_the_one_that_ran(self):
        rows = run(*QUICK, "--simd", "all").stdout.splitlines()[1:]
        names = [row.split()[2] for row in rows]
        self.assertGreaterEqual(len(names), 1)
        self.assertEqual(len(set(names)), len(names))
        for name in names:
            self.assertEqual(run(*QUICK, simd=name).stdout.splitlines()[1].split()[2], name)


if __name__ == "__main__":
    unittest.main()
