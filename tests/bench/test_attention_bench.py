"""attention_bench, argv[1], ends with status 2 and one sentence where there is nothing to measure."""

import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


def run(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, timeout=120)


class MistakesTest(unittest.TestCase):
    def test_a_mistake_is_told(self):
        for options in (["--filter", "nosuch"], ["--backend", "nosuch"], ["--backend", "gather", "--format", "int8"],
                        ["--list", "--filter", "nosuch"],
                        ["--filter", "smollm2-135m/1k/batch1", "--csv", "/nonexistent/x"]):
            done = run(*options)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), options)

    def test_the_list_is_of_what_would_run(self):
        names = run("--list", "--filter", "8b/1k/batch1/", "--format", "f16,int8,int8").stdout.splitlines()
        self.assertEqual(len(names), 3)
        self.assertEqual(len(set(names)), 3)
        only = run("--list", "--filter", "8b/1k/batch1/", "--format", "f16,int8", "--backend", "fused").stdout.splitlines()
        self.assertEqual(only, [name for name in names if not name.endswith("int8")])


if __name__ == "__main__":
    unittest.main()
