"""Clients that mean well. Each act is a coroutine of (world, rng) that returns an outcome, or raises what it found."""

import asyncio

import httpx2
import openai

import texts
from checks import check_answer, error_form, hold
from wire import Connection, ask, post_bytes

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_RECORDS = 64


def common(world, rng, max_tokens, **more):
    """Fields that any request may have, by chance."""
    body = {"max_tokens": max_tokens} | more
    body.setdefault("temperature", rng.choice((0, 0, 0.7, 1.3)))
    if body["temperature"] and rng.random() < 0.5:
        body |= {"seed": rng.randrange(1 << 31), "top_p": 0.95, "top_k": rng.choice((0, 40)), "min_p": 0.02}
    if rng.random() < 0.2:
        body |= {"presence_penalty": 0.5, "frequency_penalty": 0.3}
    if rng.random() < 0.6:
        body["stream"] = True
        if rng.random() < 0.75:
            body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.3:
        body["cache_salt"] = rng.choice(("a", "b", f"once-{rng.randrange(1 << 30)}"))
    if "priority" in world.features.fields and rng.random() < 0.3:
        body["priority"] = rng.randrange(-2, 3)
    if "cache_report" in world.features.fields and rng.random() < 0.3:
        body["cache_report"] = True
    return body


async def generate(world, path, body, key, prompt_tokens=None, n_prompts=1):
    """The checked answer; None: the server had no room."""
    response = await ask(world.port, "POST", path, body, key)
    answer = check_answer(path, body, response, prompt_tokens, n_prompts)
    if answer and body.get("cache_report"):
        reports = answer.report if isinstance(answer.report, list) else [answer.report]
        hold(len(reports) == n_prompts, "cache reports:", answer.report)
        for report in reports:
            hold(isinstance(report, dict) and 0 <= report["matched_tokens"] <= report["prompt_tokens"], "cache report:", report)
            hold(report["ended"], "a cache report without an end")
    return answer


def outcome(*answers):
    return "answered" if all(answers) else "no room"


async def chat(world, rng):
    messages = [{"role": "system", "content": texts.preface(rng.randrange(texts.N_PREFACES))},
                {"role": "user", "content": texts.question(rng)}]
    body = common(world, rng, rng.choice((1, 8, 24, 48)), messages=messages)
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(6)}
    if rng.random() < 0.3:
        body["stop"] = rng.choice((".", [" the", "\n"], ["e", "qqqq"]))
    return outcome(await generate(world, CHAT, body, world.key(rng)))


async def agent(world, rng):
    """A conversation that grows, each turn on what the one before it left in the cache."""
    key, salt = world.key(rng), f"agent-{rng.randrange(4)}"
    messages = [{"role": "system", "content": texts.preface(rng.randrange(3))}]
    last = 0
    for _ in range(rng.randrange(2, 6)):
        messages.append({"role": "user", "content": texts.question(rng) + texts.words(rng, rng.randrange(40))})
        answer = await generate(world, CHAT, {"messages": messages, "max_tokens": rng.randrange(4, 40), "temperature": 0,
                                              "cache_salt": salt}, key)
        if not answer:
            return "no room"
        hold(answer.usage["prompt_tokens"] > last, "a conversation grew and its prompt did not")
        last = answer.usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": answer.choices[0].text or "…"})
    return "answered"


async def samples(world, rng):
    body = common(world, rng, rng.randrange(4, 40), n=rng.randrange(2, 7), temperature=1,
                  prompt=texts.preface(rng.randrange(4)) + texts.question(rng))
    return outcome(await generate(world, COMPLETIONS, body, world.key(rng)))


def token_array(world, rng, length):
    return [rng.randrange(100, world.vocabulary) for _ in range(length)]


async def tokens(world, rng):
    prompt = token_array(world, rng, rng.choice((1, 2, 31, 32, 33, 64, 100, 300)))
    body = common(world, rng, rng.randrange(1, 20), prompt=prompt)
    return outcome(await generate(world, COMPLETIONS, body, world.key(rng), len(prompt)))


async def several_prompts(world, rng):
    prompts = [token_array(world, rng, rng.randrange(1, 60)) for _ in range(rng.randrange(2, 5))]
    body = common(world, rng, rng.randrange(1, 20), prompt=prompts, n=rng.choice((1, 2)), echo=rng.random() < 0.5)
    return outcome(await generate(world, COMPLETIONS, body, world.key(rng), sum(map(len, prompts)), len(prompts)))


async def recorded(world, rng):
    """A greedy answer with its tokens' logprobs, kept for a rest to verify (verify.py)."""
    key, salt = world.key(rng), f"recorded-{rng.randrange(3)}"
    text = texts.preface(rng.randrange(texts.N_PREFACES)) + "\n" + texts.question(rng)
    prompt = await world.tokenize({"prompt": text}, key)
    body = {"prompt": prompt, "max_tokens": rng.randrange(8, 64), "temperature": 0, "logprobs": 2, "cache_salt": salt,
            "stream": rng.random() < 0.5, "ignore_eos": True}
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    answer = await generate(world, COMPLETIONS, body, key, len(prompt))
    if answer:
        if len(world.records) >= MAX_RECORDS:
            world.records.pop(rng.randrange(MAX_RECORDS))
        world.records.append((key, salt, prompt, answer.choices[0].logprobs))
    return outcome(answer)


async def long_prompt(world, rng):
    prompt = token_array(world, rng, rng.randrange(world.context // 2, world.context - 20))
    return outcome(await generate(world, COMPLETIONS, common(world, rng, rng.randrange(1, 8), prompt=prompt), world.key(rng),
                                  len(prompt)))


async def too_long(world, rng):
    prompt = token_array(world, rng, world.context + rng.randrange(1, 500))
    response = await world.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}, world.key(rng))
    hold(error_form(response, 400)["code"] == "context_length_exceeded", "another code:", response.body[:200])
    return "refused"


async def long_answer(world, rng):
    """It can't stop and it fits: every token must come, however often it is preempted."""
    prompt, length = token_array(world, rng, rng.randrange(2, 200)), rng.randrange(100, 400)
    body = common(world, rng, length, prompt=prompt, ignore_eos=True)
    answer = await generate(world, COMPLETIONS, body, world.key(rng), len(prompt))
    if answer and answer.usage:
        hold(answer.usage["completion_tokens"] == length, f"{answer.usage['completion_tokens']} tokens of {length}")
    return outcome(answer)


async def crowd(world, rng):
    """Long answers, all at once: more than the pool holds, so some must be preempted."""
    async def one():
        prompt = token_array(world, rng, rng.randrange(8, 40))
        body = {"prompt": prompt, "max_tokens": 300, "ignore_eos": True, "temperature": 1, "stream": True,
                "stream_options": {"include_usage": True}}
        answer = await generate(world, COMPLETIONS, body, world.key(rng), len(prompt))
        hold(not answer or answer.usage["completion_tokens"] == 300, "tokens are missing:", answer and answer.usage)
        return answer
    return outcome(*await asyncio.gather(*(one() for _ in range(14))))


async def burst(world, rng):
    """Many at once on a prefix that nobody has computed yet."""
    preface = texts.words(rng, rng.randrange(50, 300))
    bodies = [common(world, rng, rng.choice((1, 2, 6)), prompt=f"{preface} {i}.") for i in range(rng.randrange(6, 20))]
    return outcome(*await asyncio.gather(*(generate(world, COMPLETIONS, body, world.key(rng)) for body in bodies)))


async def twice(world, rng):
    """The same request whole and as a stream: the same form, and the same count of prompt tokens."""
    key = world.key(rng)
    body = {"messages": [{"role": "user", "content": texts.question(rng)}], "max_tokens": rng.randrange(1, 30), "temperature": 0,
            "cache_salt": f"twice-{rng.randrange(1 << 30)}"}
    whole = await generate(world, CHAT, body, key)
    stream = await generate(world, CHAT, body | {"stream": True, "stream_options": {"include_usage": True}}, key)
    if whole and stream:
        hold(whole.usage["prompt_tokens"] == stream.usage["prompt_tokens"], "two counts of one prompt")
    return outcome(whole, stream)


async def keep_alive(world, rng):
    """Several requests on one connection, one after the other."""
    key = world.key(rng)
    async with Connection(world.port) as connection:
        for _ in range(rng.randrange(2, 6)):
            body = common(world, rng, rng.randrange(1, 8), prompt=texts.question(rng))
            await connection.send(post_bytes(COMPLETIONS, body, key))
            check_answer(COMPLETIONS, body, await connection.response())
    return "answered"


async def openai_client(world, rng):
    """The library that most users come with."""
    async with httpx2.AsyncClient(verify=False, timeout=None) as http, \
            openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{world.port}/v1", api_key=world.key(rng) or "none", max_retries=0,
                               timeout=None, http_client=http) as client:
        body = {"model": "default", "max_tokens": rng.randrange(1, 24), "temperature": rng.choice((0, 1)),
                "messages": [{"role": "user", "content": texts.question(rng)}]}
        try:
            if rng.random() < 0.5:
                answer = await client.chat.completions.create(**body)
                hold(answer.choices[0].finish_reason in ("stop", "length"), "finish_reason")
                hold(answer.usage.completion_tokens <= body["max_tokens"], "too many tokens")
            else:
                stream = await client.chat.completions.create(stream=True, **body)
                finishes = [chunk.choices[0].finish_reason async for chunk in stream]
                hold(finishes[-1] in ("stop", "length") and not any(finishes[:-1]), "finish_reasons", finishes)
        except (openai.RateLimitError, openai.InternalServerError) as error:
            hold(error.status_code in (429, 503) and error.response.headers["retry-after"], "status", error.status_code)
            return "no room"
        except openai.APIError as error:
            hold(False, f"the openai package met {error!r}")
    return "answered"


BAD_FIELDS = [({"n": 0}, "n"), ({"temperature": -1}, "temperature"), ({"max_tokens": -5}, "max_tokens"), ({"stop": [""]}, "stop"),
              ({"logit_bias": {"99999999": 1}}, "logit_bias"), ({"messages": []}, "messages"), ({"stream": "yes"}, "stream"),
              ({"response_format": {"type": "json_object"}}, "response_format"), ({"cache_salt": "s" * 300}, "cache_salt")]


async def mistaken(world, rng):
    """Requests that a client gets wrong: a 4xx that names the field."""
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
    if rng.random() < 0.2:
        hold(error_form(await world.ask(CHAT, body | {"model": "gpt-4"}, world.key(rng)), 404)["code"] == "model_not_found", "code")
        return "refused"
    fields, param = rng.choice(BAD_FIELDS)
    error = error_form(await world.ask(CHAT, body | fields, world.key(rng)), 400)
    hold(error["param"] == param, f"param {error['param']} where {param} is wrong")
    return "refused"


async def hurried(world, rng):
    """A timeout: some of the text, all of it, or none and a 504."""
    body = {"prompt": texts.question(rng), "max_tokens": 200, "ignore_eos": True, "timeout": rng.choice((0.001, 0.2, 1, 3)),
            "stream": rng.random() < 0.5}
    response = await world.ask(COMPLETIONS, body, world.key(rng))
    if response.status == 504:
        error_form(response, 504)
        return "timed out"
    if body["stream"] and response.status == 200 and b'"error"' in response.body:
        hold(b"deadline" in response.body or b"time" in response.body, "a stream broke off:", response.body[-300:])
        return "timed out"
    return outcome(check_answer(COMPLETIONS, body, response))


async def stranger(world, rng):
    for key in (None, "", "soak-key-on", "soak-key-one ", rng.randbytes(20).hex()):
        error = error_form(await world.ask(rng.choice((CHAT, COMPLETIONS)), {"prompt": "a"}, key and key.replace(" ", "x")), 401)
        hold(error["code"] == "invalid_api_key", "code", error["code"])
    hold((await world.ask("/health")).status == 200, "/health wants a key")
    return "refused"


def acts(features):
    """Name -> (act, weight)."""
    table = {"chat": (chat, 8), "agent": (agent, 3), "samples": (samples, 2), "tokens": (tokens, 4),
             "several prompts": (several_prompts, 1), "recorded": (recorded, 4), "long prompt": (long_prompt, 1),
             "too long": (too_long, 1), "long answer": (long_answer, 2), "crowd": (crowd, 0.2), "burst": (burst, 1),
             "twice": (twice, 1), "keep alive": (keep_alive, 2), "openai client": (openai_client, 2), "mistaken": (mistaken, 2)}
    if "timeout" in features.fields:
        table["hurried"] = (hurried, 1)
    if features.api_keys:
        table["stranger"] = (stranger, 1)
    return table
