"""What a package has besides the program: the man page and the shells' completions, made from the options, and systemd's unit."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from coppice_process import free_port

REPO = Path(__file__).resolve().parents[2]
BINARY = os.environ["COPPICE_BINARY"]
COMMANDS = ["serve", "chat", "models", "demo", "bench", "generate"]


def run(*command, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def names_in_help(command: str) -> set[str]:
    """Of all options, the further names included: "  -c,--ctx,--ctx-size N (0)  ..."."""
    lines = re.findall(r"^  (-\S+)", run(BINARY, command, "--help"), re.M)
    return {name for line in lines for name in line.split(",")}


def test_man_page(tmp_path):
    page = tmp_path / "coppice.1"
    page.write_text(run(BINARY, "generate", "man"))
    # It has no date: it says which version it describes.
    complaints = [line for line in subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True,
                                                  check=False).stdout.splitlines() if "missing date" not in line]
    assert complaints == []
    shown = run("mandoc", "-T", "utf8", "-O", "width=1000", page)
    shown = re.sub(r".\x08", "", shown)  # bold is typed twice
    for command in COMMANDS:
        text = shown.partition(f"\ncoppice {command}\n")[2]
        text = re.split(r"\n(?=\S)", text)[0]  # up to the next heading
        assert names_in_help(command) <= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)), command
    assert "--kv-format f16|int8|turbo4" in shown
    assert "16MiB" in shown and "LLAMA_ARG_CTX_SIZE" in shown


def bash_proposals(script: str, *words: str) -> list[str]:
    """compopt works only while Bash itself completes: here it is left out."""
    code = f'compopt() {{ :; }}; {script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _coppice; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return run("bash", "-c", code, "bash", *words, cwd=REPO).split()


def zsh_proposals(script: str, tmp_path: Path, *words: str) -> list[str]:
    """What an interactive zsh lists, in a terminal of its own, when Tab is pressed."""
    (tmp_path / "_coppice").write_text(script)
    code = f"""
zmodload zsh/zpty
zpty -b shell zsh -f -i
zpty -w shell 'PS1= ; fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump; stty -echo cols 200'
zpty -w shell 'zstyle ":completion:*" list-separator "--"; LISTMAX=1000; setopt noalwayslastprompt nobeep; cd {REPO}; print READY'
repeat 200 {{ zpty -r -t shell out && seen+=$out; [[ $seen == *$'\\n'READY* ]] && break; sleep 0.05 }}
zpty -n -w shell $'{" ".join(words)}\\t\\t'
seen=
repeat 60 {{ zpty -r -t shell out && seen+=$out; sleep 0.05 }}
print -r -- $seen
"""
    return re.split(r"[\s\x07]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", run("zsh", "-f", "-c", code)))


def fish_proposals(script: str, tmp_path: Path, *words: str) -> list[str]:
    (tmp_path / "coppice.fish").write_text(script)
    line = " ".join(words)
    listed = run("fish", "--no-config", "-c", f"source {tmp_path}/coppice.fish; complete -C '{line}'", cwd=REPO)
    return [each.partition("\t")[0] for each in listed.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    script = run(BINARY, "generate", shell)
    if shell == "bash":
        propose = lambda *words: bash_proposals(script, "coppice", *words)
    else:
        propose = lambda *words: {"zsh": zsh_proposals, "fish": fish_proposals}[shell](script, tmp_path, "coppice", *words)
    assert set(COMMANDS) <= set(propose(""))
    assert {"f16", "int8", "turbo4"} <= set(propose("serve", "--kv-format", ""))
    assert {"--pin-share", "--pin-share-of-key"} <= set(propose("serve", "--pin"))
    assert {"CMakeLists.txt", "CMakePresets.json"} <= set(propose("serve", "CM"))
    assert {"man", "bash", "zsh", "fish"} <= set(propose("generate", ""))
    assert not {"--pin-share", "f16"} & set(propose("models", "--"))


def test_unit_is_right_and_tight(tmp_path):
    unit = tmp_path / "coppice.service"
    text = (REPO / "packaging" / "coppice.service").read_text()
    assert "ExecStart=/usr/bin/coppice " in text
    unit.write_text(text.replace("/usr/bin/coppice", BINARY))  # it is not installed here
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "coppice" in line]) == (0, [])
    # 10 is wide open; systemd calls below 2 "OK", its best but one.
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)


@pytest.mark.parametrize("name", ["gpu.conf", "cache.conf"])
def test_examples_fit_the_unit(name, tmp_path):
    """systemd knows each setting, and each option in them is one of serve."""
    text = (REPO / "packaging" / "examples" / name).read_text()
    unit = tmp_path / "coppice.service"
    unit.write_text((REPO / "packaging" / "coppice.service").read_text().replace("/usr/bin/coppice", BINARY))
    added = tmp_path / "coppice.service.d"
    added.mkdir()
    (added / name).write_text(text.replace("/usr/bin/coppice", BINARY))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "coppice" in line]) == (0, [])
    assert set(re.findall(r"--[a-z-]+", re.sub(r"^#.*$", "", text, flags=re.M))) <= names_in_help("serve")


def test_kubernetes_covers_the_drain_and_probes_what_exists():
    """Its probes ask paths that docs/api.md has, and its arguments are options of serve."""
    text = (REPO / "packaging" / "examples" / "kubernetes.yaml").read_text()
    seconds = lambda pattern: int(re.search(pattern, text).group(1))
    assert seconds(r"terminationGracePeriodSeconds: (\d+)") > seconds(r'--drain-seconds, "(\d+)"') + seconds(r"sleep: {seconds: (\d+)")
    probes = dict(re.findall(r"(\w+)Probe: {httpGet: {path: (/\w+)", text))
    assert probes == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}
    api = (REPO / "docs" / "api.md").read_text()
    assert all(f"`GET {path}`" in api for path in probes.values())
    assert set(re.findall(r"(?<=[\[ ])--[a-z-]+", re.search(r"args: \[(.*)\]", text).group(1))) <= names_in_help("serve")


def test_settings_name_options_that_exist():
    """Each variable of coppice.env is one that serve reads, and each option is one that it takes."""
    text = (REPO / "packaging" / "coppice.env").read_text()
    page = run(BINARY, "generate", "man").replace("\\-", "-")
    for name in re.findall(r"^#?([A-Z_]+)=", text, re.M):
        assert name in page or name in ("COPPICE_MODELS", "COPPICE_OPTIONS"), name
    assert set(re.findall(r"--[a-z-]+", text)) <= names_in_help("serve")


def swappers_models() -> dict[str, dict[str, str]]:
    """Of llama-swap.yaml: model -> its fields."""
    text = re.sub(r"#.*", "", (REPO / "packaging" / "examples" / "llama-swap.yaml").read_text())
    blocks = re.findall(r"^  (\w+):\n((?:    .*\n)+)", text.partition("\nmodels:\n")[2], re.M)
    return {name: dict(re.findall(r"^    (\w+): (.*?) *$", block, re.M)) for name, block in blocks}


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_swapper_can_run_one_model_after_another(tmp_path):
    """As llama-swap does it by its documentation: a command with a port, a wait for its check, requests with the model's name, SIGTERM and a
    time to end in; then the next model, and the first one again."""
    text = (REPO / "packaging" / "examples" / "llama-swap.yaml").read_text()
    unload = int(re.search(r"^unloadTimeout: (\d+)", text, re.M).group(1))
    assert unload > float(re.search(r"--drain-seconds \S+ \((\d+)\)", run(BINARY, "serve", "--help")).group(1))
    models = swappers_models()
    assert len(models) == 2
    for name in [*models, next(iter(models))]:
        fields = models[name]
        command = re.sub(r"\S*\.gguf", os.environ["COPPICE_MODEL"], fields["cmd"]).replace("/var/cache/coppice", str(tmp_path))
        replace = lambda value, port=str(free_port()), name=name: value.replace("${PORT}", port).replace("${MODEL_ID}", name)
        process = subprocess.Popen([BINARY, *replace(command).split()[1:], "--kv-bytes", "64MiB"], stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 180
            while status(replace(fields["proxy"] + fields["checkEndpoint"])) != 200:
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.1)
            body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
            with urllib.request.urlopen(replace(fields["proxy"]) + "/v1/chat/completions", body, timeout=180) as reply:
                assert json.load(reply)["model"] == name
            process.terminate()
            assert process.wait(unload) == 0
        finally:
            process.kill()
            process.wait()
