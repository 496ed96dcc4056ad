"""`coppice pull` against a stand-in for the hubs that speaks as they do (hubs.py)."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from coppice_process import binary
from hubs import CERTIFICATE, COMMIT, GGUF, WOOD, Hubs, Machine, large_ones, sha256


def test_from_the_hub_to_where_its_tools_keep_it(machine, hubs):
    path = machine.pulled("hf:alice/Wood-GGUF/Wood-Q4_0.gguf")
    repo = machine.hub / "models--alice--Wood-GGUF"
    assert path == str(repo / "snapshots" / COMMIT / "Wood-Q4_0.gguf")
    assert os.readlink(path) == f"../../blobs/{sha256(GGUF)}"
    assert (repo / "blobs" / sha256(GGUF)).read_bytes() == GGUF
    assert (repo / "refs/main").read_text() == COMMIT
    assert "alice/Wood-GGUF/Wood-Q4_0" in machine.run("models").stdout
    assert machine.pulled("--offline", "hf:alice/Wood-GGUF/Wood-Q4_0.gguf") == path
    machine.pulled("hf:alice/Wood-GGUF/Wood-Q4_0.gguf")
    assert len(large_ones(hubs)) == 1  # it is there


def test_the_only_file_of_a_repository(machine, hubs):
    assert machine.pulled("hf:alice/Wood-GGUF").endswith("/Wood-Q4_0.gguf")
    hubs.files["alice/Wood-GGUF"]["Wood-Q8_0.gguf"] = GGUF
    machine.refused("hf:alice/Wood-GGUF", says=["2 GGUF files", "hf:alice/Wood-GGUF/Wood-Q4_0.gguf", "hf:alice/Wood-GGUF/Wood-Q8_0.gguf"])
    hubs.files["alice/Words"] = {"a.txt": b"a"}
    machine.refused("hf:alice/Words", says=["no GGUF file"])


def test_all_parts_of_a_model(machine, hubs):
    parts = [f"Q4/Big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hubs.files["bob/Big"] = {name: name.encode() for name in parts}
    path = machine.pulled("hf:bob/Big")
    assert path.endswith(parts[0])
    folder = machine.hub / "models--bob--Big/snapshots" / COMMIT
    assert [(folder / name).read_bytes() for name in parts] == [name.encode() for name in parts]
    for name in ("x-00001-of-00000.gguf", "x-00000-of-00002.gguf", "x-00003-of-00002.gguf"):
        machine.refused(f"hf:bob/Big/{name}", says=[f"bob/Big/{name} can't be: it says part"])


def test_a_quantization_of_a_repository(machine, hubs):
    hubs.files["bob/Many"] = {f"Many-{kind}.gguf": kind.encode() for kind in ("BF16", "F16", "Q4_K_M", "UD-Q4_K_M", "Q4_K_S")}
    for wanted, file in {"f16": "Many-F16.gguf", "Q4_K_S": "Many-Q4_K_S.gguf", "UD-Q4_K_M": "Many-UD-Q4_K_M.gguf"}.items():
        path = machine.pulled(f"hf:bob/Many:{wanted}")
        assert path.endswith("/" + file)
        assert machine.pulled("--offline", f"hf:bob/Many:{wanted}") == path
    machine.refused("hf:bob/Many:Q4_K_M", says=["has 2 GGUF files with Q4_K_M", "hf:bob/Many/Many-Q4_K_M.gguf\n  hf:bob/Many/Many-UD-Q4_K_M.gguf\n"])
    machine.refused("hf:bob/Many:Q8_0", says=["has no GGUF file with Q8_0 in its name; it has:", *(f"hf:bob/Many/{name}" for name in hubs.files["bob/Many"])])


@pytest.mark.parametrize("name", ["hf://alice/Wood-GGUF", "https://huggingface.co/alice/Wood-GGUF", "https://hf.co/alice/Wood-GGUF/tree/main",
                                  "https://huggingface.co/alice/Wood-GGUF/blob/main/Wood-Q4_0.gguf",
                                  "https://huggingface.co/alice/Wood-GGUF/resolve/main/Wood%2DQ4_0.gguf?download=true"])
def test_what_people_paste(machine, name):
    assert machine.pulled(name) == machine.pulled("--offline", name) == machine.pulled(WOOD)


def test_hf_that_was_forgotten(machine, hubs):
    machine.refused("alice/Wood-GGUF", says=["There is no alice/Wood-GGUF:latest at", "Hugging Face's: hf:alice/Wood-GGUF\n"])
    machine.refused("alice/Wood-GGUF:Q4_0", says=["Hugging Face's: hf:alice/Wood-GGUF:Q4_0\n"])
    hubs.asked.clear()
    machine.refused("alice/Wood-GGUF/Wood-Q4_0.gguf", says=["alice is no registry's host", "hf:alice/Wood-GGUF/Wood-Q4_0.gguf\n"])
    assert hubs.asked == []


def test_a_renamed_repository_is_followed(machine):
    machine.pulled("hf:old/name/Wood-Q4_0.gguf")


def test_a_token_reaches_the_hub_and_nobody_else(machine, hubs):
    hubs.private["alice/Wood-GGUF"] = "hf_secret"
    machine.refused("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", says=["HF_TOKEN"])
    machine.refused("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", says=["the token in HF_TOKEN may not"], HF_TOKEN="hf_other")
    said = machine.pull("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", HF_TOKEN="hf_secret")
    assert said.returncode == 0 and "hf_secret" not in said.stdout + said.stderr
    assert large_ones(hubs) and not any("authorization" in fields for fields in large_ones(hubs))


    hubs.first = [("hub", 302, {"X-Repo-Commit": COMMIT, "X-Linked-Etag": "0" * 64, "X-Linked-Size": "9", "Location": hubs.store}, b""),
                  ("hub", 403, {}, b"")]
    machine.refused(WOOD, says=["isn't there: HF_TOKEN may hold"])


def test_blanks_around_a_token_do_not_count(machine, hubs):
    hubs.private["alice/Wood-GGUF"] = "hf_secret"
    machine.pulled(WOOD, HF_TOKEN=" hf_secret\r\n")
    hubs.asked.clear()
    machine.refused(WOOD, says=["HF_TOKEN is no token"], HF_TOKEN="hf_secret\r\nX-Evil: 1")
    assert hubs.asked == []


def test_from_ollama_to_where_it_keeps_its_models(machine, hubs):
    path = machine.pulled("oak:1b")
    assert path == str(machine.ollama / f"blobs/sha256-{sha256(GGUF)}")
    for _, data in hubs.ollama["library/oak:1b"]:
        assert (machine.ollama / f"blobs/sha256-{sha256(data)}").read_bytes() == data
    manifest = machine.ollama / "manifests/registry.ollama.ai/library/oak/1b"
    assert sha256(GGUF) in manifest.read_text()
    assert "oak:1b" in machine.run("models").stdout
    assert machine.pulled("--offline", "oak:1b") == path


@pytest.mark.parametrize("name", ["HOME/evil.gguf", "../../../../../../evil.gguf", "sub/../x.gguf", "\x1b[31mred.gguf", "a\r\nX-Evil: 1.gguf",
                                  "\x9b31mred.gguf", 100_000 * "a" + ".gguf"])
def test_a_hubs_names_stay_in_their_folder(machine, hubs, name):
    hubs.files["alice/Wood-GGUF"] = {name.replace("HOME", str(machine.home)): GGUF}
    said = machine.refused("hf:alice/Wood-GGUF", says=["lists a file that no folder can hold by this name"])
    assert said.strip().isprintable() and len(said) < 500
    assert len(hubs.asked) == 1 and not [file for file in machine.home.rglob("*") if file.is_file()]


def test_control_characters_do_not_reach_the_terminal(machine, hubs):
    hubs.ollama["library/oak:1b"].insert(0, ("\x1b[31mlicence", GGUF[:1 << 20]))
    said = machine.pull("oak:1b")
    assert said.returncode == 0 and "?[31mlicence: 1 MiB of 1 MiB" in said.stderr and "\x1b" not in said.stderr
    for name in ("\x1b[31m", "hf:a/b\x1b[31m"):
        assert "?[31m'" in machine.refused(name) and "?[31m'" in machine.refused("--offline", name)


def test_ordinary_names_with_odd_characters(machine, hubs):
    names = ["Wood (1)+2,_é#%41?.gguf", "_x.gguf", "+x&y=z;.gguf", "sub/,x.gguf"]
    hubs.files["bob/Odd"] = {name: name.encode() for name in names}
    for name in names:
        assert open(machine.pulled(f"hf:bob/Odd/{name}"), "rb").read() == name.encode()


def test_a_proxy_is_asked_unless_the_host_is_left_out(machine, hubs):
    variables = {"HF_ENDPOINT": "http://hub.invalid", "http_proxy": hubs.proxy.replace("//", "//tree:b%20ark@"), "no_proxy": ".other.invalid"}
    machine.refused("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", **variables)
    [(server, method, path, fields)] = hubs.asked
    assert (server, method, path) == ("proxy", "HEAD", "http://hub.invalid/alice/Wood-GGUF/resolve/main/Wood-Q4_0.gguf")
    assert fields["host"] == "hub.invalid" and fields["proxy-authorization"] == "Basic dHJlZTpiIGFyaw=="
    machine.refused("hf:alice/Wood-GGUF/Wood-Q4_0.gguf", **variables | {"no_proxy": "127.0.0.1, invalid"})
    assert len(hubs.asked) == 1


@pytest.fixture
def secure(tmp_path):
    hubs = Hubs(tls=True)
    hubs.files["alice/Wood-GGUF"] = {"Wood-Q4_0.gguf": GGUF}
    yield Machine(tmp_path, hubs), hubs
    hubs.close()


def test_https_checks_certificates(secure):
    machine, hubs = secure
    said = machine.refused("hf:alice/Wood-GGUF", says=["can't be asked"], SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt")
    assert "HTTPS_PROXY" not in said  # the network is not what fails
    assert "Again" not in said  # nor is it better a little later
    machine.refused("hf:alice/Wood-GGUF", says=["SSL_CERT_FILE names no file of certificates that can be read: '/nowhere'."], SSL_CERT_FILE="/nowhere")
    machine.refused("hf:alice/Wood-GGUF", says=["no certificates of authorities"], SSL_CERT_FILE="")
    assert hubs.asked == []
    machine.pulled("hf:alice/Wood-GGUF", SSL_CERT_FILE=str(CERTIFICATE))


def test_https_goes_through_a_proxys_tunnel(secure):
    machine, hubs = secure
    variables = {"SSL_CERT_FILE": str(CERTIFICATE), "no_proxy": "", "https_proxy": hubs.proxy.replace("//", "//tree:bark@")}
    machine.pulled("hf:alice/Wood-GGUF", **variables)
    tunnels = [(path, fields.get("proxy-authorization")) for _, method, path, fields in hubs.asked if method == "CONNECT"]
    assert {path for path, _ in tunnels} == {hubs.hub.removeprefix("https://"), hubs.store.removeprefix("https://")}
    assert {user for _, user in tunnels} == {"Basic dHJlZTpiYXJr"}
    assert not any("proxy-authorization" in fields for server, _, _, fields in hubs.asked if server != "proxy")
    machine.refused("hf:alice/Wood-GGUF", says=["The proxy", "answers 502"], **variables | {"HF_ENDPOINT": "https://hub.invalid"})


def test_nothing_is_followed_out_of_https(secure):
    machine, hubs = secure
    hubs.store = "http://127.0.0.1:1"
    machine.refused("hf:alice/Wood-GGUF", says=["redirects to where nothing is fetched from"], SSL_CERT_FILE=str(CERTIFICATE))


def test_offline_asks_nobody(machine, hubs):
    machine.refused("--offline", "oak:1b", says=["not on this machine"])
    for true in ("1", "ON", "yes", "True"):
        machine.refused("oak:1b", says=["not on this machine"], HF_HUB_OFFLINE=true)
    assert hubs.asked == []
    for false in ("", "0", "no", "maybe"):
        machine.pulled("oak:1b", HF_HUB_OFFLINE=false)


def test_offline_finds_revisions(machine):
    path = machine.pulled("hf:alice/Wood-GGUF@v2")
    for name in ("hf:alice/Wood-GGUF@v2", "hf:alice/Wood-GGUF@v2/Wood-Q4_0.gguf", f"hf:alice/Wood-GGUF@{COMMIT}"):
        assert machine.pulled("--offline", name) == path
    for name in ("hf:alice/Wood-GGUF@main", "hf:alice/Wood-GGUF", WOOD):
        machine.refused("--offline", name, says=["not on this machine"])


def test_revisions_with_slashes(machine, hubs):
    path = machine.pulled("hf:alice/Wood-GGUF@refs/pr/1")
    assert [path.split("?")[0] for server, _, path, _ in hubs.asked if server == "hub"] == [
        "/api/models/alice/Wood-GGUF/revision/refs%2Fpr%2F1", *["/alice/Wood-GGUF/resolve/refs%2Fpr%2F1/Wood-Q4_0.gguf"] * 2]
    assert (machine.hub / "models--alice--Wood-GGUF/refs/refs/pr/1").read_text() == COMMIT
    for name in ("hf:alice/Wood-GGUF@refs/pr/1:Q4_0", "hf:alice/Wood-GGUF@refs/pr/1/Wood-Q4_0.gguf",
                 "https://huggingface.co/alice/Wood-GGUF/blob/refs%2Fpr%2F1/Wood-Q4_0.gguf", "https://huggingface.co/alice/Wood-GGUF/tree/refs%2Fpr%2F1"):
        assert machine.pulled(name) == machine.pulled("--offline", name) == path
    machine.refused("--offline", "hf:alice/Wood-GGUF@refs/pr/2", says=["not on this machine"])
    hubs.files["alice/Wood-GGUF"]["Wood-Q8_0.gguf"] = b"eight"
    machine.refused("hf:alice/Wood-GGUF@refs/pr/1", says=["\n  hf:alice/Wood-GGUF@refs/pr/1/Wood-Q8_0.gguf"])


def test_a_projector_that_is_not_fetched_is_named(machine, hubs):
    """What `coppice serve` would take if it lay beside the model (projector_files.h)."""
    files = hubs.files["alice/Wood-GGUF"] = {name: name.encode() for name in (
        "Wood-Q4_0.gguf", "mmproj-Wood-f16.gguf", "mmproj-model-bf16.gguf", "mmproj-Other-f16.gguf", "sub/mmproj-Wood-f16.gguf", "../mmproj-Wood.gguf")}
    said = machine.pull("hf:alice/Wood-GGUF")
    [command, other] = re.findall("which is not fetched yet: coppice pull (.*), or (.*)\n", said.stderr)[0]
    assert (command, other) == ("hf:alice/Wood-GGUF/mmproj-Wood-f16.gguf", "hf:alice/Wood-GGUF/mmproj-model-bf16.gguf")
    assert "mmproj" in machine.pull("hf:alice/Wood-GGUF").stderr  # while it is missing
    assert os.path.dirname(machine.pulled(command)) == os.path.dirname(said.stdout.strip())
    assert "mmproj" not in machine.pull("hf:alice/Wood-GGUF").stderr
    del files["mmproj-Wood-f16.gguf"], files["mmproj-model-bf16.gguf"]
    (machine.hub / "models--alice--Wood-GGUF/snapshots" / COMMIT / "mmproj-Wood-f16.gguf").unlink()
    assert "mmproj" not in machine.pull("hf:alice/Wood-GGUF").stderr


def test_offline_finds_whole_models_only(machine, hubs):
    parts = [f"Q4/Big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hubs.files["bob/Big"] = {name: name.encode() for name in parts}
    path = machine.pulled("hf:bob/Big")
    for name in ("hf:bob/Big", f"hf:bob/Big/{parts[2]}"):
        assert machine.pulled("--offline", name) == path
    machine.refused("--offline", "hf:bob/Big/Q4", says=["not on this machine"])
    for part in (parts[1], parts[0]):
        os.unlink(os.path.realpath(path.replace(parts[0], part)))
        machine.refused("--offline", "hf:bob/Big", says=["not on this machine"])
    hubs.files["alice/Wood-GGUF"]["Wood-Q8_0.gguf"] = b"eight"
    for name in ("Wood-Q4_0.gguf", "Wood-Q8_0.gguf"):
        machine.pulled(f"hf:alice/Wood-GGUF/{name}")
    machine.refused("--offline", "hf:alice/Wood-GGUF", says=["2 GGUF files"])
    machine.refused("--offline", "hf:alice", says=["is not hf:OWNER/REPO"])


def test_folders_that_cannot_be_written(machine):
    (machine.home / "file").touch()
    where = str(machine.home / "file")
    machine.refused(WOOD, says=[f"{where}/models--alice--Wood-GGUF/blobs can't be written: ", "HF_HUB_CACHE may name another folder"], HF_HUB_CACHE=where)
    machine.refused("oak:1b", says=[f"{where}/blobs can't be written: ", "OLLAMA_MODELS may name another folder"], OLLAMA_MODELS=where)
    machine.refused(WOOD, says=["HOME is not set: HF_HUB_CACHE may name"], HOME="")
    machine.refused("oak:1b", says=["HOME is not set: OLLAMA_MODELS may name"], HOME="")


def entries(folder: Path) -> dict[Path, tuple[int, ...]]:
    """What changes if one is written, or made anew."""
    found = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in found.items()}


@pytest.mark.parametrize("name", [WOOD, f"hf:alice/Wood-GGUF@{COMMIT}", "oak:1b"])
def test_what_is_right_is_left_alone(machine, name):
    path = machine.pulled(name)
    before = entries(machine.home)
    assert machine.pulled(name) == path
    assert entries(machine.home) == before


def test_a_wrong_link_is_replaced_at_once(machine):
    """No moment is without a link, and pulls beside each other don't disturb each other."""
    path = machine.pulled(WOOD)
    right = os.readlink(path)
    for wrong in ("../../blobs/gone", "../../refs/main"):
        os.unlink(path)
        os.symlink(wrong, path)
        pulls = [subprocess.Popen([binary(), "pull", WOOD], env=machine.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for _ in range(8)]
        while any(each.poll() is None for each in pulls):
            assert os.readlink(path) in (wrong, right)
        said = [each.communicate()[1] for each in pulls]
        assert [each.returncode for each in pulls] == [0] * 8, said
        assert os.readlink(path) == right and os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


@pytest.fixture
def others(hubs):
    """A machine whose models and program another user may read, as none of pytest's folders."""
    home = Path(tempfile.mkdtemp(prefix="coppice-others-"))
    shutil.copy(binary(), home / "coppice")
    yield Machine(home, hubs)
    for folder, _, _ in os.walk(home):
        os.chmod(folder, 0o755)
    shutil.rmtree(home)


def pull_as_another(machine, name) -> subprocess.CompletedProcess:
    """As somebody who may read all and write nothing."""
    for folder, _, _ in os.walk(machine.home):
        os.chmod(folder, 0o555)
    become = (lambda: os.setresuid(54321, 54321, 54321)) if os.geteuid() == 0 else None
    return subprocess.run([machine.home / "coppice", "pull", name], env=machine.environment, capture_output=True, text=True, timeout=120, cwd="/",
                          preexec_fn=become)


def test_models_that_may_only_be_read(others, hubs):
    hubs.files["bob/Big"] = {f"Big-0000{i}-of-00002.gguf": bytes([i]) for i in (1, 2)}
    names = [WOOD, "hf:alice/Wood-GGUF", f"hf:alice/Wood-GGUF@{COMMIT}", "hf:bob/Big", "oak:1b"]
    paths = [others.pulled(name) for name in names]
    manifest = others.ollama / "manifests/registry.ollama.ai/library/oak/1b"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()), indent=1, sort_keys=True))  # in other words than the registry's
    for name, path in zip(names, paths):
        done = pull_as_another(others, name)
        assert (done.returncode, done.stdout) == (0, path + "\n"), done.stderr


def test_why_something_newer_is_not_written(others, hubs):
    link, ref = others.pulled(WOOD), others.hub / "models--alice--Wood-GGUF/refs/main"
    others.pulled("hf:alice/Wood-GGUF/mmproj-Wood.gguf")
    others.pulled("oak:1b")
    os.unlink(link)
    os.symlink("../../blobs/gone", link)
    ref.write_text("0" * 40)
    hubs.ollama["library/oak:1b"].pop(0)
    hubs.files["alice/Wood-GGUF"]["new.gguf"] = b"new"
    for name, what, variable in ((WOOD, link, "HF_HUB_CACHE"), ("hf:alice/Wood-GGUF/mmproj-Wood.gguf", ref, "HF_HUB_CACHE"),
                                 ("hf:alice/Wood-GGUF/new.gguf", others.hub, "HF_HUB_CACHE"),
                                 ("oak:1b", others.ollama / "manifests/registry.ollama.ai/library/oak/1b", "OLLAMA_MODELS")):
        done = pull_as_another(others, name)
        assert done.returncode == 1 and f"{what} can't be written: Permission denied. {variable} may name another" in done.stderr, done.stderr


def test_what_is_not_there(machine, hubs):
    machine.refused("hf:alice/Wood-GGUF/Wood-Q9.gguf", says=["There is no alice/Wood-GGUF/Wood-Q9.gguf at"])
    machine.refused("hf:nobody/Nothing", says=["There is no nobody/Nothing at"])
    machine.refused("oak:70b", says=["There is no oak:70b at"])
    long = 100_000 * "x"
    for name in (long, f"hf:alice/{long}", f"hf:alice/Wood-GGUF/{long}", "hf:alice",
                 "hf:../../etc/passwd", "hf:alice/Wood-GGUF/../x.gguf", "oak/../../x", "hf:alice/Wood-GGUF/"):
        machine.refused(name, says=["is no model's name" if not name.startswith("hf:") else "is not hf:OWNER/REPO/FILE"])


def test_progress_is_told(machine):
    said = machine.pull("hf:alice/Wood-GGUF/Wood-Q4_0.gguf").stderr
    assert "Wood-Q4_0.gguf: 3 MiB of 3 MiB" in said.splitlines()[-1]
