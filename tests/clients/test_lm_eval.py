"""lm-eval's local-completions on three tasks of our own: texts, choices and rolling likelihoods; the scores beside NumPy's."""

import json
import math
import pathlib
import subprocess
import sys

import openai
import pytest
from coppice_process import model_path
from reference import Llama
from transformers import AutoTokenizer

TASKS = pathlib.Path(__file__).resolve().parent / "tasks"
# Of one token. coppice rounds activations to 8 bits where weights are quantised; a token beside the right one is off by whole nats.
NATS = 0.25


def evaluate(server, tokens, out):
    """What the command writes: {"results": ..., "samples": {task: [...]}}. tokens: who makes them."""
    place = f"model=smol,base_url={server.url}/v1/completions,{tokens},num_concurrent=4,max_retries=1"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", place, "--include_path", str(TASKS),
               "--tasks", "capitals_write,capitals_choice,capitals_text", "--log_samples", "--output_path", str(out)]
    done = subprocess.run(command, cwd=TASKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads(next(out.rglob("results_*.json")).read_text())
    samples = {task: [json.loads(line) for line in next(out.rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()]
               for task in told["results"]}
    assert {task: len(found) for task, found in samples.items()} == {"capitals_write": 8, "capitals_choice": 8, "capitals_text": 8}
    return told | {"samples": samples}


@pytest.fixture(scope="module")
def results(server, tokenizer, tmp_path_factory):
    return evaluate(server, f"tokenizer={tokenizer}", tmp_path_factory.mktemp("lm-eval"))


@pytest.fixture(scope="module")
def score(tokenizer):
    """(context, continuation) -> log-likelihood, whether it is what would be drawn, and its number of tokens."""
    llama, tok = Llama(model_path()), AutoTokenizer.from_pretrained(tokenizer)

    def of(context, continuation):
        begin, ids = len(tok(context)["input_ids"]), tok(context + continuation)["input_ids"]
        tail = llama.logprobs(ids)[begin - 1:]
        return sum(logprob for logprob, _ in tail), all(likeliest for _, likeliest in tail), len(tail)

    return of


def test_texts_are_those_of_a_direct_call(results, server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        for sample in results["samples"]["capitals_write"]:
            (prompt, options), = [argument.values() for argument in sample["arguments"].values()]
            direct = client.completions.create(model="smol", prompt=prompt, max_tokens=8, temperature=0, stop=[".", "\n"]).choices[0].text
            assert sample["resps"][0][0] == direct and prompt.endswith(" is"), options
    told = results["results"]["capitals_write"]["exact_match,none"]
    right = [sample["resps"][0][0] == sample["target"] for sample in results["samples"]["capitals_write"]]
    assert told == pytest.approx(sum(right) / len(right)) and told >= 0.5


def logprob_of(response) -> float:
    """Of a choice lm-eval keeps [[log-probability, likeliest]], of a whole text [log-probability]; as text or number."""
    first = response[0]
    return float(first[0] if isinstance(first, (list, tuple)) else first)


def test_choices_are_as_likely_as_in_numpy(results, score):
    right = 0
    for sample in results["samples"]["capitals_choice"]:
        pairs = [tuple(argument.values()) for argument in sample["arguments"].values()]
        told = [(float(logprob), likeliest in (True, "True")) for logprob, likeliest in sample["filtered_resps"]]
        for (context, continuation), (logprob, likeliest) in zip(pairs, told, strict=True):
            expected, would_be_drawn, tokens = score(context, continuation)
            assert logprob == pytest.approx(expected, abs=NATS * tokens), (context, continuation)
            assert likeliest == would_be_drawn, (context, continuation)
        right += max(range(3), key=lambda i: told[i][0]) == sample["doc"]["answer"]
    assert results["results"]["capitals_choice"]["acc,none"] == pytest.approx(right / 8)
    assert right >= 6


def test_rolling_likelihoods_are_numpys(results, score, tokenizer):
    first = AutoTokenizer.from_pretrained(tokenizer).bos_token  # what lm-eval puts before a text
    total = words = 0
    for sample in results["samples"]["capitals_text"]:
        text = sample["target"]
        expected, _, tokens = score(first, text)
        told = sample["filtered_resps"][0]
        told = float(told[0] if isinstance(told, list) else told)
        assert told == pytest.approx(expected, abs=NATS * math.sqrt(tokens)), text
        total, words = total + told, words + len(text.split())
    assert results["results"]["capitals_text"]["word_perplexity,none"] == pytest.approx(math.exp(-total / words))


def test_the_servers_own_tokenizer_gives_the_same(results, server, tmp_path):
    """GET /tokenizer_info, POST /tokenize and /detokenize: no tokenizer is here."""
    remote = evaluate(server, "tokenizer_backend=remote", tmp_path)
    for task, samples in results["samples"].items():
        for one, other in zip(samples, remote["samples"][task], strict=True):
            assert one["arguments"] == other["arguments"]
            if task == "capitals_write":
                assert one["resps"] == other["resps"]
                continue
            words = len(str(one["target"]).split())  # of a choice its number
            for told, again in zip(one["resps"], other["resps"], strict=True):
                bound = NATS * math.sqrt(words)
                assert logprob_of(told) == pytest.approx(logprob_of(again), abs=bound), "prompts come from the cache now"
