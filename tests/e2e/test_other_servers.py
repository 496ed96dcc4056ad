"""What llama-server's and vLLM's clients send, with the real model: nothing of it is ignored."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from coppice_process import Coppice, binary, model_path

QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


def complete(client, salt, prompt="The sea is", **extra):
    body = {"model": "smol", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    body |= {name: extra.pop(name) for name in ("max_tokens", "logprobs") if name in extra}
    return client.completions.create(**body, extra_body={"cache_salt": salt} | extra)


def tokens_of(server, text):
    return server.post("/tokenize", {"content": text})["tokens"]


def test_allowed_tokens(client, server, salt):
    allowed = tokens_of(server, " blue green")
    text = complete(client, salt, allowed_token_ids=allowed, ignore_eos=True).choices[0].text
    assert set(text.split()) <= {"blue", "green"} and text.split()


def test_bad_words_and_biases(client, server, salt):
    plain = complete(client, salt).choices[0].text
    word = plain.split()[0]
    assert word not in complete(client, salt, bad_words=[word]).choices[0].text.split()[:1]
    barred = complete(client, salt, logit_bias=[[" " + word, False]]).choices[0].text
    assert not barred.startswith(" " + word)
    [first] = tokens_of(server, " " + word)[:1]
    assert not complete(client, salt, logit_bias={str(first): -100}).choices[0].text.startswith(" " + word)


def test_stops_and_the_first_tokens(client, server, salt):
    plain = complete(client, salt, max_tokens=12, ignore_eos=True)
    tokens = tokens_of(server, plain.choices[0].text)
    stopped = complete(client, salt, stop_token_ids=[tokens[3]], ignore_eos=True)
    assert stopped.choices[0].finish_reason == "stop"
    assert plain.choices[0].text.startswith(stopped.choices[0].text)
    assert stopped.usage.completion_tokens <= 4
    later = complete(client, salt, stop_token_ids=[tokens[3]], min_tokens=8, ignore_eos=True)
    assert later.usage.completion_tokens >= 8


def test_the_last_message_goes_on(client, server, salt):
    messages = [*QUESTION, {"role": "assistant", "content": "The sea is as blue as"}]
    prompt = server.post("/apply-template", {"messages": messages, "continue_final_message": True})["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nThe sea is as blue as")
    answer = client.chat.completions.create(model="smol", messages=messages, max_tokens=8, temperature=0,
                                            extra_body={"cache_salt": salt, "continue_final_message": True})
    # In a namespace of its own, so that both prefill the same rows: quantised weights round by batch shape.
    text = complete(client, salt + "b", prompt=prompt, max_tokens=8).choices[0].text
    assert answer.choices[0].message.content == text


def test_truncated_prompts(client, server, salt):
    tokens = tokens_of(server, "one two three four five six seven")
    whole = complete(client, salt, prompt=tokens[-4:])
    cut = complete(client, salt, prompt=tokens, truncate_prompt_tokens=4)
    assert cut.usage.prompt_tokens == 4 and cut.choices[0].text == whole.choices[0].text


def test_a_request_may_do_without_the_cache(client, server, salt):
    prompt = "A long text about the sea, the sun and the wind. " * 10
    cached = [complete(client, salt, prompt=prompt, cache_prompt=wanted).usage.prompt_tokens_details.cached_tokens
              for wanted in (False, False, True)]
    assert cached[:2] == [0, 0]
    assert cached[2] > 100, "what the others computed is there"


def test_llama_servers_completion(client, server, salt):
    asked = {"prompt": "The sea is", "n_predict": 8, "temperature": 0, "cache_salt": salt, "n_probs": 2, "return_tokens": True}
    whole = server.post("/completion", asked)
    assert whole["tokens_predicted"] == len(whole["tokens"]) == 8 and whole["stop_type"] == "limit"
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["tokens_evaluated"]
    assert whole["timings"]["predicted_ms"] > 0 and whole["timings"]["prompt_ms"] > 0
    assert len(whole["completion_probabilities"]) == 8
    assert server.post("/detokenize", {"tokens": whole["tokens"]})["content"] == whole["content"]
    request = urllib.request.Request(server.url + "/completion", json.dumps(asked | {"stream": True}).encode())
    with urllib.request.urlopen(request) as reply:
        events = [json.loads(line[6:]) for line in reply if line.startswith(b"data: ")]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    assert events[-1]["stop"] and events[-1]["timings"]["predicted_n"] == 8
    several = server.post("/completion", asked | {"prompt": ["The sea is", tokens_of(server, "The sky is")]})
    assert [answer["tokens_evaluated"] for answer in several] == [3, 3]


def test_paths_without_a_version(server, salt):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        assert client.models.list().data[0].id == "smol"
        answer = client.chat.completions.create(model="smol", messages=QUESTION, max_tokens=2)
        assert answer.system_fingerprint.startswith("b")
    props = server.get("/props")[1]
    assert props["default_generation_settings"]["n_ctx"] == server.stats()["context_length"]
    assert "<|im_start|>" in props["chat_template"]


@pytest.mark.parametrize("fields", [{"mirostat": 2}, {"dry_multiplier": 0.8}, {"documents": [{"a": 1}]}])
def test_what_is_not_built_is_refused(client, fields):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smol", messages=QUESTION, max_tokens=1, extra_body=fields)
    assert caught.value.param == next(iter(fields)) and caught.value.code == "unsupported_parameter"


def test_the_context_error_is_known_to_gateways(client):
    with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 8192 tokens. However, "):
        client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "word " * 10000}])


def test_options_of_other_servers(salt):
    """vLLM's way, with llama-server's variables; an option goes before a variable."""
    variables = {"LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_API_KEY": "secret",
                 "LLAMA_ARG_N_GPU_LAYERS": "20"}
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with Coppice("--kv-bytes", "64MiB", "--max-model-len", "512", "--served-model-name", "first,second", "--seed", "7",
                     "--n-predict", "5", "--cors", "https://app.example", "--jinja") as server:
            log = server.log.read_text()
            assert "LLAMA_ARG_N_GPU_LAYERS is set, and has no effect here" in log and "LLAMA_ARG_CTX_SIZE is" not in log
            with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as client:
                assert [model.id for model in client.models.list()] == ["first", "second"]
                assert client.models.list().data[0].max_model_len == 512
                answers = [client.chat.completions.create(model="second", messages=QUESTION, temperature=1.5,
                                                          extra_body={"cache_prompt": False}) for _ in range(2)]
                assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
                assert answers[0].usage.completion_tokens <= 5
            question = urllib.request.Request(server.url + "/v1/chat/completions", method="OPTIONS", headers={
                "Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
            with urllib.request.urlopen(question) as reply:
                assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                server.post("/v1/completions", {"prompt": "a"})
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_vllms_variable_for_the_key(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with Coppice("--kv-bytes", "64MiB", "--threads", "1") as server:
        assert server.get("/v1/models")[0] == 401
    with Coppice("--kv-bytes", "64MiB", "--threads", "1", "--api-key", "another") as server:
        request = urllib.request.Request(server.url + "/v1/models", headers={"X-Api-Key": "secret"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request)


def test_the_page_can_be_left_out():
    """By llama-server's option; before, it was taken without effect."""
    with Coppice("--kv-bytes", "64MiB", "--no-webui") as server:
        for path in ("/", "/page/main.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(server.url + path)
        with urllib.request.urlopen(server.url + "/health") as reply:
            assert reply.status == 200


def test_the_model_may_be_the_first_argument():
    ended = subprocess.run([binary(), "serve", model_path() + ".not-there"], capture_output=True, text=True)
    assert ended.returncode != 0 and ".not-there" in ended.stderr


def refusal(*options, **variables):
    """What `serve` says of a file that isn't there, or before that of its options."""
    ended = subprocess.run([binary(), "serve", "/nowhere.gguf", *options], capture_output=True, text=True, env={**os.environ, **variables})
    return ended.returncode, ended.stderr


TAKEN = """-a name; --alias name; --served-model-name name; -c 512; --ctx-size 512; --max-model-len 512; -t 2; --threads -1; -np 4; -np=4;
--parallel 4; --parallel -1; --max-num-seqs 4; -b 256; --batch-size 256; --max-num-batched-tokens 256; --block-size 16; --host 127.0.0.1;
--port 8000; --api-key secret; --cors-origins *; --no-ui; --no-webui; --temp 0.5; --temperature 0.5; --top-k 40; --top-p 0.9; --min-p 0.1;
--repeat-penalty 1.1; --presence-penalty 1.5; --frequency-penalty -0.5; -s 1; --seed -1; -n 9; --predict 9; --n-predict -1; --sse-ping-interval 30; --sse-ping-interval -1; -rea off;
--reasoning auto; --reasoning-format deepseek; --reasoning-parser qwen3; --tool-call-parser hermes --reasoning-parser qwen3; --pooling mean; --reasoning-budget 0;
--reasoning-budget -1; --no-context-shift; --no-mmap; --no-warmup; --log-timestamps --log-prefix; --async-scheduling; --no-enable-log-requests;
--cors https://a.example,localhost; -v; --verbose; --kv-bytes 1.5GiB; --kv-bytes 2g; --kv-bytes 512mib; -c 512 --ctx 1024; --kv-bytes 0;
--chat-template-kwargs {}; --default-chat-template-kwargs {}; --jinja; --metrics; --slots; --no-slots; --prefill-assistant; --no-prefill-assistant; -cb; --cont-batching; -kvu; -fa on;
--flash-attn auto; --enable-prefix-caching; --enable-chunked-prefill; --enable-auto-tool-choice; --trust-remote-code; -tp 1 --pipeline-parallel-size 1;
--tensor-parallel-size 1; --ctx 0; --dtype auto; --enforce-eager; --disable-log-requests; --cache-prompt; --offline;
--ctx_size 512; --max_model_len=512; --no_warmup; --chat_template_kwargs {}; -fa; -fa --jinja; --flash_attn; -fa 1 --flash-attn enabled; -fa=auto; --reasoning true; -rea 1;
--reasoning disabled; --numa numactl; -pp 1 -dp 1; --served-model-name a b --jinja; --served-model-name a b; --device none; -dev none; --device CUDA0; -dev CUDA1;
--api-key --some_key; --alias -np; -m /nowhere.gguf; -m /another.gguf -m /nowhere.gguf;
-ngl 99; -ngl 999; -ngl all; -ngl auto; -ngl -1; -ngl=99; --n-gpu-layers 999; --gpu-layers all; --n_gpu_layers=99; --device cpu -ngl 99; -ngl 0; -ngl 0 --device none;
--device auto -ngl 0; --device cuda:0 -ngl 0 -ngl 99; -ctk f16 -ctv f16; --cache-type-k f16; --cache_type_v=f16; --kv-cache-dtype auto; -ctk f16 --kv-format f16;
--kv-format int8 -ngl 99"""


@pytest.mark.parametrize("option", [option.strip() for option in TAKEN.split(";")])
def test_options_that_mean_the_same_are_taken(option):
    status, said = refusal(*option.split())
    assert status == 1 and "/nowhere.gguf" in said, said


REFUSED = """-ngl 20: leave it out, or write --device cpu; --n-gpu-layers 98: a GPU gets all layers; -ngl many: --device cpu; -ngl: its value is missing;
-ngl 0 --device cuda: -ngl: 0 means --device cpu, and --device is cuda: give one of them; --kv-format int8 -ctk f16: and --kv-format is int8; -sm row: --device; -mg 0: --device; -ctk q8_0: write --kv-format int8;
-ctk f16 -ctv q8_0: write --kv-format int8; -ctk q4_0: --kv-format turbo4; -ctv bf16: --kv-format;
--cache-type-v=q8_0: --kv-format; --kv-cache-dtype fp8: --kv-format; -ub 512: --step-tokens; -tb 4: --threads; -cram 512: --kv-bytes;
--gpu-memory-utilization 0.9: --kv-bytes; -hf user/model: coppice pull; --model-url http://a/b: coppice models;
--no-cache-prompt: --share off; --no-enable-prefix-caching: --share off; --allowed-origins ["*"]: --cors; -to 600: --request-seconds;
--no-jinja: Jinja; --no-metrics: always; --verbosity 3: --log-level; --log-disable: --log-level; --ssl-cert-file a: proxy; --lora a: adapters;
--enable-lora: adapters; -md a: draft; --speculative-config {}: draft; --mmproj-url a: downloaded; --reranking: rank; --models-dir a: one model;
--context-shift: shifted; --slot-save-path a: cache; -tp 2: one device computes; -fa off: leave the option out; -fa 0: leave the option out; -fa disabled: write auto; --dtype half: write auto; --dtype bfloat16: --kv-format;
--reasoning-format none: a request's reasoning_format none; --reasoning_format deepseek-legacy: write deepseek; --pooling cls: write last or mean; --pooling rank: ranks; --pooling none: whole text;
--numa distribute: write interleave; --numa isolate: numactl --cpunodebind=0; --n_gpu_layers 9: --device; --n_gpu_layers=9: --device; --chat-template chatml: model's own; --chat-template {{x}}: --chat-template-file;
--limit-mm-per-prompt {}: --max-images; --task embed: request's path; --runner pooling: request's path; --enable-sleep-mode: --sleep-idle-seconds; --max-logprobs 20: up to 20;
--compilation-config 3: compiled; -O3: compiled; -O 3: compiled; --cpu-offload-gb 10: --device; -pp 2: one device computes; -dp 2: one device computes; --enable-log-requests: --request-log;
--host /tmp/x.sock: write 127.0.0.1; --host 127.0.0.1,::1: several addresses; --device CUDA0,CUDA1: is no device; -dev Vulkan0: is no device; -m /b.gguf: /b.gguf and the argument /nowhere.gguf are two models;
--served-model-name a b -c x: x is not 0; --alias a b: one argument too many; -nocb: --max-batch 1; --no-cont-batching: --max-batch 1; --props: leave it out: /props can always be read; --poll 50: sleep; --prio 2: nice; --swa-full: one pool; -fit off: --kv-bytes; --gpt-oss-20b-default: coppice pull; --ctx-checkpoints 8: one pool; --cach-prompt: did you mean --cache-prompt?; -zz: one letter; -sps 0.5: cache; --draft-max 8: draft; -q awq: file; --quantization awq: file; --n-cpu-moe 3: --device; --cache-reuse 256: leave it out: equal prefixes;
--grammar a: request; --repeat-last-n 64: penalties; --log-file a: standard error; --tokenizer a: GGUF; --generation-config vllm: --temp;
--kv-byte 1GiB: did you mean --kv-bytes?; --prot 8080: did you mean --port?; --threads-http 4: one thread; --kv-bytes 1XB: 1XB is no size;
--kv-bytes 1.5.5GB: is no size; --kv-bytes GiB: is no size; --kv-bytes 1kiloB: is no size; --kv-bytes 99999999TB: is no size; --kv-bytes -5: -5 is no size;
--port: its value is missing; one-more: one-more is one argument too many; --model b: --model; --max-connections 0: 0 not in range 1 to;
--chat-template-kwargs {x: {x is no JSON object; --chat-template-kwargs []: [] is no JSON object; --chat-template-kwargs {"tools":[]}: tools is not a variable; --mirostat 2: --mirostat; -tp 1 --pipeline-parallel-size 2: one device;
--reasoning-budget -2: -2; --mlock: leave it out: weights stay in memory; --check-tensors: leave it out: the file's structure is always checked;
--no-repack: leave it out: weights; --list-devices: no command lists devices; --ui-config {}: leave it out: the page; -ub 256: leave it out; -tb 8: leave it out;
--spec-draft-n-max 3: leave it out: there are no draft models; --samplers top_k: leave it out: samplers have a fixed order; --tools all: leave it out: the server runs no tools; --hf-token a: HF_TOKEN;
--load-mode mlock: leave it out; --media-path /a: --allow-media-from; --cpu-mask f: taskset; --keep 4: leave it out; --ctx 1: at least 2; --ctx much: much is not 0; -n 0: at least 1; --cors a.example: https://"""


@pytest.mark.parametrize("case", [case.strip() for case in REFUSED.split(";")])
def test_options_that_do_not_are_refused_and_the_error_helps(case):
    option, _, hint = case.partition(": ")
    status, said = refusal(*option.split())
    assert status == 2 and hint in said and "There is no file or folder" not in said, said
    assert said.endswith("\n'coppice serve --help' tells all options.\n")


@pytest.mark.parametrize("arguments", [[], ["sevre"], ["--nonsense"], ["help", "sevre"]])
def test_without_a_command_the_error_points_to_all_commands(arguments):
    ended = subprocess.run([binary(), *arguments], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.endswith("\n'coppice --help' tells all commands.\n")


def test_values_are_not_read_as_options():
    """A model's name may begin with dashes, have underscores, or be what is an option elsewhere."""
    for name in ("-np", "--my_model", "--n_gpu_layers"):
        for given in (["-m", name], ["--model", name], [f"--model={name}"], ["--", name]):
            ended = subprocess.run([binary(), "serve", *given], capture_output=True, text=True)
            assert ended.returncode == 1 and name in ended.stderr, (given, ended.stderr)
    ended = subprocess.run([binary(), "serve", "--served-model-name", "a", "/nowhere.gguf"], capture_output=True, text=True)
    assert ended.returncode == 1 and "/nowhere.gguf" in ended.stderr  # it may as well be a second name
    ended = subprocess.run([binary(), "serve", "--served-model-name", "a", "b", "-m", "/nowhere.gguf"], capture_output=True, text=True)
    assert ended.returncode == 1 and "/nowhere.gguf" in ended.stderr


def test_the_last_of_two_models_counts():
    given = ["serve", "-m", "/first.gguf", "--model=/second.gguf", "-m", "/third.gguf"]
    ended = subprocess.run([binary(), *given], capture_output=True, text=True)
    assert ended.returncode == 1 and "There is no file or folder /third.gguf" in ended.stderr
    for arguments in (["/first.gguf", "-m", "/second.gguf"], ["-m", "/second.gguf", "/first.gguf"]):
        ended = subprocess.run([binary(), "serve", *arguments], capture_output=True, text=True)
        assert ended.returncode == 2 and "--model: /second.gguf and the argument /first.gguf are two models" in ended.stderr


def options_of_llama_server() -> list[str]:
    """The source of each that it is offered with."""
    source = (Path(os.environ["COPPICE_TEMPLATES"]).parents[1] / "common" / "arg.cpp").read_text()
    options = []
    for option in re.findall(r"add_opt\(common_arg\(\s*(.*?)(?=add_opt\(common_arg|\Z)", source, re.S):
        examples = re.search(r"set_examples\(\{([^}]*)\}", option)
        if not examples or "SERVER" in examples[1] or "COMMON" in examples[1]:
            options.append(option)
    return options


def names_of(option: str) -> list[str]:
    lists = re.match(r"\{([^}]*)\}(?:,\s*\{([^}]*)\})?", option)
    return re.findall(r'"(-[^"]+)"', " ".join(filter(None, lists.groups()))) if lists else []


def test_every_option_of_llama_server_is_taken_or_answered():
    """Without a value, or with one that is of no use, it may be refused; but never as if nobody had heard of it."""
    names = [name for option in options_of_llama_server() for name in names_of(option)]
    assert len(names) > 200
    unheard = {name: said for name in names if any(words in (said := refusal(name)[1]) for words in ("no such option", "too many"))}
    assert not unheard


@pytest.mark.parametrize("variable", ["CTX_SIZE", "THREADS", "N_PARALLEL", "BATCH", "PORT", "TEMPERATURE", "TOP_K", "TOP_P", "MIN_P",
                                      "REPEAT_PENALTY", "PRESENCE_PENALTY", "FREQUENCY_PENALTY", "THINK_BUDGET", "N_PREDICT", "SSE_PING_INTERVAL", "REASONING", "POOLING", "API_KEY_FILE",
                                      "CHAT_TEMPLATE_FILE", "PREFILL_ASSISTANT", "DEVICE", "NUMA", "FLASH_ATTN", "THINK"])
def test_variables_are_read_and_checked(variable):
    status, said = refusal(**{"LLAMA_ARG_" + variable: "nonsense"})
    assert status == 2 and "nonsense" in said, said
    assert said.startswith(f"LLAMA_ARG_{variable}: "), said


def test_the_one_that_gave_a_wrong_value_is_named():
    """Not the option, where nobody wrote it; but the option where it goes before its variable."""
    for options in (["--port", "wrong"], ["--port=wrong"]):
        assert refusal(*options, LLAMA_ARG_PORT="wrong")[1].startswith("--port: ")
        assert refusal(*options, LLAMA_ARG_PORT="80")[1].startswith("--port: ")
    assert refusal("--threads", "2", LLAMA_ARG_PORT="wrong")[1].startswith("LLAMA_ARG_PORT: ")
    assert refusal(LLAMA_ARG_FLASH_ATTN="0")[1].startswith("LLAMA_ARG_FLASH_ATTN: ")  # whose value is read as "off" first
    assert refusal("--max_batch", "many", LLAMA_ARG_N_PARALLEL="4")[1].startswith("--max-batch: ")


@pytest.mark.parametrize("options", [["--reasonin", "off"], ["--sleep-idle-second", "30"], ["--keep-alive", "5m"]])
def test_an_unknown_option_is_named_also_where_the_model_has_its_option(options):
    """And not its value, as another model."""
    ended = subprocess.run([binary(), "serve", "-m", "/nowhere.gguf", *options], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith(f"{options[0]}: serve has no such option"), ended.stderr


@pytest.mark.parametrize("name", ["ENDPOINT_SLOTS", "UI", "WEBUI"])
def test_variables_for_flags_are_on_or_off(name):
    assert "maybe is neither on nor off" in refusal(**{"LLAMA_ARG_" + name: "maybe"})[1]
    for value in ("False", "OFF", "no", "Yes", "true"):
        assert warnings(**{name: value}) == {}


def warnings(**variables):
    """What `serve` says of llama-server's variables, by their names."""
    status, said = refusal(**{"LLAMA_ARG_" + name: value for name, value in variables.items()})
    assert status == 1, said
    return dict(re.findall(r"LLAMA_ARG_(\w+) is set, and has no effect here(.*)", said))


def test_every_variable_of_llama_server_does_as_its_option():
    """None is unheard of; one whose option is taken says nothing."""
    wrong = {}
    for option in options_of_llama_server():
        for name in re.findall(r'set_env\("LLAMA_ARG_(\w+)"\)', option):
            status, said = refusal(**{"LLAMA_ARG_" + name: "1"})
            taken = [option for option in names_of(option) if not option.startswith(("--no-", "-no-")) and refusal(option)[0] == 1]
            silent = status == 2 or "has no effect" not in said
            if not silent and (taken or "has no effect here; " not in said):
                wrong[name] = said
    assert not wrong


SILENT = """JINJA=1 ENDPOINT_METRICS=1 EMBEDDINGS=1 CONT_BATCHING=1 KV_UNIFIED=1 OFFLINE=1 PERF=1 MMAP=0 FLASH_ATTN=on THINK=deepseek
NO_CONTEXT_SHIFT=1 CONTEXT_SHIFT=0 NO_MMAP=1 NO_PERF=1 EMBEDDINGS=0 ENDPOINT_SLOTS=1 UI=1 CACHE_PROMPT=1 NO_MMPROJ=1 MMPROJ_AUTO=0 LOG_PREFIX=1
PREFILL_ASSISTANT=enabled VERBOSE=disabled N_GPU_LAYERS= N_GPU_LAYERS=99 N_GPU_LAYERS=all N_GPU_LAYERS=0 CACHE_TYPE_K=f16 CACHE_TYPE_V=f16 DEVICE=none DEVICE=CUDA0 NUMA=numactl REASONING=enabled"""


@pytest.mark.parametrize("variable", SILENT.split())
def test_variables_for_what_is_so_anyway_are_silent(variable):
    name, _, value = variable.partition("=")
    assert warnings(**{name: value}) == {}


@pytest.mark.parametrize(("name", "value", "hint"), [
    ("HF_REPO", "a/b", "coppice pull"), ("CACHE_TYPE_K", "q8_0", "write --kv-format int8"), ("TIMEOUT", "9", "--request-seconds"), ("JINJA", "0", "Jinja"),
    ("CACHE_PROMPT", "0", "--share off"), ("NO_CONT_BATCHING", "1", "--max-batch 1"), ("UBATCH", "9", "--step-tokens"), ("STATIC_PATH", "/a", "--no-page"),
    ("CHAT_TEMPLATE", "chatml", "LLAMA_ARG_CHAT_TEMPLATE_FILE"), ("N_GPU_LAYERS", "20", "--device cpu"), ("NO_HOST", "1", "weights lie"),
    ("SPEC_DRAFT_N_MAX", "9", "no draft models"), ("ENDPOINT_METRICS", "0", "always there")])
def test_variables_without_effect_are_named_with_what_there_is(name, value, hint):
    assert hint in warnings(**{name: value})[name]


def test_no_layers_on_a_gpu_is_the_cpu():
    """The error tells of a GPU that isn't there, else of an address that isn't; an option goes before a variable."""
    gone = {"CUDA_VISIBLE_DEVICES": "", "LLAMA_ARG_DEVICE": "cuda:7"}

    def device(*options, **variables):
        ended = subprocess.run([binary(), "serve", model_path(), "--host", "192.0.2.1", "--port", "9", "--kv-bytes", "64MiB", *options],
                               capture_output=True, text=True, env={**os.environ, **gone, **variables})
        assert ended.returncode == 1, ended.stderr
        return "cpu" if "192.0.2.1" in ended.stderr else "cuda:7"

    assert device() == "cuda:7"
    assert device("-ngl", "0") == device("--device", "none", "-ngl", "99") == "cpu"
    assert device("-ngl", "99") == device("-ngl", "0", "-ngl", "all") == "cuda:7"
    assert device(LLAMA_ARG_N_GPU_LAYERS="0") == "cuda:7"  # the option's own variable goes before another one
    assert device(LLAMA_ARG_N_GPU_LAYERS="0", LLAMA_ARG_DEVICE="") == "cpu"
    assert device("-ngl", "99", LLAMA_ARG_N_GPU_LAYERS="0") == device("--device", "cuda:7", LLAMA_ARG_N_GPU_LAYERS="0") == "cuda:7"


@pytest.mark.parametrize("variable", ["HF_REPO", "MODEL_URL", "DOCKER_REPO"])
def test_a_variable_that_alone_says_the_model_is_answered(variable):
    name = "LLAMA_ARG_" + variable
    ended = subprocess.run([binary(), "serve"], capture_output=True, text=True, env={**os.environ, name: "ggml-org/gemma-3-1b-it-GGUF"})
    assert ended.returncode == 2 and "Which model? " in ended.stderr
    assert f"{name} is set, and has no effect here; 'coppice pull hf:" in ended.stderr
    assert re.search(r"coppice serve \S+", ended.stderr)


@pytest.mark.parametrize("variables", [{"ENDPOINT_SLOTS": "0", "UI": "0"}, {"NO_ENDPOINT_SLOTS": "1", "NO_WEBUI": "1"}, {"WEBUI": "OFF"}])
def test_variables_leave_out_slots_and_the_page(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv("LLAMA_ARG_" + name, value)
    with Coppice("--kv-bytes", "64MiB") as server:
        assert "has no effect" not in server.log.read_text()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(server.url + "/")
        assert server.get("/slots")[0] == (200 if "WEBUI" in variables else 501)


def test_an_option_goes_before_a_variable_that_stands_for_a_flag(monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_ENDPOINT_SLOTS", "0")
    monkeypatch.setenv("LLAMA_ARG_UI", "0")
    with Coppice("--kv-bytes", "64MiB", "--slots", "--ui") as server:
        assert server.get("/slots")[0] == 200
        with urllib.request.urlopen(server.url + "/") as reply:
            assert reply.status == 200


def test_served_model_names_as_vllm_takes_them():
    with Coppice("--kv-bytes", "64MiB", "--served-model-name", "first", "second") as server:
        assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["first", "second"]
