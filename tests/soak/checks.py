"""What must hold of every answer, whatever the load. Texts of equal requests may differ: quantised weights round by the
shape of the batch. All else is exact."""

import dataclasses
import json
import re

from wire import Broken, events_of

REFUSALS = {429, 503}  # the queue or the room for bodies is full: a right answer under pressure
SPECIAL = re.compile(rb"<\S+>")  # has no text, but a name among the log-probabilities


class Wrong(Exception):
    """The server's answer breaks a promise."""


def hold(condition, *what):
    if not condition:
        raise Wrong(" ".join(str(w) for w in what))


@dataclasses.dataclass
class Choice:
    text: str = ""
    finish: str | None = None
    logprobs: list = dataclasses.field(default_factory=list)  # (bytes or text, logprob, {one of the likeliest: its logprob})


@dataclasses.dataclass
class Answer:
    choices: list
    usage: dict | None
    report: object = None


def error_form(response, *statuses):
    """An error in OpenAI's form, with one of these statuses."""
    hold(response.status in statuses, f"status {response.status} where {statuses} was due:", response.body[:300])
    error = response.json().get("error")
    hold(isinstance(error, dict) and set(error) >= {"message", "type", "param", "code"}, "no error form:", response.body[:300])
    hold(isinstance(error["message"], str) and error["message"], "an error without a message")
    if response.status in REFUSALS:
        hold(int(response.headers.get("retry-after", 0)) > 0, f"{response.status} without Retry-After")
    return error


def _entries(chat, logprobs):
    if not logprobs:
        return []
    if chat:
        return [(bytes(t["bytes"]), t["logprob"], {bytes(top["bytes"]): top["logprob"] for top in t["top_logprobs"]})
                for t in logprobs["content"]]
    lists = [logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    hold(len({len(x) for x in lists}) == 1, "lists of logprobs of different lengths")
    offsets = logprobs["text_offset"]
    hold(offsets == sorted(offsets), "text_offset goes back")
    return list(zip(*lists[:3]))


def _whole(chat, body):
    choices = []
    for i, choice in enumerate(body["choices"]):
        hold(choice["index"] == i, "choices out of order")
        text = choice["message"]["content"] if chat else choice["text"]
        choices.append(Choice(text, choice["finish_reason"], _entries(chat, choice["logprobs"])))
    return Answer(choices, body["usage"], body.get("cache_report"))


def _streamed(chat, body, n):
    data = events_of(body)
    hold(data[-1] == b"[DONE]" and data.count(b"[DONE]") == 1, "a stream without its one [DONE] at the end:", data[-1][:300])
    answer, ids = Answer([Choice() for _ in range(n)], None), set()
    for event in map(json.loads, data[:-1]):
        if "error" in event:
            raise Wrong("a stream broke off:", event["error"])
        ids.add(event["id"])
        answer.usage = event.get("usage") or answer.usage
        answer.report = event.get("cache_report", answer.report)
        for part in event["choices"]:
            hold(0 <= part["index"] < n, "a choice that nobody asked for")
            choice = answer.choices[part["index"]]
            hold(choice.finish is None, "an event after a choice's end")
            choice.text += (part["delta"].get("content") or "") if chat else part["text"]
            choice.logprobs += _entries(chat, part["logprobs"])
            choice.finish = part["finish_reason"]
    hold(len(ids) == 1, "events of different answers in one stream:", ids)
    return answer


def _check_usage(usage, asked, n, n_prompts, prompt_tokens):
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    hold(usage["total_tokens"] == prompt + completion, "usage doesn't sum up:", usage)
    hold(0 <= usage["prompt_tokens_details"]["cached_tokens"] <= prompt - n_prompts, "too many cached tokens:", usage)
    hold(n <= completion <= asked["max_tokens"] * n, f"{completion} tokens of at most {asked['max_tokens']} times {n}")
    if prompt_tokens is not None:
        hold(prompt == prompt_tokens, f"{prompt} prompt tokens, {prompt_tokens} were sent")


def _check_choice(choice, asked):
    hold(choice.finish in ("stop", "length"), "finish_reason is", choice.finish)
    choice.text.encode()  # half a surrogate would throw
    stops = asked.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        if not asked.get("echo"):
            hold(stop not in choice.text, f"the stop string {stop!r} is in the text")
    if asked.get("ignore_eos") and not stops and not asked.get("timeout"):
        hold(choice.finish == "length", "an answer that can't stop did")
    for _, value, top in choice.logprobs:
        hold(value <= 1e-3, "a logprob above 0:", value)
        hold(all(x <= 1e-3 for x in top.values()), "a logprob above 0:", top)
        forced = asked.get("presence_penalty") or asked.get("ignore_eos")  # logprobs are those of the raw distribution
        if asked.get("temperature") == 0 and top and not forced:
            hold(value >= max(top.values()) - 1e-6, "a greedy token is not the likeliest:", value, top)


def _check_logprobs(answer, asked, chat):
    wanted = asked.get("logprobs")
    if wanted is None or wanted is False:
        hold(not any(choice.logprobs for choice in answer.choices), "logprobs that nobody asked for")
        return
    if answer.usage and not asked.get("stop"):
        count, tokens = sum(len(choice.logprobs) for choice in answer.choices), answer.usage["completion_tokens"]
        ended = sum(choice.finish == "stop" for choice in answer.choices)  # by a token that has no text and no logprob
        hold(count == tokens - ended, f"{count} logprobs of {tokens} tokens, {ended} of them ends")
    for choice in answer.choices:
        if chat and not asked.get("stop"):
            pieces = [entry[0] for entry in choice.logprobs]
            plain = [piece for piece in pieces if not SPECIAL.fullmatch(piece)]
            spelled = [b"".join(some).decode(errors="replace") for some in (pieces, plain)]
            text = choice.text.rstrip("\ufffd")
            hold(any(one.startswith(text) for one in spelled), "the tokens don't spell the text:", spelled[0], choice.text)


def check_answer(path, asked, response, prompt_tokens=None, n_prompts=1):
    """The checked answer to `asked`, or None where the server had no room for it. Raises Wrong and Broken."""
    if response.status in REFUSALS:
        error_form(response, *REFUSALS)
        return None
    hold(response.status == 200, f"status {response.status}:", response.body[:300])
    chat, stream = path.endswith("chat/completions"), bool(asked.get("stream"))
    n = asked.get("n", 1) * n_prompts
    kind = "text/event-stream" if stream else "application/json"
    hold(response.headers.get("content-type", "").startswith(kind), "content type", response.headers.get("content-type"))
    response.body.decode()  # strict: nothing but UTF-8 leaves the server
    try:
        answer = _streamed(chat, response.body, n) if stream else _whole(chat, response.json())
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Broken(f"an answer of another shape ({error!r}): {response.body[:300]!r}") from error
    hold(len(answer.choices) == n, f"{len(answer.choices)} choices of {n}")
    if stream and not (asked.get("stream_options") or {}).get("include_usage"):
        hold(answer.usage is None, "usage that nobody asked for")
    else:
        hold(answer.usage is not None, "no usage")
        _check_usage(answer.usage, asked, n, n_prompts, prompt_tokens)
    for choice in answer.choices:
        _check_choice(choice, asked)
    _check_logprobs(answer, asked, chat)
    return answer
