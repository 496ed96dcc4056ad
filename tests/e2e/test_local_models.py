"""Models where other programs keep them: found by name, listed, and refused with the reason. Each layout is made up here."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from coppice_process import Coppice, binary, model_path
from gguf_edit import Gguf
from small_model import write_small
from vision_model import write_model

WHERE = ("COPPICE_MODELS", "COPPICE_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS", "LLAMA_CACHE")


@pytest.fixture(scope="module")
def small_path(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def small(small_path):
    return Gguf(small_path)


def mib(files) -> str:
    return f"{sum(Path(file).stat().st_size for file in files) / (1 << 20):.0f}"


class Home:
    """A home folder with nothing in it but what a test puts there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name not in WHERE} | {"HOME": str(folder)}

    def coppice(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([binary(), *arguments], env=self.environment, capture_output=True, text=True, timeout=60)

    def models(self, *arguments) -> dict[str, str]:
        """Each listed model's line by its name."""
        done = self.coppice("models", *arguments)
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("There are no models"):
            return {}
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")]
        return {name: rest for name, rest in lines if name != "name"}

    def refused(self, model, *words) -> str:
        """The port is taken, so a model that is found ends it, too."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            done = self.coppice("serve", str(model), "--port", str(listener.getsockname()[1]), "--kv-bytes", "16MiB")
        assert done.returncode == 1 and "listening" not in done.stderr, done.stderr
        assert all(word in done.stderr for word in words), done.stderr
        return done.stderr

    def finds(self, wanted) -> bool:
        """It gets as far as the port, which is taken: the model is loaded by then but for its weights."""
        return "in use" in self.refused(wanted)

    def hugging_face(self, repo, file, path, snapshot="0123abcd"):
        folder = self.folder / ".cache/huggingface/hub" / ("models--" + repo.replace("/", "--"))
        blob = folder / "blobs" / f"{snapshot}-{file.replace('/', '-')}"
        link = folder / "snapshots" / snapshot / file
        for made in (blob, link):
            made.parent.mkdir(parents=True, exist_ok=True)
        blob.hardlink_to(path)
        link.symlink_to(os.path.relpath(blob, link.parent))
        return folder

    def ollama(self, name, tag, path, host="registry.ollama.ai/library", projector=None):
        folder = self.folder / ".ollama/models"
        digest = f"sha256-{name}{tag}".replace("/", "")
        manifest = folder / "manifests" / host / name / tag
        for made in (manifest, folder / "blobs/x"):
            made.parent.mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / digest).hardlink_to(path)
        layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:licence", "size": 1},
                  {"mediaType": "application/vnd.ollama.image.model", "digest": digest.replace("-", ":", 1), "size": 1}]
        if projector:
            (folder / "blobs" / f"{digest}p").hardlink_to(projector)
            layers.append({"mediaType": "application/vnd.ollama.image.projector", "digest": f"{digest}p".replace("-", ":", 1), "size": 1})
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))

    def file(self, place, path):
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(path)
        return target


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_nothing_there(home):
    done = home.coppice("models")
    assert done.returncode == 0
    assert done.stdout.startswith("There are no models in\n")
    assert str(home.folder / ".cache/huggingface/hub") in done.stdout
    home.refused("smol", "no file, folder or local model 'smol'", "coppice models", "coppice pull hf:", "coppice pull llama")
    home.refused("./smol.gguf", "no file or folder ./smol.gguf")
    home.refused(home.folder, f"no GGUF file in the folder {home.folder}")


def test_every_place_is_looked_into(home, small_path):
    home.hugging_face("alice/Wood-GGUF", "Wood-1B.Q8_0.gguf", small_path)
    home.ollama("oak", "latest", small_path)
    home.ollama("fir", "1b", small_path)
    home.ollama("bob/elm", "2b", small_path, host="registry.ollama.ai")
    home.ollama("carol/ash", "q8", small_path, host="hf.co")
    home.file(".lmstudio/models/dora/Yew-GGUF/Yew-Q8_0.gguf", small_path)
    home.file(".cache/lm-studio/models/emil/Lime-GGUF/Lime-Q8_0.gguf", small_path)
    home.file(".cache/llama.cpp/fred_Pine_Pine-Q8_0.gguf", small_path)
    home.file(".cache/coppice/Beech.gguf", small_path)
    home.file("one/deep/er/Rowan.gguf", small_path)
    home.file("two/Maple.GGUF", small_path)
    home.environment["COPPICE_MODELS"] = f"{home.folder}/one:{home.folder}/two"
    listed = home.models()
    assert sorted(listed) == sorted([
        "alice/Wood-GGUF/Wood-1B.Q8_0", "oak:latest", "fir:1b", "bob/elm:2b", "hf.co/carol/ash:q8", "dora/Yew-GGUF/Yew-Q8_0",
        "emil/Lime-GGUF/Lime-Q8_0", "fred_Pine_Pine-Q8_0", "Beech", "deep/er/Rowan", "Maple"])
    for line in listed.values():
        assert line.split() == ["llama", "3M", mib([small_path]), "MiB", "Q8_0", "yes"], line
    for name in ("library/oak", "registry.ollama.ai/library/fir:1b", "registry.ollama.ai/bob/elm:2b", "hf.co/carol/ash:q8"):
        assert home.finds(name), name  # as pull takes them


def test_caches_below_a_folder_of_ones_own_keep_their_names(home, small_path):
    """As in the container, whose volume holds all of them."""
    home.environment |= {"COPPICE_MODELS": f"{home.folder}/all", "HF_HUB_CACHE": f"{home.folder}/all/huggingface"}
    home.file("all/Maple.gguf", small_path)
    folder = home.hugging_face("alice/Wood-GGUF", "Wood-Q8_0.gguf", small_path, "0" * 40)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("0" * 40)
    (home.folder / ".cache/huggingface/hub").rename(home.folder / "all/huggingface")
    home.file("all/huggingface/local/Lime.gguf", small_path)  # none of the cache's
    assert sorted(home.models()) == ["Maple", "alice/Wood-GGUF/Wood-Q8_0", "huggingface/local/Lime"]
    for name in ("hf:alice/Wood-GGUF", "alice/wood-gguf", "wood"):
        assert home.finds(name), name


def test_what_pull_takes_is_served(home, small_path):
    commits = {"main": "0" * 40, "v1": "1" * 40}
    for revision, commit in commits.items():
        folder = home.hugging_face("alice/Wood-GGUF", "Wood-Q8_0.gguf" if revision == "main" else "Old-Q8_0.gguf", small_path, commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
    repo = "alice/Wood-GGUF"
    for name in (f"hf:{repo}", f"hf://{repo}:Q8_0", f"hf:{repo}@v1", f"hf:{repo}@{commits['v1']}/Old-Q8_0.gguf", f"https://huggingface.co/{repo}",
                 f"https://huggingface.co/{repo}/blob/main/Wood-Q8_0.gguf"):
        assert home.finds(name), name
    (folder / "snapshots" / commits["main"] / "Broken-Q4_0.gguf").symlink_to("nowhere")
    # A hub's name means that model, and nothing that is called nearly so.
    for name in (f"hf:{repo}@v2", "hf:alice/Steel-GGUF", "hf:alice/Wood", "hf:ali/Wood-GGUF", f"hf:{repo}:Q8", f"hf:{repo}/Wood-Q8", f"hf:{repo}/Broken-Q4_0.gguf",
                 f"hf:{repo}:Q4_0"):
        home.refused(name, f"'{name}' is not on this machine; 'coppice pull {name}' fetches it.")
    for name in ("hf:", "hf:*", "hf:alice", "hf:alice/../x"):
        home.refused(name, f"'{name}' is not hf:OWNER/REPO/FILE")


def test_hubs_models_of_other_programs_are_served(home, small_path):
    home.file(".lmstudio/models/dora/Yew-GGUF/Yew-BF16.gguf", small_path)
    for name in ("hf:dora/Yew-GGUF", "hf:Dora/yew-gguf:bf16", "hf:dora/Yew-GGUF/Yew-BF16.gguf", "dora/Yew-GGUF:BF16"):
        assert home.finds(name), name
    for name in ("hf:dora/Yew-GGUF:F16", "hf:dora/Yew-GGUF@v1", "hf:dora/Yew-GGUF/Yew.gguf", "dora/Yew-GGUF:F16"):
        assert not home.finds(name), name


def test_variables_and_settings_say_where_the_caches_are(home, small_path):
    home.hugging_face("alice/Wood-GGUF", "Wood.gguf", small_path)
    (home.folder / ".cache/huggingface").rename(home.folder / "elsewhere")
    assert home.models() == {}
    home.environment["HF_HOME"] = str(home.folder / "elsewhere")
    assert list(home.models()) == ["alice/Wood-GGUF/Wood"]
    home.file("studio/models/dora/Yew/Yew.gguf", small_path)
    home.file("disk/emil/Lime/Lime.gguf", small_path)
    (home.folder / ".lmstudio-home-pointer").write_text(f"{home.folder}/studio\n")
    (home.folder / "studio/settings.json").write_text(json.dumps({"downloadsFolder": f"{home.folder}/disk"}))
    assert set(home.models()) == {"alice/Wood-GGUF/Wood", "dora/Yew/Yew", "emil/Lime/Lime"}
    (home.folder / ".lmstudio-home-pointer").unlink()
    home.ollama("oak", "latest", small_path)
    (home.folder / ".ollama/models").rename(home.folder / "blobs-here")
    home.environment["OLLAMA_MODELS"] = str(home.folder / "blobs-here")
    assert set(home.models()) == {"alice/Wood-GGUF/Wood", "oak:latest"}


def test_whoever_names_no_model_is_told_which_there_are(home, small, small_path):
    said = home.coppice("serve")
    assert said.returncode == 2 and said.stderr.startswith("Which model? No model lies in"), said.stderr
    assert "coppice pull" in said.stderr
    demo = home.coppice("demo")
    assert demo.returncode == 2 and demo.stderr == said.stderr.replace("coppice serve --help", "coppice demo --help")
    home.ollama("oak", "1b", small_path)
    home.file(".cache/coppice/Beech.gguf", small_path)
    home.file(".cache/coppice/broken.gguf", small.split(home.folder, "part", 3)[1])
    for arguments, status in ((["serve"], 2), (["serve", "--model", "elm"], 1), (["chat", "1"], 1)):
        done = home.coppice(*arguments)
        assert done.returncode == status
        lines = done.stderr.splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ")] == ["Beech", "oak:1b"], done.stderr
        assert "1 more cannot be served" in done.stderr and "coppice serve Beech" in done.stderr
    for i in range(25):
        home.file(f".cache/coppice/tree-{i:02}.gguf", small_path)
    lines = [line for line in home.coppice("serve").stderr.splitlines() if line.startswith("  ")]
    assert len(lines) == 21 and lines[-1].startswith("  and 7 more"), lines


def test_names(home, small_path):
    """Whole names, repositories, files, capitals, endings, a format behind a colon, and a part that fits one only."""
    home.hugging_face("alice/Wood-GGUF", "Wood-Q8_0.gguf", small_path)
    other = home.folder / "other"
    other.write_bytes(small_path.read_bytes())
    home.hugging_face("alice/Wood-GGUF", "Wood-Q4_K_M.gguf", other)
    home.ollama("oak", "latest", small_path)
    more = home.folder / "more"
    more.write_bytes(small_path.read_bytes())
    home.ollama("oak", "7b", more)
    for name in ("alice/Wood-GGUF/Wood-Q8_0", "wood-q8_0.GGUF", "alice/wood-gguf:q8_0", "Wood-GGUF:Q4_K_M", "oak", "oak:7b", "q4_k"):
        assert home.finds(name), name
    said = home.refused("alice/Wood-GGUF", "'alice/Wood-GGUF' may be one of 2 models; say which:")
    assert said.splitlines()[1:] == ["  alice/Wood-GGUF/Wood-Q4_K_M", "  alice/Wood-GGUF/Wood-Q8_0"]
    home.refused("birch", "no file, folder or local model 'birch'")


def test_one_file_in_two_places_is_one_model(home, small_path):
    home.file("here/Wood.gguf", small_path)
    (home.folder / ".cache/llama.cpp").mkdir(parents=True)
    (home.folder / ".cache/llama.cpp/Wood.gguf").symlink_to(home.folder / "here/Wood.gguf")
    home.environment["COPPICE_MODELS"] = f"{home.folder}/here"
    assert home.finds("wood")


def test_the_snapshot_that_main_names_counts(home, small, small_path):
    broken = home.folder / "broken"
    broken.write_text("<html>")
    for snapshot, path in (("aaaa", broken), ("bbbb", small_path), ("cccc", broken)):
        folder = home.hugging_face("alice/Wood", "Wood.gguf", path, snapshot)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("bbbb")
    assert home.models()["alice/Wood/Wood"].endswith("yes")


def test_a_folder(home, small, small_path):
    folder = home.file("models/Wood-Q8_0.gguf", small_path).parent
    home.file("models/mmproj-Wood-F16.gguf", small_path)
    assert home.finds(folder)
    other = home.folder / "other"
    other.write_bytes(small_path.read_bytes())
    home.file("models/more/Yew.gguf", other)
    home.refused(folder, "may be one of 2 models", f"{folder}/Wood-Q8_0.gguf", f"{folder}/more/Yew.gguf")
    assert set(home.models(folder)) == {"Wood-Q8_0", "mmproj-Wood-F16", "more/Yew"}


def test_a_file_is_described(home, small_path):
    path = home.file("models/Wood-Q8_0.gguf", small_path)
    done = home.coppice("models", str(path))
    assert done.returncode == 0 and str(path) in done.stdout, done.stderr
    assert home.models(path)["Wood-Q8_0"].endswith("yes")
    assert re.search(r"It has \d+ layers, and was trained for texts of \d+ tokens\.", done.stdout), done.stdout
    assert "It has a chat template" in done.stdout
    held = re.search(r"A token takes (\d+) bytes of the KV pool .* 1 GiB holds about (\d+)\.", done.stdout)
    assert int(held[2]) == 2**30 // int(held[1])
    note = home.folder / "note.txt"
    note.write_text("no model")
    assert "no: is not a GGUF file" in home.models(note)["note"]
    gone = home.coppice("models", str(home.folder / "gone.gguf"))
    assert gone.returncode == 1 and "There is no file or folder" in gone.stderr


def test_files_write_no_control_characters(home, small):
    other = small.changed()
    other.set("general.architecture", "wood\x1b]0;mine\x07")
    home.environment["COPPICE_MODELS"] = str(home.folder / "models")
    (home.folder / "models").mkdir()
    other.write(home.folder / "models/oak\n\x1b[2J.gguf")
    done = home.coppice("models")
    assert done.returncode == 0 and not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout), done.stdout
    assert "oak\\n\\x1b[2J" in done.stdout and "the family 'wood\\x1b]0;mine\\x07' is not known" in done.stdout
    for name in ("elm\x1b[3m-a", "elm\x1b[3m-b"):
        small.write(home.folder / f"models/{name}.gguf")
    for wanted, said in (("elm", "may be one of 2 models"), ("yew", "On this machine are")):
        done = home.coppice("serve", wanted)
        assert said in done.stderr and "elm\\x1b[3m-b" in done.stderr and not re.search(r"[\x00-\x09\x0b-\x1f]", done.stderr), done.stderr


def test_a_split_model_is_one_model(home, small):
    folder = home.folder / ".lmstudio/models/dora/Yew"
    folder.mkdir(parents=True)
    parts = small.split(folder, "Yew-Q8_0", 3)
    listed = home.models()
    assert list(listed) == ["dora/Yew/Yew-Q8_0"]
    assert listed["dora/Yew/Yew-Q8_0"].split()[2:4] == [mib(parts), "MiB"]
    assert home.finds("yew")
    Path(parts[1]).unlink()
    assert "no: part 2 of 3 of the model is missing" in home.models()["dora/Yew/Yew-Q8_0"]


def test_why_a_model_cannot_be_served(home, small, small_path):
    folder = home.folder / "models"
    folder.mkdir()
    home.environment["COPPICE_MODELS"] = str(folder)
    for family in ("mamba", "clip"):
        other = small.changed()
        other.set("general.architecture", family)
        other.write(folder / f"{family}.gguf")
    (folder / "page.gguf").write_text("<html><body>Please sign in.</body></html>")
    (folder / "cut.gguf").write_bytes(small_path.read_bytes()[:-1000])
    (folder / "gone.gguf").symlink_to(folder / "nothing")
    other = small.changed()
    del other.tensors["blk.1.ffn_up.weight"]
    other.write(folder / "lacking.gguf")
    with (folder / "huge.gguf").open("wb") as file:  # a hole behind the tensors takes no room
        file.write(small_path.read_bytes())
        file.truncate(1 << 43)
    listed = home.models()
    for name, words in {"mamba": "no: the family 'mamba' is not known", "clip": "no: a projector for images",
                        "page": "no: is not a GGUF file", "cut": "truncated", "gone": "No such file",
                        "lacking": "no: lacks the tensor blk.1.ffn_up.weight", "huge": "no: of the memory"}.items():
        assert words in listed[name], listed[name]


def test_ollamas_name_is_what_answers_say(tmp_path, small_path, monkeypatch):
    home = Home(tmp_path)
    home.ollama("oak", "1b", small_path)
    for name in WHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Coppice("--kv-bytes", "16MiB", "--threads", "1", model="oak") as server:
        assert server.get("/v1/models")[1]["data"][0]["id"] == "oak:1b"
        assert server.post("/v1/completions", {"model": "oak:1b", "prompt": "a", "max_tokens": 2})["model"] == "oak:1b"


@pytest.mark.parametrize("arguments,wrong", [((), "Which command?"), (("serv", "x.gguf"), "no command 'serv'")])
def test_a_command_that_is_not_there(home, arguments, wrong):
    done = home.coppice(*arguments)
    assert done.returncode == 2 and wrong in done.stderr and "serve, chat, models" in done.stderr, done.stderr


def test_help_shows_an_example_for_each_group_and_plain_units(home):
    said = home.coppice("serve", "--help").stdout
    for group in ("Model", "Cache and scheduling", "Network", "For requests that don't say"):
        assert f"\n{group}: for example\n    coppice serve " in said
    for option in ("--kv-bytes SIZE ", "--max-body SIZE (16MiB)", "--isolate none|keys (none)", "--drain-seconds SECONDS (25)",
                   "--max-model-len N\n"):
        assert option in said, option
    assert "1000b" not in said and "Env:" not in said and "--help TEXT" not in said


def test_what_is_wrong_is_said_before_listening(home, small_path):
    assert home.finds(small_path)  # the port is in use
    home.refused(home.folder / "no.gguf", "There is no file or folder")
    whole = small_path.read_bytes()
    for name, data in {"broken": b"GGUF" + bytes(100), "empty": b"", "short": b"GGUF", "cut": whole[:-1000], "header": whole[:3000]}.items():
        (home.folder / f"{name}.gguf").write_bytes(data)
        said = home.refused(home.folder / f"{name}.gguf", f"{name}.gguf")
        assert said.startswith("coppice: ") and said.count("\n") == 1, said


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    write_model("gemma3", folder)
    return folder


@pytest.mark.parametrize("model, others, found", [
    ("Wood-4b-it-Q4_K_M.gguf", ["mmproj-Wood-4b-it-f16.gguf"], "mmproj-Wood-4b-it-f16.gguf"),
    ("Wood-4b-it-Q4_K_M.gguf", ["Wood-4b-it-Q8_0.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
    ("Wood-4b-it-Q4_K_M.gguf", ["Wood-4b-it.mmproj-Q8_0.gguf", "mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
    ("Wood-4b-it-UD-Q4_K_XL.gguf", ["mmproj-Wood-4b-it-Q8_0.gguf", "mmproj-Wood-4b-it-BF16.gguf"], "mmproj-Wood-4b-it-BF16.gguf"),
    ("user_repo_Wood-Q8_0.gguf", ["user_repo_mmproj-Wood-Q8_0.gguf", "user_repo_Yew-Q8_0.gguf"], "user_repo_mmproj-Wood-Q8_0.gguf"),
    ("Wood-Q8_0.gguf", ["Yew-Q8_0.gguf", "mmproj-F16.gguf"], None),  # whose is it?
    ("Wood-Q8_0.gguf", ["mmproj-Yew-F16.gguf"], None),
    ("Wood-Q8_0.gguf", [], None),
])
def test_a_projector_is_found_by_its_name(home, vision, model, others, found):
    path = home.file(f"models/{model}", vision / "model.gguf")
    for other in others:
        home.file(f"models/{other}", vision / ("mmproj.gguf" if "mmproj" in other else "model.gguf"))
    said = home.refused(path, "in use")
    assert f"images: projector {path.parent / found}," in said if found else "images" not in said


def test_caches_have_projectors_too(home, vision):
    home.hugging_face("alice/Wood-GGUF", "Wood-Q8_0.gguf", vision / "model.gguf")
    home.hugging_face("alice/Wood-GGUF", "mmproj-model-f16.gguf", vision / "mmproj.gguf")
    assert "mmproj-model-f16.gguf, up to" in home.refused("alice/wood-gguf", "in use")
    home.ollama("oak", "4b", vision / "model.gguf", projector=vision / "mmproj.gguf")
    assert re.search("images: projector .*blobs/sha256-", home.refused("oak:4b", "in use"))


def test_a_chat_has_the_projector_that_the_models_name_says(home, vision):
    home.ollama("oak", "4b", vision / "model.gguf", projector=vision / "mmproj.gguf")
    chat = subprocess.Popen([binary(), "chat", "oak:4b", "--kv-bytes", "16MiB"], env=home.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)
    try:
        page = next(found for line in chat.stderr if (found := re.search(r"its page: (http://\S+/)", line)))
        with urllib.request.urlopen(page.group(1) + "props", timeout=60) as reply:
            assert json.load(reply)["modalities"]["vision"]
    finally:
        chat.communicate("", timeout=60)


def test_what_may_not_be_read_is_said_to_be_there():
    """To root everything is open, and pytest's folders are closed to others."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")
    with tempfile.TemporaryDirectory(prefix="coppice-others-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(binary(), folder / "coppice")
        closed = folder / "closed"
        (closed / "deeper").mkdir(parents=True)
        shutil.copy(model_path(), closed / "oak.gguf")
        closed.chmod(0o700)

        def said(*arguments, **variables):
            done = subprocess.run([folder / "coppice", *arguments], capture_output=True, text=True, timeout=60, cwd="/", env={"HOME": "/"} | variables,
                                  preexec_fn=lambda: os.setresuid(54321, 54321, 54321))
            return done.returncode, done.stdout + done.stderr

        for arguments in (["serve", closed / "oak.gguf"], ["serve", closed], ["models", closed], ["models", closed / "deeper"]):
            assert said(*arguments) == (1, f"coppice: {arguments[1]} cannot be read: Permission denied.\n")
        status, text = said("serve", folder / "elm.gguf")
        assert status == 1 and "There is no file or folder" in text
        status, text = said("models", COPPICE_MODELS=str(closed))
        assert status == 0, "one of many places that can't be read is left out: " + text
