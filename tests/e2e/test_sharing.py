"""What the cache saves, as clients and the figures see it."""

import concurrent.futures

PREFACE = " ".join(f"Rule {i}: answer number {i} with care and in few words." for i in range(40))


def complete(client, prompt, salt, **more):
    more = {"max_tokens": 4, "temperature": 0} | more
    return client.completions.create(model="smol", prompt=prompt, extra_body={"cache_salt": salt}, **more)


def cached(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def test_repeated_prompt_is_cached_but_for_its_last_token(client, salt):
    first, second = (complete(client, PREFACE, salt) for _ in range(2))
    assert cached(first) == 0
    assert cached(second) == second.usage.prompt_tokens - 1


def test_common_prefix_is_cached_to_the_token(client, server, salt):
    a, b = PREFACE + " Now tell of ships.", PREFACE + " Now tell of trees."
    ids = [server.post("/tokenize", {"prompt": text})["tokens"] for text in (a, b)]
    common = next(i for i, (x, y) in enumerate(zip(*ids)) if x != y)
    complete(client, a, salt)
    assert cached(complete(client, b, salt)) == common


def test_generated_tokens_are_cached_too(client, server, salt):
    tokens = server.post("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    text = complete(client, tokens, salt, max_tokens=40, logprobs=0).choices[0]
    tokens += [server.post("/tokenize", {"content": t, "add_special": False})["tokens"][0] for t in text.logprobs.tokens]
    assert cached(complete(client, tokens, salt)) > 35


def test_salts_do_not_share(client, salt):
    complete(client, PREFACE, salt)
    assert cached(complete(client, PREFACE, salt + "other")) == 0


def test_chat_turns_build_on_each_other(client, salt):
    messages = [{"role": "system", "content": PREFACE}, {"role": "user", "content": "Hello."}]
    body = {"model": "smol", "max_tokens": 16, "temperature": 0, "extra_body": {"cache_salt": salt}}
    first = client.chat.completions.create(messages=messages, **body)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "Go on."}]
    second = client.chat.completions.create(messages=messages, **body)
    assert cached(second) >= first.usage.prompt_tokens


def test_requests_in_flight_prefill_their_prefix_once(client, server, salt):
    prompts = [PREFACE + f" Question {i}: what is {i} plus {i}?" for i in range(8)]
    ids = [server.post("/tokenize", {"prompt": prompt})["tokens"] for prompt in prompts]
    common = min(next(i for i, (x, y) in enumerate(zip(ids[0], other)) if x != y) for other in ids[1:])
    before = server.stats()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(client, prompt, salt), prompts))
    after = server.idle_stats()
    computed = after["tokens"]["computed"] - before["tokens"]["computed"]
    total = sum(answer.usage.prompt_tokens for answer in answers)
    block = after["block_size"]
    # Once the prefix; each its own rest, the block still being filled when it joined, and its last token.
    assert computed <= common + sum(len(i) - common + block + 1 for i in ids)
    assert computed == total - sum(cached(answer) for answer in answers)
    assert sum(cached(answer) == 0 for answer in answers) == 1
    assert after["tokens"]["cached"] - before["tokens"]["cached"] == total - computed


def test_running_requests_share_blocks(client, server, salt):
    stream = client.completions.create(model="smol", prompt=PREFACE, max_tokens=600, stream=True, n=4, temperature=1,
                                       extra_body={"cache_salt": salt, "ignore_eos": True})
    next(stream)
    blocks = server.stats()["blocks"]
    stream.close()
    assert blocks["max_refs"] == 4
    assert blocks["shared"] >= 10
    assert blocks["total"] == blocks["free"] + blocks["cached"] + blocks["in_use"]
