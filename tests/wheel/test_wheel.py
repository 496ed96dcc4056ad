"""The wheel and the tarball: what they want of a system, and that they install and serve in bare Debians, as a user without a network. Those for
64-bit ARM under qemu."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from bare_debian import BareDebian, make_bare
from coppice_process import Coppice

WHEEL = Path(os.environ["COPPICE_WHEEL"])
TARBALL = Path(os.environ["COPPICE_TARBALL"])
BARE = Path(os.environ["COPPICE_BARE"])  # a folder for the machines
DEBIANS = Path(os.environ["COPPICE_DEBIANS"])  # where pristine ones lie; made when they are missing
MODEL = Path(os.environ["COPPICE_MODEL"])
VERSION = WHEEL.name.split("-")[1]
MACHINE = WHEEL.stem.rpartition("2_28_")[2]
ARM64 = Path(os.environ["COPPICE_ARM64"]) if MACHINE == "aarch64" else None  # what scripts/arm64_sysroot.sh made
EMULATED = [Path(__file__).resolve().parents[2] / "scripts/emulated.py", ARM64 / "qemu-aarch64-static"] if ARM64 else []
C_LIBRARY = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-aarch64.so.1" if ARM64 else "ld-linux-x86-64.so.2"}
# Of its answers to these the model is sure: on each instruction set rows are rounded otherwise.
TURNS = ["Say: one two three four five six", "Say: one two three four five six"]
SERVE = f"""
import json, sys
sys.path.append("/home/user")
from coppice_process import Coppice
with Coppice("--kv-bytes", "64MiB", "--threads", "2", model="/models/{MODEL.name}") as server:
    answers = server.converse(*{TURNS})
    assert server.end() == 0, server.log.read_text()
print("ANSWERS", json.dumps(answers))
"""


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder


def programs(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]


def readelf(option: str, file: Path) -> str:
    return subprocess.run(["readelf", "-W", option, file], capture_output=True, text=True, check=True).stdout


def test_it_wants_nothing_but_an_old_c_library(unpacked):
    files = programs(unpacked)
    assert len(files) > (10 if ARM64 else 15)  # the program, llama.cpp's libraries, ggml's kernels for each kind of CPU
    own = {file.name for file in files}
    for file in files:
        wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", file)))
        assert wanted <= C_LIBRARY | own, file.name
        versions = set(re.findall(r"Name: (\w+_[0-9.]+)", readelf("-V", file)))
        assert all(name.startswith("GLIBC_") and tuple(map(int, name[6:].split("."))) <= (2, 28) for name in versions), (file.name, versions)


def test_auditwheel_agrees():
    done = subprocess.run([os.environ["COPPICE_AUDITWHEEL"], "show", WHEEL], capture_output=True, text=True, check=False)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    tag = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_' + MACHINE + '"', said)
    assert tag and int(tag.group(1)) <= 28, said


def test_it_is_small():
    assert WHEEL.stat().st_size < 40e6 and TARBALL.stat().st_size < 40e6


def test_the_tarball_has_the_same_files(unpacked):
    with tarfile.open(TARBALL) as tar:
        packed = {entry.name.split("/", 1)[1]: tar.extractfile(entry).read() for entry in tar}
    for file in programs(unpacked):
        assert packed[str(file.relative_to(unpacked / "coppice"))] == file.read_bytes()
    assert "share/man/man1/coppice.1.gz" in packed and b"OpenSSL" in packed["share/doc/coppice/copyright"]
    assert (b"CUDA" in packed["share/doc/coppice/copyright"]) == (ARM64 is None)


class Machine(BareDebian):
    """A bare Debian with Python, in which a user has the wheel in an environment and the tarball beside. The libraries that programs in C++ want
    are taken away."""

    def __init__(self, release: str):
        pristine = make_bare(DEBIANS / f"{release}{'-arm64' if ARM64 else ''}-python", release, ["python3-venv"], EMULATED)
        super().__init__(pristine, BARE / release, EMULATED)
        home = self.root / "home/user"
        home.mkdir(parents=True)
        for file in (WHEEL, TARBALL, Path(sys.modules["coppice_process"].__file__)):
            shutil.copy(file, home)
        (home / "serve.py").write_text(SERVE)
        (self.root / "models").mkdir()
        shutil.copy(MODEL, self.root / "models")
        for pattern in ("libstdc++*", "libgcc_s*"):
            for file in self.root.glob(f"usr/lib/{MACHINE}-linux-gnu/{pattern}"):
                file.unlink()
        subprocess.run(["chown", "-R", "1000:1000", home], check=True)
        self.user, self.alone = "1000:1000", True
        self.environment = {"HOME": "/home/user", "LANG": "C.UTF-8"}
        self.run("sh", "-c", f"cd && python3 -m venv env && env/bin/pip install -q --no-index ./{WHEEL.name} && tar -xzf {TARBALL.name}")

    def serve(self, program: str) -> list[str]:
        self.environment["COPPICE_BINARY"] = program
        said = self.run("python3", "/home/user/serve.py")
        return json.loads(re.search(r"^ANSWERS (.*)$", said, re.M).group(1))


FROM_WHEEL = "/home/user/env/bin/coppice"
FROM_TARBALL = f"/home/user/{TARBALL.name.removesuffix('.tar.gz')}/bin/coppice"


@pytest.fixture(scope="module", params=["bullseye", "bookworm", "trixie"])
def machine(request):
    made = Machine(request.param)
    yield made
    shutil.rmtree(made.root)


@pytest.fixture(scope="session")
def expected():
    """The same answers by the build for this machine's own CPU."""
    with Coppice("--kv-bytes", "64MiB", "--threads", "2") as server:
        answers = server.converse(*TURNS)
    assert all(answers)
    return answers


def test_it_starts(machine):
    own = subprocess.run([os.environ["COPPICE_BINARY"], "--version"], capture_output=True, text=True, check=True).stdout
    kernels = "kernels: NEON_I8MM" if ARM64 else re.search(r"^kernels: \S+", own, re.M).group(0)
    for words in ([FROM_WHEEL], ["/home/user/env/bin/python", "-m", "coppice"], [FROM_TARBALL]):
        said = machine.run(*words, "--version")
        assert f"coppice {VERSION}," in said and kernels in said  # qemu's best, or the native build's choice


@pytest.mark.skipif(ARM64 is not None, reason="the stub is for this machine")
def test_its_own_libraries_go_first(machine):
    """LD_LIBRARY_PATH may lead to those of another llama.cpp, which have the same names."""
    folder = machine.root / "home/user/others"
    folder.mkdir()
    for name in ("libllama.so.0", "libggml.so.0", "libggml-base.so.0", "libmtmd.so.0"):
        subprocess.run(["clang-19", "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{name}", "-o", folder / name], check=True)
    for program in (FROM_WHEEL, FROM_TARBALL):
        assert f"coppice {VERSION}," in machine.run("env", "LD_LIBRARY_PATH=/home/user/others", program, "--version")


def test_it_describes_a_model(machine):
    assert "SmolLM2" in machine.run(FROM_WHEEL, "models", f"/models/{MODEL.name}")


def test_without_a_model_it_says_how_to_get_one(machine):
    for command in ("serve", "demo"):
        assert "coppice pull" in machine.run(FROM_WHEEL, command, ok=False)


@pytest.mark.parametrize("program", [FROM_WHEEL, FROM_TARBALL], ids=["wheel", "tarball"])
def test_it_serves(machine, expected, program):
    assert machine.serve(program) == expected


@pytest.mark.skipif(ARM64 is not None, reason="its wheel has no module for GPUs")
@pytest.mark.parametrize("program", [FROM_WHEEL, FROM_TARBALL], ids=["wheel", "tarball"])
def test_its_module_for_gpus_is_loaded(machine, program):
    said = machine.run(program, "serve", f"/models/{MODEL.name}", "--device", "cuda", ok=False)
    assert "--device cuda can't be had: there is no NVIDIA driver, or it is too old" in said


@pytest.mark.skipif(ARM64 is not None, reason="24,000 tokens take too long under qemu")
def test_it_shows_the_demo(machine):
    said = machine.run(FROM_WHEEL, "demo", f"/models/{MODEL.name}", "--threads", "2")
    assert re.search(r"tokens computed .* fewer", said), said


def test_it_chats(machine, expected):
    said = machine.run("sh", "-c", f"echo '{TURNS[0]}' | {FROM_WHEEL} chat /models/{MODEL.name} --temp 0 -n 16")
    assert expected[0].strip() in said


def test_python_passes_on_arguments_and_status(machine):
    done = subprocess.run(machine.command(FROM_WHEEL, "serve", "/models/none of these.gguf"), capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 126, 127) and "none of these.gguf" in done.stderr


def test_it_computes_on_an_old_cpu(tmp_path, monkeypatch):
    """Without AVX, or on ARM without dot products."""
    with tarfile.open(TARBALL) as tar:
        tar.extractall(tmp_path)
    program = next(tmp_path.glob("*/bin/coppice"))
    emulator = [ARM64 / "qemu-aarch64-static", "-L", ARM64 / "sysroot", "-cpu", "cortex-a53"] if ARM64 else ["qemu-x86_64-static", "-cpu", "Nehalem"]
    emulated = tmp_path / "coppice"
    emulated.write_text(f'#!/bin/sh\nexec {" ".join(map(str, emulator))} {program} "$@"\n')
    emulated.chmod(0o755)
    said = subprocess.run([emulated, "--version"], capture_output=True, text=True, check=True).stdout
    ours, ggmls = (re.search(rf"^{whose}: (.*)$", said, re.M).group(1) for whose in ("kernels", "ggml's kernels"))
    if ARM64:
        assert ours.split()[0] == "NEON" and "NEON" in ggmls and "DOTPROD" not in ggmls
    else:
        assert not ours.startswith("AVX") and "SSSE3" in ggmls
    monkeypatch.setenv("COPPICE_BINARY", str(emulated))
    with Coppice("--kv-bytes", "64MiB", "--threads", "2") as server:
        answer = server.post("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0})
        assert answer["choices"][0]["text"] == " Paris.", answer
        assert server.end() == 0, server.log.read_text()
