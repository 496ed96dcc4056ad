"""Random text of an exact number of tokens, for the bursts."""

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


def usable_words(server):
    """The words that are one token each with the space before them: asked of our own server, and checked later by the token
    counts of both."""
    answer = server.post("/tokenize", {"content": "".join(" " + word for word in WORDS), "with_pieces": True})
    pieces = {token["piece"] for token in answer["tokens"]}
    return [word for word in WORDS if " " + word in pieces]


class Text:
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
