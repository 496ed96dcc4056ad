"""coppice demo: whatever the environment is, it answers, or says why not."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from coppice_process import TIMEOUT_S, binary
from small_model import write_small


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("models"), context=4096)


def demo(*arguments, before=(), **variables):
    return subprocess.run([*before, binary(), "demo", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | variables)


@pytest.mark.parametrize("variable", ["LLAMA_API_KEY", "VLLM_API_KEY"])
def test_a_key_is_not_for_its_servers(tmp_path, small, variable):
    done = demo(small, COPPICE_CACHE=str(tmp_path), **{variable: "sk-x"})
    assert done.returncode == 0 and "tokens reused" in done.stdout, done.stderr


@pytest.mark.parametrize("home", [{"HOME": "/nonexistent"}, {}])
@pytest.mark.parametrize("arguments", [[], ["--restart", "--tokens", "500"]])
def test_without_a_home_it_takes_the_temporary_folder(small, home, arguments):
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else, who may not make any folder")
    with tempfile.TemporaryDirectory(prefix="coppice-others-") as name:  # pytest's folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(binary(), folder / "coppice")
        shutil.copy(small, folder / "small.gguf")
        for made in ("temporary", "working"):
            (folder / made).mkdir()
            os.chown(folder / made, 54321, 54321)
        done = subprocess.run([folder / "coppice", "demo", folder / "small.gguf", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                              cwd=folder / "working", env=home | {"TMPDIR": str(folder / "temporary"), "LLAMA_ARG_THREADS": "1"},
                              preexec_fn=lambda: os.setresuid(54321, 54321, 54321))
        assert done.returncode == 0, done.stderr
        assert [*folder.glob("temporary/*"), *folder.glob("working/*"), *folder.glob("working/.*")] == []


def test_a_server_that_ends_says_why(tmp_path, small):
    done = demo(small, COPPICE_CACHE=str(tmp_path), LLAMA_ARG_CTX_SIZE="abc")
    assert done.returncode == 1
    assert "the server ended while starting: LLAMA_ARG_CTX_SIZE: abc is not 0" in done.stderr


def test_a_full_disk_ends_it(tmp_path, small):
    """A small file system, which only this process sees."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=512k tmpfs "$COPPICE_CACHE" && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], env=os.environ | {"COPPICE_CACHE": str(tmp_path)}, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount")
    done = demo("--restart", "--tokens", "3000", small, before=mount, COPPICE_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "its disk has no room" in done.stderr or "No space left on device" in done.stderr, done.stderr
