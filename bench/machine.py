"""What is known of this machine and this checkout, and how busy others keep the machine."""

import os
import pathlib
import platform
import re
import subprocess

SIMD = (("AVX2", "avx2"), ("AVX-512", "avx512f"), ("VNNI", "avx512_vnni"), ("AMX", "amx_int8"))


def cpu_flags():
    return set(pathlib.Path("/proc/cpuinfo").read_text().split())


def cpu_model():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    """One line for a table's head."""
    extras = [name for name, flag in SIMD if flag in cpu_flags()]
    return f"{cpu_model()}, {os.cpu_count()} cores ({', '.join(extras) or 'no SIMD extension'})"


def file_name():
    """The stem of this machine's file of results: "amd-epyc-avx512"."""
    words = re.findall(r"[a-z][a-z0-9]*", re.sub(r"\(.*?\)", " ", cpu_model().lower()))[:2]
    best = next((name for name, flag in (("amx", "amx_int8"), ("avx512", "avx512f"), ("avx2", "avx2"))
                 if flag in cpu_flags()), platform.machine())
    return "-".join([*words, best])


def commit():
    """The last commit of the program's sources, "+" behind it when they were changed since. Others, of documents or results,
    change no figure."""
    here, sources = pathlib.Path(__file__).resolve().parent.parent, ("src", "cmake", "CMakeLists.txt")

    def git(*arguments):
        return subprocess.run(["git", "-C", here, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=True).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *sources)
        return git("log", "-1", "--abbrev=12", "--format=%h", "--", *sources) + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):  # no git, or sources without it
        return "unknown"


class OthersShare:
    """How much of the machine others used since construction: all processor time but this program's and its children's.
    Only children that have ended are known, so ask between children. before: seconds() of an earlier part of the work."""

    def __init__(self, before=(0, 0)):
        self.before, self.begin = before, self._times()

    @staticmethod
    def _times():
        """Seconds: in use by anybody, in use by us, in all."""
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        ticks, ours = os.sysconf("SC_CLK_TCK"), os.times()
        return ((sum(fields) - fields[3] - fields[4]) / ticks,  # 3, 4: idle, waiting for a disk
                ours.user + ours.system + ours.children_user + ours.children_system, sum(fields) / ticks)

    def seconds(self):
        """Processor time that others used, and all there was."""
        used, ours, total = (now - before for now, before in zip(self._times(), self.begin))
        return self.before[0] + max(0.0, used - ours), self.before[1] + total

    def share(self):
        others, total = self.seconds()
        return others / total if total > 0 else 0.0
