"""Texts to ask about: shared prefaces, questions, random words. All by the caller's source of chance."""

WORDS = ("river tree stone light house bread sea night wind paper clock road garden letter fire salt boat horse glass "
         "winter music window field bridge iron cloud apple table story water school market tower grain mirror lamp "
         "naïve café Öl größer 東京 привет ελιά 🌊 – “quoted” {braces} <|tag|> \\n 0x1F").split()
TOPICS = ("the sea", "old maps", "baking bread", "a lighthouse", "prime numbers", "winter", "a lost letter", "bees")
N_PREFACES = 6


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def preface(i):
    """One of a few system prompts that many requests share; 150 to 800 tokens."""
    rules = " ".join(f"Rule {k}: in case {k * 7 + i}, speak of {TOPICS[(i + k) % len(TOPICS)]} and nothing else."
                     for k in range(6 + 5 * i))
    return f"You are assistant number {i}. {rules}"


def question(rng):
    return f"{rng.choice(('Tell me about', 'What do you know of', 'Write a poem on', 'Why is there'))} " \
           f"{rng.choice(TOPICS)}, {words(rng, rng.randrange(1, 8))}?"
