"""The section of bench/README.md that bench/results/pictures/*.json hold: `bench/pictures.py burst --save` writes these."""

import json

HEAD = """
## Pictures

Eight requests at once ask about one picture, each with a text of its own, and get 32 tokens (`bench/pictures.py burst`; random weights in a model's shape). Cold:
nobody has seen the picture; warm: the same again with other questions. The encoder is libmtmd's on both sides: the last column is without its time. In its one slot
llama-server answers one request after the other, and finds the picture there. Behind the encoder of a cold burst both sides prefill the picture once: that bounds what
sharing can gain.
"""


def read(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def table(content):
    yield "| | coppice: all, s | of it encoding | first token (median), s | peer: all, s | of it encoding | first token, s | in all | behind the encoder |"
    yield "|---|" + "---|" * 8
    ours = content["sides"]["coppice"]
    for side, theirs in content["sides"].items():
        if side == "coppice":
            continue
        for kind in ("cold", "warm"):
            both = [sides[kind] for sides in (ours, theirs)]
            cells = " | ".join(f"{f['wall_s']:.2f} | {f['encode_s']:.2f} | {f['ttft_median_s']:.2f}" for f in both)
            mine, peers = both
            yield (f"| {kind}, against {side} | {cells} | **{peers['wall_s'] / mine['wall_s']:.2f}x** | "
                   f"**{(peers['wall_s'] - peers['encode_s']) / (mine['wall_s'] - mine['encode_s']):.2f}x** |")


def page(contents):
    if contents:
        yield HEAD.rstrip()
    for content in contents:
        options = f"llama-server with `{content['peer_options']}`" if content["peer_options"] else ""
        about = (f"{content['machine']}, {content['threads']} threads, {content['rounds']} rounds, prompts of {content['prompt_tokens']} tokens; {content['date']}, "
                 f"commit {content['commit']}")
        yield from ("", f"### {content['model']}", "", "; ".join(filter(None, (about, options))) + ".", "", *table(content))
