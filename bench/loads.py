"""The loads of `make bench-peers`, as data, and the prompts that they send."""

import dataclasses
import random

WORDS = """
river stone house light winter garden table paper window letter mountain bridge silver green morning evening water fire
horse road market church village island forest valley harbor captain sailor teacher doctor farmer soldier king queen
brother sister mother father child friend neighbor stranger music song dance story book page word voice sound silence
color shadow summer spring autumn rain snow wind storm cloud star moon sun earth field grass tree leaf flower fruit
bread milk salt sugar coffee wine dinner kitchen chair door floor wall roof street corner city country border journey
train ship plane wheel engine machine tool hammer metal iron gold copper glass wood cotton silk cloth coat shirt hand
finger heart head face eye ear mouth tooth bone blood skin dream memory question answer reason truth doubt hope fear
anger joy peace war battle victory loss price money trade shop profit debt law court judge prison police order rule
power office leader party vote speech history science nature animal bird fish dog cat wolf bear lion mouse snake
small large quick slow bright dark heavy early late north south east west near far open closed warm cold clean broken
""".split()


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table: a figure of `Result` and how many times faster than the peer we want to be."""
    measure: str
    goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Load:
    """`groups` times `streams` requests at once; the requests of a group share `shared` tokens and each has `own`
    more. Cold: nobody has seen any of it. Warm: the same groups were served before, with other `own` tokens."""
    name: str
    title: str
    streams: int
    shared: int
    rows: tuple
    groups: int = 1
    own: int = 20
    out: int = 32
    warm: bool = False
    slots: tuple = ()  # how many slots the peer's server may have; default: one for each request

    @property
    def requests(self):
        return self.groups * self.streams

    @property
    def prompt(self):
        return self.shared + self.own

    @property
    def context(self):
        """Tokens that one request may take: what it needs and coppice's spare blocks, rounded up."""
        return max(1024, -(-(self.prompt + self.out + 128) // 256) * 256)

    @property
    def unique_tokens(self):
        """Different tokens whose keys and values a decode step must read, in the middle of the answers."""
        return self.groups * self.shared + self.requests * (self.own + self.out // 2)


class Text:
    """Random text of an exact number of tokens. `words`: each is one token together with the space before it."""

    def __init__(self, words):
        self.words = words
        self.random = random.Random()

    def tokens(self, count):
        return "".join(" " + word for word in self.random.choices(self.words, k=count))

    def heads(self, load):
        """The shared beginning of each group: new text."""
        return [self.tokens(load.shared) for _ in range(load.groups)]

    def prompts(self, load, heads):
        """One request after the other, the groups in turn."""
        return [head + self.tokens(load.own) for _ in range(load.streams) for head in heads]


def usable_words(server):
    """The words that are one token each; asked of our own server, checked later by the token counts of both."""
    answer = server.post("/tokenize", {"content": "".join(" " + word for word in WORDS), "with_pieces": True})
    pieces = {token["piece"] for token in answer["tokens"]}
    return [word for word in WORDS if " " + word in pieces]


def burst(streams, shared, wall=None, ttft=None):
    return Load(f"cold-{streams}-{shared}", f"{streams} at once sharing {shared:,} tokens, cold", streams, shared,
                (Row("wall_s", wall), Row("ttft_max_s", ttft)))


def in_turn(load):
    """The same load against a peer with fewer slots than requests: those that wait find the prefix in a slot."""
    return dataclasses.replace(load, name=load.name + "-queue", title=load.title + " (peer in turn)",
                               slots=(1, 4), rows=tuple(Row(row.measure) for row in load.rows))


def warm(load, wall=None):
    return dataclasses.replace(load, name=load.name.replace("cold", "warm"), title=load.title.replace("cold", "warm"),
                               warm=True, rows=(Row("wall_s", wall),))


def all_loads():
    cold_8, cold_8_long = burst(8, 1500, wall=10, ttft=12), burst(8, 3500)
    cold_16, cold_16_long = burst(16, 1500), burst(16, 3500)
    groups = Load("groups-4x4", "four groups of four, each sharing 1,500 tokens, cold", 4, 1500,
                  (Row("wall_s"), Row("ttft_max_s")), groups=4)
    decode = "decode_tokens_per_s"
    return [
        cold_8, warm(cold_8, 4), in_turn(cold_8),
        cold_16, warm(cold_16), in_turn(cold_16),
        cold_8_long, warm(cold_8_long), in_turn(cold_8_long),
        cold_16_long, warm(cold_16_long), in_turn(cold_16_long),
        Load("warm-16-2048", "16 decodes on one prefix of 2,048 tokens, warm", 16, 2048, (Row(decode, 8),), out=64,
             warm=True),
        groups, in_turn(groups),
        Load("unrelated-8-400", "8 unrelated streams of 400 tokens", 8, 0, (Row(decode, 1.5), Row("wall_s")), own=400,
             out=128),
        Load("unrelated-8-1500", "8 unrelated streams of 1,500 tokens", 8, 0, (Row(decode, 2), Row("wall_s")), own=1500,
             out=128),
        Load("stream", "one stream, short context", 1, 0, (Row(decode, 1),), own=64, out=128),
        Load("long-prompt", "one prompt of 4,000 tokens", 1, 0, (Row("ttft_max_s"), Row("wall_s")), own=4000),
    ]
