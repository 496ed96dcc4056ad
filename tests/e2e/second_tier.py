"""What the tests of a second tier ask of a server: start it with one, and see what it found of a prompt."""

import urllib.request
from pathlib import Path

from coppice_process import Coppice

WOODS = (Path(__file__).parents[1] / "fixtures" / "coppice_woods.txt").read_text()


def prompt(words: int) -> str:
    return " ".join((WOODS * 4).split()[:words])


def start_with_store(*arguments: str, model=None) -> Coppice:
    """A server whose second tier works."""
    server = Coppice("--kv-bytes", "400MiB", *arguments, model=model)
    try:
        server.wait(lambda: (stores := server.stats()["stores"]) and all(store["on"] for store in stores.values()))
    except BaseException:
        server.kill()
        raise
    return server


def ask(server: Coppice, text: str, **more) -> tuple[dict, dict, dict]:
    """The answer's tokens with their log-probabilities, what of the prompt was found, and all of the answer."""
    answer = server.post("/v1/completions", {"prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 5, **more})
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["logprobs"], {"prompt": usage["prompt_tokens"], "cached": cached}, answer


def metric(server: Coppice, name: str) -> float:
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)))
