"""The container: podman builds the Containerfile, without a network on Debians that debootstrap made, and its image serves as the manual says."""

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

from bare_debian import make_bare
from coppice_process import TIMEOUT_S, free_port
from hubs import Hubs

REPO = Path(__file__).resolve().parents[2]
CONTAINERFILE = REPO / "packaging" / "Containerfile"
TARBALL = Path(os.environ["COPPICE_TARBALL"])
MODEL = Path(os.environ["COPPICE_MODEL"])
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}
LONG = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}
# Engines raise these limits, which root may do only where the machine is its own; runc knows each way of mounting cgroups.
SETTINGS = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n'


class Podman:
    """With images, containers and settings of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.conf").write_text(SETTINGS)
        self.remove_all()  # of a run that was broken off

    def remove_all(self):
        self.run("pod", "rm", "--all", "--force", "--time=0")
        self.run("rm", "--all", "--force", "--time=0")
        self.run("volume", "rm", "--all", "--force")
        self.run("rmi", "--all", "--force")

    def words(self, *words: str | Path) -> list[str | Path]:
        # Errors only in its last line: without systemd it also tells that nothing calls the HEALTHCHECK.
        return ["podman", "--log-level=fatal", "--root", self.folder / "root", "--runroot", self.folder / "run", *words]

    def run(self, *words: str | Path, ok=True, **more) -> str:
        done = subprocess.run(self.words(*words), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=600, **more)
        assert done.returncode == 0 or not ok, (words, done.stdout[-4000:])
        return done.stdout

    def healthy(self, name: str) -> bool:
        return subprocess.run(self.words("healthcheck", "run", name), env=self.environment, capture_output=True, check=False).returncode == 0

    def make_bases(self):
        """What the Containerfile begins with, under the names that it says."""
        bare = make_bare(Path(os.environ["COPPICE_DEBIANS"]) / "bookworm-git", "bookworm", ["ca-certificates", "git"])
        first, *others = re.findall(r"^FROM (\S+)", CONTAINERFILE.read_text(), re.M)
        with subprocess.Popen(["tar", "-C", bare, "-c", "."], stdout=subprocess.PIPE) as tar:
            self.run("import", "-", first, stdin=tar.stdout)
        for name in others:
            self.run("tag", first, name)


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    made = Podman(Path(os.environ["COPPICE_BARE"]) / "containers")
    made.make_bases()
    # make wheel has compiled already: its script does nothing in these sources, and what it made lies where it would.
    sources = tmp_path_factory.mktemp("sources")
    for folder in ("scripts", "build-wheel"):
        (sources / folder).mkdir()
    (sources / "scripts/wheel.sh").write_text("#!/bin/sh\n")
    (sources / "scripts/wheel.sh").chmod(0o755)
    shutil.copy(TARBALL, sources / "build-wheel/coppice.tar.gz")
    made.run("build", "--pull=never", "--network=none", "--format=docker", "-t", "coppice", "-f", CONTAINERFILE, sources)
    yield made
    made.remove_all()
    shutil.rmtree(made.folder)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_until_ready(podman, name: str, ready):
    end = time.monotonic() + TIMEOUT_S
    while not ready():
        assert podman.run("inspect", "--format={{.State.Running}}", name).strip() == "true" and time.monotonic() < end, podman.run("logs", name)
        time.sleep(0.2)


def put_model(folder: Path, name=MODEL.name):
    shutil.copy(MODEL, folder / name)
    (folder / name).chmod(0o644)


@pytest.fixture(scope="module")
def url(podman, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    models.chmod(0o755)
    put_model(models)
    port = free_port()
    podman.run("run", "-d", "--name=server", "--pull=never", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL",
               "--security-opt=no-new-privileges", f"--publish=127.0.0.1:{port}:8080", f"--volume={models}:/models:ro", "--volume=cache:/var/cache/coppice",
               # The rest is what the image says.
               "coppice", "serve", MODEL.stem, "--kv-bytes=64MiB", "--threads=2", "--kv-dir=/var/cache/coppice/kv")
    wait_until_ready(podman, "server", lambda: podman.healthy("server"))
    return f"http://127.0.0.1:{port}"


def post(url: str, path: str, body: dict):
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode()), timeout=TIMEOUT_S)


def assert_that_it_serves(podman, name: str, url: str):
    """To chats, as nobody and without rights."""
    with post(url, "/v1/chat/completions", CHAT) as reply:
        assert json.load(reply)["usage"]["completion_tokens"] > 3
    status = dict(re.findall(r"^(\w+):\t(.*)$", podman.run("exec", name, "cat", "/proc/1/status"), re.M))
    assert (set(status["Uid"].split()), int(status["CapEff"], 16), status["NoNewPrivs"]) == ({"65534"}, 0, "1")


def test_it_serves_without_rights(podman, url):
    assert_that_it_serves(podman, "server", url)


def test_it_writes_to_its_volume_alone(podman, url):
    said = podman.run("exec", "server", "sh", "-c", "touch /usr/x /tmp/x /models/x; find /var/cache/coppice/kv -user nobody", ok=False)
    assert said.count("Read-only file system") == 3 and "/var/cache/coppice/kv" in said.split()


def test_it_ends_what_it_has_begun(podman, url):
    """It also ends the server."""
    with post(url, "/v1/completions", LONG) as reply:
        chunks = [next(reply)]
        podman.run("kill", "--signal=TERM", "server")
        assert not podman.healthy("server")
        chunks += list(reply)
    text = b"".join(chunks)
    assert b'"finish_reason":"length"' in text.replace(b" ", b"") and text.rstrip().endswith(b"data: [DONE]")
    assert podman.run("wait", "server").strip() == "0"


def test_what_it_pulls_into_its_volume_is_served(podman):
    hubs = Hubs()
    hubs.files["alice/Wood-GGUF"] = {MODEL.name: MODEL.read_bytes()}
    hubs.ollama["library/oak:1b"] = [("application/vnd.ollama.image.model", MODEL.read_bytes()), ("config", b"{}")]
    names = ["hf:alice/Wood-GGUF", "oak:1b"]
    environment = [f"--env={name}={value}" for name, value in hubs.environment().items()]
    run = ["run", "--rm", "--pull=never", "--read-only", "--network=host", *environment]
    for name in names:
        podman.run(*run, "--volume=pulled:/models", "coppice", "pull", name)
    hubs.close()
    for i, name in enumerate(names):
        podman.run(*run, "-d", f"--name=pulled{i}", f"--env=LLAMA_ARG_PORT={(port := free_port())}", "--volume=pulled:/models:ro", "coppice", "serve", name,
                   "--kv-bytes=64MiB", "--threads=2")
        wait_until_ready(podman, f"pulled{i}", lambda port=port: status_of(f"http://127.0.0.1:{port}/readyz") == 200)
        podman.run("stop", f"pulled{i}")


def test_the_example_for_kubernetes_serves(podman, tmp_path):
    """podman also plays Kubernetes' files. Its probes are not asked without systemd: this asks for them."""
    port = free_port()
    text = (REPO / "packaging/examples/kubernetes.yaml").read_text()
    file = tmp_path / "kubernetes.yaml"
    file.write_text(text.replace("containerPort: 8080", f"containerPort: 8080, hostPort: {port}, hostIP: 127.0.0.1").replace("4GiB", "64MiB"))
    podman.run("volume", "create", "models")
    put_model(Path(podman.run("volume", "inspect", "--format={{.Mountpoint}}", "models").strip()), "model.gguf")
    podman.run("kube", "play", file)
    name, url = "coppice-pod-0-coppice", f"http://127.0.0.1:{port}"
    wait_until_ready(podman, name, lambda: status_of(f"{url}/readyz") == 200)
    assert status_of(f"{url}/livez") == 200
    assert_that_it_serves(podman, name, url)
    assert podman.run("exec", name, "sh", "-c", "touch /var/cache/coppice/x; touch /tmp/x", ok=False).count("Read-only file system") == 1
    podman.run("kube", "down", file)
