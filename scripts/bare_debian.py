"""A bare Debian (12, or another) in a folder, and commands in it. Needs root. Commands there see this machine's network (its mirrors, proxies and
certificates, too), and nothing else of it but what is mounted for them."""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SUITES = ("bookworm", "bookworm-updates", "bookworm-security")
NETWORK = re.compile(r"(?i:(https?|no|all)_proxy)|PIP_(CERT|PROXY|RETRIES|TRUSTED_HOST|DEFAULT_TIMEOUT|(EXTRA_)?INDEX_URL)|"
                     r"SSL_CERT_(FILE|DIR)|GIT_SSL_CAINFO|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE")


def mirrors() -> dict[str, str]:
    """Where this machine has Debian 12 from: suite -> address. Nothing where it is another system."""
    sources = Path("/etc/apt")
    found = {}
    for file in [sources / "sources.list", *sources.glob("sources.list.d/*.list"), *sources.glob("sources.list.d/*.sources")]:
        text = file.read_text() if file.exists() else ""
        entries = re.findall(r"^deb (?:\[.*?\] *)?(\S+) +(\S+) +(.*)$", text, re.M)
        for paragraph in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^(URIs|Suites|Components):\s*(.*)$", paragraph, re.M))
            if len(fields) == 3:
                entries += [(fields["URIs"].split()[0], suite, fields["Components"]) for suite in fields["Suites"].split()]
        found |= {suite: uri for uri, suite, parts in entries if suite in SUITES and "main" in parts.split() and suite not in found}
    return found


def make_bare(folder: Path, release="bookworm", packages: Sequence[str] = (), emulated: Sequence[str] = ()) -> Path:
    """What debootstrap brings, without recommendations, and packages; made once, as it takes a minute. emulated: one for 64-bit ARM, and what
    runs its commands here; then it takes some five."""
    done = folder / ".complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        mirror = [mirrors()["bookworm"]] if "bookworm" in mirrors() else []
        more = [f"--include={','.join(packages)}"] if packages else []
        more += ["--foreign", "--arch=arm64"] if emulated else []
        subprocess.run(["debootstrap", "--variant=minbase", *more, release, folder, *mirror], check=True, stdout=subprocess.DEVNULL)
        if emulated:  # in a namespace, as in a container, nobody makes devices: they are there by now
            subprocess.run([*emulated, "env", "container=lxc", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "chroot", folder,
                            "/debootstrap/debootstrap", "--second-stage"], check=True, stdout=subprocess.DEVNULL)
        done.touch()
    return folder


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class BareDebian:
    """A copy of a bare Debian."""

    def __init__(self, bare: Path, folder: Path, emulated: Sequence[str] = ()):
        """emulated: what runs its commands here, where it is one for another kind of processor."""
        self.root = folder
        self.emulated = emulated
        self.environment = {}
        self.mounts = {}  # a path there -> a folder of this machine
        self.user = "0:0"
        self.alone = False  # commands have no network but 127.0.0.1, which nobody else reaches
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", bare, folder], check=True)
        self.take_network()

    def take_network(self):
        """This machine's names, mirrors, proxies and certificates, without which a machine in its place would not get far."""
        for file in ("/etc/resolv.conf", "/etc/pip.conf"):
            if Path(file).exists():
                shutil.copy(file, f"{self.root}{file}")
        hosts = self.root / "etc/hosts"
        if not hosts.exists():  # installers and container engines write it
            hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
        release = re.search(r"^VERSION_CODENAME=(\w+)", (self.root / "etc/os-release").read_text(), re.M).group(1)
        if (found := mirrors()) and release == "bookworm":
            (self.root / "etc/apt/sources.list").write_text("".join(f"deb {found[suite]} {suite} main\n" for suite in SUITES if suite in found))
            settings = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
            wanted = re.findall(r"^Acquire::(?:https?|Check-[\w-]+|Retries)\b.*$", settings, re.M)
            (self.root / "etc/apt/apt.conf.d/90network").write_text("\n".join(wanted) + "\n")
        certificates = Path("/usr/local/share/ca-certificates")
        if certificates.is_dir():
            shutil.copytree(certificates, f"{self.root}{certificates}", dirs_exist_ok=True)
        self.environment |= {name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)}

    def command(self, *words: str) -> list[str]:
        """Runs it in namespaces of its own, so that nothing stays mounted."""
        root = shlex.quote(str(self.root))
        steps = ["ip link set lo up"] if self.alone else []
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /sys {root}/sys",
                  f"mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts {root}/dev/pts"]
        for inner, outer in self.mounts.items():
            Path(f"{self.root}{inner}").mkdir(parents=True, exist_ok=True)
            steps.append(f"mount --bind {shlex.quote(str(outer))} {root}{shlex.quote(inner)}")
        emulator = {"QEMU_CPU": os.environ["QEMU_CPU"]} if self.emulated and "QEMU_CPU" in os.environ else {}
        return [*self.emulated, "unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] if self.alone else []), "sh", "-ec", "; ".join([*steps, 'exec "$@"']), "sh", "chroot",
                f"--userspec={self.user}", str(self.root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                *(f"{name}={value}" for name, value in (self.environment | emulator).items()), *words]

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


def newcomers_machine(pristine: Path, folder: Path, repo: Path, mounts: dict[str, str]) -> BareDebian:
    """With git, make and a clone. It lies where REPO lies here, and so does the home folder: compilers write paths down, and their cache
    knows files by what is in them."""
    debian = BareDebian(make_bare(pristine), folder)
    debian.environment |= {"HOME": str(Path.home()), "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    debian.mounts = mounts
    debian.run("apt-get", "-q", "update")
    debian.run("apt-get", "-qy", "install", "--no-install-recommends", "git", "make", "ca-certificates")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", repo, f"{folder}{repo}"], check=True)
    return debian


def main():
    parser = argparse.ArgumentParser(description="A command in a fresh clone on a newcomer's machine: scripts/bare.sh.")
    parser.add_argument("--pristine", type=Path, help="the folder of the bare Debian that is copied; made when it is missing")
    parser.add_argument("--machine", type=Path, help="the folder of the copy, made anew")
    parser.add_argument("--repo", type=Path, help="what is cloned")
    parser.add_argument("--download", type=Path, action="append", default=[], help="a file that lies in coppice's cache folder there")
    parser.add_argument("--mount", action="append", default=[], help="PATH=FOLDER: a folder of this machine under a path there")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    debian = newcomers_machine(args.pristine, args.machine, args.repo, dict(mount.split("=", 1) for mount in args.mount))
    cache = Path(f"{debian.root}{Path.home()}/.cache/coppice")
    cache.mkdir(parents=True)
    for file in args.download:
        subprocess.run(["cp", "--reflink=auto", file, cache], check=True)
    sys.exit(subprocess.run(debian.command("sh", "-c", 'cd "$0" && exec "$@"', str(args.repo), *args.command), check=False).returncode)


if __name__ == "__main__":
    main()
