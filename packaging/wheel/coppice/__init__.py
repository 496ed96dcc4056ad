"""Python only carries the program: the command becomes it. It lies beside this file, in bin, with its libraries in lib."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "coppice")
    os.execv(program, [program, *sys.argv[1:]])
