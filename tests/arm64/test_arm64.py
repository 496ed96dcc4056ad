"""What was built for 64-bit ARM, under qemu: the program chooses its kernels and answers as the native build does. If the .deb is built: what it
wants of a system, and that it serves in a bare Debian. Run by scripts/arm64.sh."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bare_debian import BareDebian, children_of, make_bare
from coppice_process import Coppice

ARM64 = Path(os.environ["COPPICE_ARM64"])  # what scripts/arm64_sysroot.sh made
PROGRAM = Path(os.environ["COPPICE_ARM64_ROOT"]) / "usr/bin/coppice"
PACKAGE = Path(os.environ["COPPICE_ARM64_PACKAGE"])
DEBIANS = Path(os.environ["COPPICE_DEBIANS"])  # where pristine ones lie; made when they are missing
MODEL = Path(os.environ["COPPICE_MODEL"])
EMULATED = [Path(__file__).resolve().parents[2] / "scripts/emulated.py", ARM64 / "qemu-aarch64-static"]  # what commands run under
EMULATOR = [ARM64 / "qemu-aarch64-static", "-L", ARM64 / "sysroot"]
# Of its answers to these the model is sure: on each instruction set rows are rounded otherwise.
TURNS = ["Say: one two three four five six", "Say: one two three four five six"]


def output(*words, **more) -> str:
    return subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, check=True, **more).stdout


# ARMv8.0; with dot products (8.2); with products of bytes (8.6) and scalable vectors.
@pytest.mark.parametrize(("cpu", "ours", "has", "lacks"), [
    ("cortex-a53", "NEON", {"NEON"}, {"DOTPROD", "SVE", "MATMUL_INT8"}),
    ("neoverse-n1", "NEON_DOTPROD", {"NEON", "DOTPROD"}, {"SVE", "MATMUL_INT8"}),
    ("max", "NEON_I8MM", {"NEON", "DOTPROD", "SVE", "MATMUL_INT8"}, set())])
def test_it_picks_kernels_by_the_cpu(cpu, ours, has, lacks):
    said = output(*EMULATOR, "-cpu", cpu, PROGRAM, "--version")
    ggmls = set(re.search(r"^ggml's kernels: (.*)$", said, re.M).group(1).split(", "))
    assert re.search(r"^kernels: (\S+)", said, re.M).group(1) == ours
    assert has <= ggmls and not lacks & ggmls


def conversation(model=None) -> list[str]:
    with Coppice("--kv-bytes", "64MiB", "--threads", "2", model=model) as server:
        answers = server.converse(*TURNS)
        if model:  # in a bare Debian, where it is the first process of a namespace
            os.kill(children_of(server.process.pid)[0], signal.SIGTERM)
        else:
            server.process.terminate()
        assert server.process.wait(180) == 0, server.log.read_text()
    return answers


@pytest.fixture(scope="session")
def expected() -> list[str]:
    """By the build for this machine."""
    answers = conversation()
    assert all(answers)
    return answers


def calls(words, file: Path) -> str:
    """A program that calls another one."""
    file.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    file.chmod(0o755)
    return str(file)


# ggml has kernels for scalable vectors, which are slow under the emulator: the other conversations do without.
@pytest.mark.parametrize("cpu", ["neoverse-n1", "max"])
def test_it_answers_as_the_native_build(monkeypatch, tmp_path, expected, cpu):
    monkeypatch.setenv("COPPICE_BINARY", calls([*EMULATOR, "-cpu", cpu, PROGRAM], tmp_path / "coppice"))
    assert conversation() == expected


@pytest.fixture
def debian(tmp_path):
    """A bare Debian 12 for 64-bit ARM, with the model, and Python as a carrier."""
    if os.geteuid() != 0 or subprocess.run([*EMULATED, "true"], check=False).returncode != 0:
        pytest.skip("a bare Debian for ARM wants root, and a Linux where namespaces know emulators: 6.7 or newer")
    pristine = make_bare(DEBIANS / "bookworm-arm64-python", packages=["python3-venv"], emulated=EMULATED)
    made = BareDebian(pristine, PACKAGE.parent / "bare" / tmp_path.name, EMULATED)
    made.environment |= {"LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    (made.root / "models").mkdir()
    shutil.copy(MODEL, made.root / "models")
    yield made
    shutil.rmtree(made.root)


@pytest.mark.skipif(not PACKAGE.exists(), reason="there is no .deb: make arm64 ARGS=--deb")
def test_the_package_names_what_it_wants():
    fields = output("dpkg-deb", "--field", PACKAGE)
    assert re.search("^Architecture: arm64$", fields, re.M)
    wanted = re.search(r"^Depends: (.*)$", fields, re.M).group(1)
    assert {"libc6", "libstdc++6", "libssl3", "libzmq5"} <= {each.split()[0] for each in wanted.split(", ")}
    listed = output("dpkg-deb", "--contents", PACKAGE)
    for file in ("/usr/bin/coppice", "/lib/systemd/system/coppice.service", "/usr/share/man/man1/coppice.1.gz",
                 "/usr/lib/coppice/libggml-cpu-armv8.0_1.so"):
        assert re.search(rf" \.{re.escape(file)}$", listed, re.M), file


@pytest.mark.skipif(not PACKAGE.exists(), reason="there is no .deb: make arm64 ARGS=--deb")
def test_the_package_serves_in_a_bare_debian(debian, monkeypatch, tmp_path, expected):
    shutil.copy(PACKAGE, debian.root / "tmp/coppice.deb")
    debian.run("sh", "-c", "apt-get update && apt-get install -y --no-install-recommends /tmp/coppice.deb")
    assert "not found" not in debian.run("sh", "-c", "ldd /usr/bin/coppice /usr/lib/coppice/*.so*")
    debian.user = "nobody"
    monkeypatch.setenv("COPPICE_BINARY", calls(debian.command("/usr/bin/coppice"), tmp_path / "coppice"))
    assert conversation(f"/models/{MODEL.name}") == expected
