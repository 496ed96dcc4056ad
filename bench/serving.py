"""Bursts: the servers run side by side, the same client sends both the same new prompts in turn, and whoever's turn it
isn't stands still."""

import contextlib
import itertools
import json
import pathlib
import re
import tempfile

import client
from kept import Kept
from process import Failure, Server, output_of, say
from text import Text, usable_words

GIVE_UP = 1.6  # a setting that takes this many times as long as the best cold burst before it is given up
LONG = 100     # seconds: a cold burst that takes the peer longer runs in one round


class BurstRuns:
    def __init__(self, args, model, kept=None):
        self.args, self.model, self.kept = args, model, kept or Kept()
        self.text = None
        self.hopeless = set()  # settings that were given up on a cold burst of shared prompts

    # Servers

    def server(self, load, side, slot_files=None):
        """Both have the same room for keys and values. The peer has no prompt cache in main memory: every load's prefixes
        have room in the slots, and copies take time. slot_files: the folder that slots are copied through."""
        log = self.args.logs / f"bench-{re.sub('[^a-zA-Z0-9]+', '-', side.name).strip('-')}.log"
        if not side.peer:
            room = load.requests * load.context * self.model.kv_bytes_per_token
            return Server([side.program, "serve", "--model", self.args.model, "--threads", self.args.threads, "--kv-bytes",
                           room, *side.options], log)
        return Server([side.program / "llama-server", "-m", self.args.model, "-t", self.args.threads, *side.options,
                       "-np", side.slots, "-c", side.slots * load.context, "--cache-prompt", "--cache-reuse", 256,
                       "--cache-ram", 0, *(["--slot-save-path", slot_files] if slot_files else [])], log)

    def burst(self, server, load, prompts, out, limit=1800):
        path = "/v1/chat/completions" if load.chat else "/v1/completions"
        try:
            return client.run_burst(server.port, path, prompts, out, limit)
        except OSError as error:
            raise Failure(f"{server.name} broke off ({error}): {server.last_words()}") from error

    def prompts(self, load, heads):
        if load.chat:
            lines = output_of([self.args.coppice, "demo", "--model", self.args.model, "--requests"]).splitlines()
            return [{"messages": json.loads(line)["messages"]} for line in lines]
        return [{"prompt": prompt} for prompt in self.text.prompts(load, heads)]

    def warm_up(self, server, load):
        """Graphs and compute buffers of whole chunks and of the load's batch are made before anything is timed."""
        bodies = [{"prompt": self.text.tokens(min(load.prompt, 512))} for _ in range(load.requests)]
        client.run_burst(server.port, "/v1/completions", bodies, 8)

    def prime(self, server, load, heads, side, slot_files):
        """The load's shared text becomes known. The peer serves each group's once, and that slot's state is copied to the
        group's other slots: a burst would do, too, but some settings take many minutes for one."""
        if not side.peer:
            self.burst(server, load, self.prompts(load, heads), load.out)
            return
        for group, head in enumerate(heads):
            server.post("/v1/completions", {"prompt": head + self.text.tokens(load.own), "max_tokens": 1,
                                            "cache_prompt": True, "id_slot": group}, 1800)
            server.post(f"/slots/{group}?action=save", {"filename": "prefix"})
            for slot in range(group + load.groups, load.requests, load.groups):
                server.post(f"/slots/{slot}?action=restore", {"filename": "prefix"})
            (pathlib.Path(slot_files) / "prefix").unlink()

    @contextlib.contextmanager
    def ready(self, load, sides):
        """Servers of all sides, warmed up, on hold; and the shared texts that they know if the load is warm."""
        with contextlib.ExitStack() as stack:
            if self.text is None:
                with Server([self.args.coppice, "serve", "--model", self.args.model, "--kv-bytes", "64MiB"],
                            self.args.logs / "bench-words.log") as server:
                    self.text = Text(usable_words(server))
            slot_files = stack.enter_context(tempfile.TemporaryDirectory(dir=self.args.logs)) if load.warm else None
            heads, servers = self.text.heads(load), {}
            for side in sides:
                servers[side] = stack.enter_context(self.server(load, side, slot_files))
                self.warm_up(servers[side], load)
                if load.warm:
                    self.prime(servers[side], load, heads, side, slot_files)
                servers[side].hold()
            yield servers, heads

    # The search
    #
    # Where a load is cold and judged by its time, a setting is given up when it takes GIVE_UP times as long as the best
    # before it, and longer bursts of shared prompts don't try it again. A setting that is slow there may still decode
    # fastest, or be fastest once it is warm: those loads try every setting to the end.

    def search(self, load, sides):
        """{side: its figures}, of those that got to the end."""
        found, best = {}, None
        gives_up = not load.warm and load.rows[0].measure != "decode_tokens_per_s"
        remembers = gives_up and load.shared and not load.slots
        for side in sides:
            if remembers and side.kind in self.hopeless:
                continue
            say(f"  search: {side.name}")
            limit = best * GIVE_UP + 5 if best and gives_up else 1800
            try:
                figures = self.kept.get(load, side.name, lambda side=side, limit=limit: self.one_setting(load, side, limit))
            except Failure as error:
                say(f"  {side.name}: {error}")
                continue
            if figures:
                found[side] = figures
                best = min(best or limit, figures["wall_s"])
            elif remembers:
                self.hopeless.add(side.kind)
        if not found:
            raise Failure(f"no setting of llama-server could run {load.name}")
        return found

    def one_setting(self, load, side, limit):
        """Its figures; None if it took longer than `limit`."""
        try:
            with self.ready(load, [side]) as (servers, heads):
                servers[side].resume()
                figures = self.burst(servers[side], load, self.prompts(load, heads), load.out, limit)
        except client.TooSlow:
            return None
        if load.warm and figures["cached_tokens"] < 0.9 * load.requests * load.shared:
            raise Failure(f"only {figures['cached_tokens']} prompt tokens were in the slots")
        return figures

    def rounds(self, load, sides, count):
        """A round's figures by side; its prompts are the same for all. Every other round goes backwards."""
        with self.ready(load, sides) as (servers, heads):
            for number in range(count):
                bodies = self.prompts(load, heads if load.warm else self.text.heads(load))
                figures = {}
                for side in sides[::-1 if number % 2 else 1]:
                    servers[side].resume()
                    figures[side] = self.burst(servers[side], load, bodies, load.out)
                    servers[side].hold()
                counts = {side.name: found["prompt_tokens"] for side, found in figures.items()}
                if any(one != other for one, other in itertools.pairwise(counts.values())):
                    raise Failure(f"{load.name}: the servers counted different tokens: {counts}")
                if any(figures[side][row.measure] is None for side in sides for row in load.rows):
                    raise Failure(f"{load.name}: the streams never wrote all at the same time, so there is no decode rate")
                yield figures
                if max(found["wall_s"] for found in figures.values()) > LONG:
                    return
