"""The .deb, installed in a bare Debian: served from there, also by a CPU without AVX, and by systemd."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bare_debian import BareDebian, children_of, make_bare
from coppice_process import Coppice, free_port

PACKAGE = Path(os.environ["COPPICE_PACKAGE"])
BARE = Path(os.environ["COPPICE_BARE"])  # a folder
PRISTINE = Path(os.environ["COPPICE_BOOKWORM"])  # the bare Debian that is copied; made when it is missing
MODEL = Path(os.environ["COPPICE_MODEL"])
PROMPT = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="session")
def installed():
    debian = BareDebian(make_bare(PRISTINE), BARE / "installed")
    debian.environment["DEBIAN_FRONTEND"] = "noninteractive"
    shutil.copy(PACKAGE, debian.root / "tmp/coppice.deb")
    debian.run("sh", "-c", "apt-get update && apt-get install -y --no-install-recommends /tmp/coppice.deb")
    (debian.root / "models").mkdir()
    shutil.copy(MODEL, debian.root / "models")
    shutil.copy("/usr/bin/qemu-x86_64-static", debian.root / "usr/bin")
    debian.environment |= {"COPPICE_MODELS": "/models"}
    debian.user = "nobody"
    return debian


def ask(url: str, path: str, body=None, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def status_of(url: str, path: str, key=None) -> int:
    try:
        ask(url, path, key=key)
        return 200
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_until(true, seconds=300, alive=lambda: True):
    end = time.monotonic() + seconds
    while not true():
        assert alive() and time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def serving(debian, *before: str):
    """before: what runs the program."""
    port = free_port()
    program = [*before, "/usr/bin/coppice", "serve", MODEL.stem, "--kv-bytes", "64MiB", "--threads", "2", "--port", str(port)]
    log = debian.root.parent / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen(debian.command(*program), stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: status_of(url, "/health") == 200, alive=lambda: process.poll() is None or pytest.fail(log.read_text()))
        yield url
    finally:
        debian.end(process)


@pytest.fixture(scope="session")
def expected():
    """The same answer by the build for this machine's own CPU."""
    with Coppice("--kv-bytes", "64MiB") as server:
        text = server.post("/v1/completions", PROMPT)["choices"][0]["text"]
    assert "Paris" in text
    return text


def kernels(debian, *before: str) -> tuple[str, set[str]]:
    """The best instruction set in use by our own kernels, and those of ggml's."""
    said = debian.run(*before, "/usr/bin/coppice", "--version")
    return re.search(r"^kernels: (\S+)", said, re.M).group(1), set(re.search(r"^ggml's kernels: (.*)$", said, re.M).group(1).split(", "))


def emulated(cpu: str) -> list[str]:
    return ["/usr/bin/qemu-x86_64-static", "-cpu", cpu]


def test_it_brings_its_dependencies_and_files(installed):
    assert "not found" not in installed.run("sh", "-c", "ldd /usr/bin/coppice /usr/lib/coppice/*.so*")
    listed = installed.run("dpkg", "--listfiles", "coppice").split()
    for file in ("/lib/systemd/system/coppice.service", "/usr/share/man/man1/coppice.1.gz", "/usr/share/doc/coppice/copyright",
                 "/usr/share/bash-completion/completions/coppice", "/usr/share/zsh/vendor-completions/_coppice",
                 "/usr/share/fish/vendor_completions.d/coppice.fish"):
        assert file in listed
    assert "coppice-keys" in (installed.root / "etc/group").read_text()


def test_its_module_for_gpus_is_loaded(installed):
    said = installed.run("/usr/bin/coppice", "serve", MODEL.stem, "--device", "cuda", ok=False)
    assert "--device cuda can't be had: there is no NVIDIA driver, or it is too old" in said


def test_it_answers_as_the_build_for_this_machine(installed, expected):
    with serving(installed) as url:
        assert ask(url, "/v1/completions", PROMPT)["choices"][0]["text"] == expected


def test_it_uses_what_this_cpu_has(installed):
    flags = set(re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    ours, ggmls = kernels(installed)
    assert ("AVX2" in ggmls) == ("avx2" in flags)
    assert ("AVX512" in ggmls) == ("avx512bw" in flags)
    own = subprocess.run([os.environ["COPPICE_BINARY"], "--version"], capture_output=True, text=True, check=True).stdout
    assert f"\nkernels: {ours} " in own  # the native build's choice


@pytest.mark.parametrize(("cpu", "has", "lacks"), [("Nehalem", {"SSE3", "SSSE3"}, {"AVX", "AVX2", "FMA", "F16C", "AVX512"}),
                                                   ("Haswell", {"AVX", "AVX2", "FMA", "F16C"}, {"AVX512"})])
def test_it_picks_kernels_by_the_cpu(installed, cpu, has, lacks):
    ours, ggmls = kernels(installed, *emulated(cpu))
    assert ours.startswith("AVX2") == ("AVX2" in has)
    assert has <= ggmls and not lacks & ggmls


def test_it_answers_on_a_cpu_without_avx(installed, expected):
    with serving(installed, *emulated("Nehalem")) as url:
        assert ask(url, "/v1/completions", PROMPT)["choices"][0]["text"] == expected


class Booted:
    """A Debian that systemd runs, as a container."""

    def __init__(self, debian: BareDebian):
        self.name = f"coppice-{os.getpid()}"
        self.log = (debian.root.parent / "boot.log").open("w")
        self.process = subprocess.Popen(["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", f"--machine={self.name}",
                                         f"--directory={debian.root}", "--boot"], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)

    def __enter__(self):
        wait_until(lambda: self.run("systemctl", "is-system-running", ok=False).strip() in ("running", "degraded"), 120,
                   lambda: self.process.poll() is None)
        return self

    def run(self, *words: str, ok=True) -> str:
        """Nothing happens while its first process doesn't run yet."""
        if not (leader := children_of(self.process.pid)):
            return ""
        done = subprocess.run(["nsenter", f"--target={leader[0]}", "--mount", "--pid", "--uts", "--ipc", "--root", "--wd", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120)
        assert done.returncode == 0 or not ok, (words, done.stdout, self.run("journalctl", "--unit=coppice", "--no-pager", ok=False))
        return done.stdout

    def __exit__(self, *_):
        self.run("systemctl", "poweroff", ok=False)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture
def with_systemd():
    debian = BareDebian(make_bare(PRISTINE), BARE / "systemd")
    debian.environment["DEBIAN_FRONTEND"] = "noninteractive"
    debian.run("sh", "-c", "apt-get update && apt-get install -y --no-install-recommends systemd systemd-sysv dbus")
    shutil.copy(PACKAGE, debian.root / "tmp/coppice.deb")
    debian.run("apt-get", "install", "-y", "--no-install-recommends", "/tmp/coppice.deb")
    return debian


def test_systemd_runs_it_and_reloads_its_keys(with_systemd):
    root, port = with_systemd.root, free_port()
    url = f"http://127.0.0.1:{port}"
    (root / "srv/models").mkdir()
    shutil.copy(MODEL, root / "srv/models")
    with (root / "etc/coppice/coppice.env").open("a") as settings:
        settings.write(f"LLAMA_ARG_MODEL={MODEL.stem}\nLLAMA_ARG_PORT={port}\n"
                       "COPPICE_OPTIONS=--kv-bytes 64MiB --api-keys /etc/coppice/keys\n")
    with Booted(with_systemd) as booted:
        booted.run("install", "-m", "640", "-g", "coppice-keys", "/dev/null", "/etc/coppice/keys")  # as coppice.env says
        keys = root / "etc/coppice/keys"
        keys.write_text("sk-first\n")
        booted.run("systemctl", "start", "coppice")
        wait_until(lambda: status_of(url, "/health") == 200,
                   alive=lambda: booted.run("systemctl", "is-active", "coppice", ok=False).strip() == "active"
                   or pytest.fail(booted.run("journalctl", "--unit=coppice", "--no-pager")))
        assert ask(url, "/v1/completions", PROMPT, key="sk-first")["usage"]["completion_tokens"] == 8
        keys.write_text("sk-second\n")
        assert status_of(url, "/v1/models", "sk-second") == 401
        booted.run("systemctl", "reload", "coppice")
        wait_until(lambda: status_of(url, "/v1/models", "sk-second") == 200, 20)
        assert status_of(url, "/v1/models", "sk-first") == 401
        pid = booted.run("systemctl", "show", "--property=MainPID", "--value", "coppice").strip()
        user = booted.run("stat", "-c", "%u", f"/proc/{pid}").strip()
        assert 61184 <= int(user) <= 65519  # those that systemd gives to dynamic users
        journal = booted.run("journalctl", "--unit=coppice", "--no-pager")
        assert "setpriority failed" not in journal, journal
        booted.run("systemctl", "stop", "coppice")
        assert booted.run("systemctl", "show", "--property=Result", "--value", "coppice").strip() == "success"
    # To remove and to purge it leaves nothing behind.
    with_systemd.run("apt-get", "purge", "-y", "coppice")
    assert not (root / "etc/coppice").exists() and "coppice-keys" not in (root / "etc/group").read_text()
    assert not [*root.glob("usr/**/coppice*")]
