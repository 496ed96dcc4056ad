"""Real coding agents do a task of six turns: each call reaches their shell, nothing is refused, and from the second turn on nine tenths of
each prompt come from the cache."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coppice_process import Coppice  # noqa: E402
from proxy import Proxy  # noqa: E402

COMMANDS = [f"echo step-$(({i} * 111))" for i in range(1, 7)]
RESULTS = [f"step-{i * 111}" for i in range(1, 7)]


def program(package, *path):
    file = pathlib.Path(importlib.util.find_spec(package).origin).parent.joinpath(*path)
    file.chmod(0o755)
    return str(file)


def claude(url, home):
    environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "ANTHROPIC_MODEL": "smol", "ANTHROPIC_SMALL_FAST_MODEL": "smol",
                   "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512"}
    return [program("claude_agent_sdk", "_bundled", "claude"), "-p", "Do the six steps.", "--system-prompt", "Be brief.", "--tools", "Read,Bash",
            "--allowedTools", "Bash(echo:*)", "--max-turns", "12"], environment


def codex(url, home):
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(f"""
model = "smol"
model_provider = "coppice"
model_context_window = 8192
web_search = "disabled"
[model_providers.coppice]
name = "coppice"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "COPPICE_KEY"
request_max_retries = 0
stream_max_retries = 0
[features]
multi_agent = false
""")
    return [program("codex_cli_bin", "bin", "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "Do the six steps."], {"COPPICE_KEY": "none"}


@pytest.fixture(scope="module")
def server():
    with Coppice("--kv-bytes", "512MiB", "--alias", "smol", "--drain-seconds", "1") as coppice:
        yield coppice


@pytest.mark.parametrize("agent", [claude, codex])
def test_an_agent_does_its_task(server, agent, tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(), work.mkdir()
    proxy = Proxy(server.url, COMMANDS)
    command, environment = agent(proxy.url, home)
    environment |= {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    proxy.close()
    told = "\n".join(f"turn {i}: {turn.prompt_tokens} tokens, {turn.cached_tokens} cached" for i, turn in enumerate(proxy.turns, 1))
    print(f"{agent.__name__}\n{told}")
    assert not proxy.faults, proxy.faults
    assert done.returncode == 0 and "all done" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(proxy.turns) == len(COMMANDS) + 1
    for result in RESULTS:
        assert result in proxy.last_results
    for turn in proxy.turns[1:]:
        assert turn.cached_tokens >= 0.9 * turn.prompt_tokens, told
