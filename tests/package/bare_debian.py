"""A bare Debian 12 in a folder, and commands in it. Needs root. Commands there see this machine's network, and nothing else of it."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

CONTAINERFILE = Path(__file__).resolve().parents[2] / "packaging" / "Containerfile"


def make_bare(folder: Path) -> Path:
    """What debootstrap brings, without recommendations; made once, as it takes a minute."""
    done = folder / ".complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder], check=True, stdout=subprocess.DEVNULL)
        done.touch()
    return folder


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class BareDebian:
    """A copy of a bare Debian."""

    def __init__(self, bare: Path, folder: Path):
        self.root = folder
        self.environment = {}
        self.user = "0:0"
        self.entry = []
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["cp", "-a", "--reflink=auto", bare, folder], check=True)
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")

    def command(self, *words: str) -> list[str]:
        """Runs it in namespaces of its own, so that nothing stays mounted."""
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc", "chroot",
                f"--userspec={self.user}", str(self.root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                *(f"{name}={value}" for name, value in self.environment.items()), *words]

    def run(self, *words: str, ok=True) -> str:
        done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600)
        assert done.returncode == 0 or not ok, (words, done.stdout[-4000:])
        return done.stdout

    @staticmethod
    def end(process: subprocess.Popen):
        """Of a command that runs. It is the first process of its namespace: with it all others go."""
        while process.poll() is None:
            for child in children_of(process.pid):
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)

    def follow_containerfile(self, package: Path):
        """The steps of its last stage, as an engine would take them. What this doesn't know is an error."""
        last_stage = re.split(r"^FROM .*\n", CONTAINERFILE.read_text(), flags=re.M)[-1]
        self.environment["DEBIAN_FRONTEND"] = "noninteractive"
        for step in last_stage.replace("\\\n", " ").splitlines():
            word, _, rest = step.partition(" ")
            if word == "COPY":
                source, target = rest.split()[-2:]
                assert rest.startswith("--from=build ") and source.endswith("/build-package/coppice.deb"), rest
                shutil.copy(package, f"{self.root}{target}")
            elif word == "RUN":
                self.run("sh", "-c", rest)
            elif word == "ENV":
                self.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
            elif word == "USER":
                self.user = rest
            elif word == "ENTRYPOINT":
                self.entry = [each.strip('" ') for each in rest.strip("[]").split(",")]
            else:
                assert word == "EXPOSE" or not step.strip(), f"{CONTAINERFILE}: {step}"
