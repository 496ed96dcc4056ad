"""Load generators, a minute each (--load-seconds) with four streams of chats: no request fails, and what they counted is what the server counted."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

STREAMS, OUTPUT_TOKENS = 4, 16
TIMEOUT_S = 600  # the load, and what loads and ends around it


def program(name):
    """Each has an environment of its own, beside this one."""
    return str(pathlib.Path(sys.prefix).with_name(f"clients-{name}") / "bin" / name)


@pytest.fixture
def seconds(request):
    return request.config.getoption("--load-seconds")


def run(command, folder, **environment):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={"HOME": str(folder), "PATH": os.environ["PATH"], **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture
def counted(server):
    """What the server counted since the test began."""
    before = server.idle_stats()

    def since():
        after = server.idle_stats()
        return {name: after[group][name] - before[group][name] for group in ("requests", "tokens") for name in after[group]}

    return since


def test_aiperf(server, tokenizer, tmp_path, counted, seconds):
    run([program("aiperf"), "profile", "--model", "smol", "--url", server.url, "--endpoint-type", "chat", "--streaming",
         "--tokenizer", str(tokenizer), "--use-server-token-count", "--concurrency", str(STREAMS), "--benchmark-duration", str(seconds),
         "--benchmark-grace-period", "60", "--synthetic-input-tokens-mean", "100", "--output-tokens-mean", str(OUTPUT_TOKENS),
         "--extra-inputs", "ignore_eos:true", "--ui", "none", "--output-artifact-dir", "out"], tmp_path)
    told = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert told["is_complete"] and told["error_summary"] == [] and told["request_error_rate"]["avg"] == 0
    requests, server_side = told["request_count"]["avg"], counted()
    assert requests == server_side["finished"] >= seconds / 10
    assert server_side["failed"] == server_side["refused"] == server_side["cancelled"] == 0
    assert told["total_usage_completion_tokens"]["avg"] == server_side["generated"] == OUTPUT_TOKENS * requests
    assert told["total_usage_prompt_tokens"]["avg"] == server_side["prompt"]
    assert told["total_usage_prompt_cache_read_tokens"]["avg"] == server_side["cached"] > 0, "the system prompt is shared"


def test_guidellm(server, tokenizer, tmp_path, counted, seconds):
    run([program("guidellm"), "run", "--backend", f"kind=openai_http,target={server.url},model=smol",
         "--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", f"kind=max_duration,seconds={seconds}",
         "--tokenizer", f"kind=hf_auto,model={tokenizer}", "--data", f"kind=synthetic_text,prompt_tokens=100,output_tokens={OUTPUT_TOKENS}",
         "--output", "kind=json,path=out.json", "--disable-progress"], tmp_path, HF_HUB_OFFLINE="1")
    benchmark, = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    totals, tokens, server_side = benchmark["metrics"]["request_totals"], benchmark["metrics"]["output_token_count"], counted()
    assert totals["errored"] == 0 and totals["successful"] >= seconds / 10
    assert tokens["successful"]["total_sum"] == OUTPUT_TOKENS * totals["successful"]
    # When the time is over it hangs up on what still runs.
    assert server_side["failed"] == server_side["refused"] == 0
    assert server_side["finished"] >= totals["successful"] and server_side["cancelled"] <= STREAMS
    assert server_side["finished"] + server_side["cancelled"] == totals["successful"] + totals["incomplete"]
