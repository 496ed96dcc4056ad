"""The loads, as data: what runs, which figures of it count, and what we want to reach."""

import dataclasses

MEASURES = {  # figure: (words, unit, higher is better)
    "wall_s": ("total time", "s", False),
    "ttft_median_s": ("median first token", "s", False),
    "ttft_max_s": ("slowest first token", "s", False),
    "decode_tokens_per_s": ("decode", "tok/s", True),
    "prefill_tokens_per_s": ("prefill", "tok/s", True),
    "bookkeeping": ("bookkeeping, share of a step", "%", False),
    "kv_read_ratio": ("KV bytes that a step reads over different bytes", "", False),
    "kv_mib_per_step": ("KV read in a step", "MiB", False),
    "quiet_median_ms": ("median gap before the prompt", "ms", False),
    "median_ms": ("median gap beside the prompt", "ms", False),
    "p99_over_median": ("their 99th percentile over the median", "", False),
    "unique_gb_per_s": ("keys and values read", "GB/s", True),
    "bandwidth_share": ("share of the memory's bandwidth", "%", True),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure of a load."""
    measure: str
    goal: float | None = None   # times better than the other side
    limit: float | None = None  # for our own figure
    peer: str = ""              # engine loads: the other side's program and its arguments; none: ours alone
    depth: int | None = None    # engine loads: tokens before those that are timed; None: the row has no bound
    title: str = ""             # instead of the measure's words


@dataclasses.dataclass(frozen=True)
class Engine:
    """A load without HTTP: `coppice bench --case CASE` against one of llama.cpp's bench tools, or, with `against`, against
    coppice with these options."""
    name: str
    title: str
    case: str
    rows: tuple
    streams: int = 1
    shared: int = 0  # tokens that all streams share
    options: tuple = ()
    against: tuple = ()
    kv_format: str = "f16"
    model: str = ""  # the name of a model beside --model (bench/run.py --also)
    peer_options: tuple = ("",)  # each is a further setting of the peer


@dataclasses.dataclass(frozen=True)
class Burst:
    """Requests over HTTP that arrive at once: `groups` times `streams` of them. Those of a group share `shared` tokens, and
    each has `own` more. Cold: nobody has seen any of it. Warm: the same groups were served before, with other `own`
    tokens. Chat: the demo's own requests."""
    name: str
    title: str
    rows: tuple
    streams: int
    shared: int
    groups: int = 1
    own: int = 20
    out: int = 32
    warm: bool = False
    chat: bool = False
    slots: tuple = ()  # how many slots the peer may have; default: one for each request
    model: str = ""    # as Engine's
    peer_options: tuple = ("",)  # as Engine's

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


PREFILL, DECODE, WALL, FIRST = "prefill_tokens_per_s", "decode_tokens_per_s", "wall_s", "ttft_max_s"
BOOKKEEPING = Row("bookkeeping", limit=0.02)


def engine_loads():
    yield Engine("engine-512", "one stream", "stream", (
        Row(PREFILL, 1, peer="llama-bench -p 512 -n 0", depth=0, title="prefill of 512"),
        Row(DECODE, 1, peer="llama-bench -p 0 -n 64 -d 512", depth=512, title="decode of 64 at depth 512")))
    yield Engine("engine-2048", "one stream", "depth", (
        Row(DECODE, 2, peer="llama-bench -p 0 -n 64 -d 2048", depth=2048, title="decode of 64 at depth 2,048"),
        Row(PREFILL, 2, peer="llama-bench -p 512 -n 0 -d 2048", depth=2048, title="prefill of 512 at depth 2,048")))
    yield Engine("engine-8x400", "8 unrelated streams at depth 400", "batch", (
        Row(DECODE, 1.5, peer="llama-batched-bench -c 4096 -b 2048 -ub 512 -npp 400 -ntg 64 -npl 8", depth=400),
        BOOKKEEPING), streams=8)
    yield Engine("engine-16-shared", "16 streams on one prefix of 2,048 tokens", "shared", (
        Row(DECODE, 3, peer="llama-batched-bench -c 36864 -b 2048 -ub 512 -npp 2048 -ntg 64 -npl 16 -pps", depth=2048),
        BOOKKEEPING, Row("kv_read_ratio", limit=1.05)), streams=16, shared=2048)
    yield Engine("engine-gaps", "a stream beside a new prompt of 4,000 tokens", "gaps", (
        Row("quiet_median_ms"), Row("median_ms"), Row("p99_over_median", limit=3)))
    for tokens, prefix, case, goal in ((2048, "engine", "depth", 0.97), (16384, "deep", "deep", 1.3)):
        for kv_format in ("int8", "turbo4"):
            yield Engine(f"{prefix}-{kv_format}", f"one stream, KV format {kv_format} against f16", case,
                         (Row(DECODE, goal, depth=tokens, title=f"decode at depth {tokens:,}"),), kv_format=kv_format,
                         options=("--kv-format", kv_format), against=("--kv-format", "f16"))
    for backend in ("tree", "gather"):
        yield Engine(f"backend-{backend}", f"8 unrelated streams, --attention {backend} against dense", "batch",
                     (Row(DECODE), Row("kv_mib_per_step")), streams=8, options=("--attention", backend),
                     against=("--attention", "dense"))
    yield Engine("kernel", "attention alone, 16 unrelated rows at 16,384, 32/8 heads of 128", "kernel",
                 (Row("unique_gb_per_s"), Row("bandwidth_share", limit=0.7)))


def burst(streams, shared, wall=None, first=None):
    return Burst(f"cold-{streams}-{shared}", f"{streams} at once sharing {shared:,} tokens, cold",
                 (Row(WALL, wall), Row(FIRST, first)), streams, shared)


def in_turn(load):
    """The same load against a peer with fewer slots than requests: those that wait find the prefix in a slot."""
    return dataclasses.replace(load, name=load.name + "-queue", title=load.title + " (peer in turn)", slots=(1, 4),
                               rows=tuple(Row(row.measure) for row in load.rows))


def warm(load, wall=None):
    return dataclasses.replace(load, name=load.name.replace("cold", "warm"), title=load.title.replace("cold", "warm"),
                               warm=True, rows=(Row(WALL, wall),))


def burst_loads():
    for cold, warm_goal in ((burst(8, 1500, 10, 12), 4), (burst(16, 1500), None), (burst(8, 3500), None),
                            (burst(16, 3500), None)):
        yield from (in_turn(cold), cold, warm(cold, warm_goal))
    yield in_turn(burst(64, 1500))
    yield Burst("warm-16-2048", "16 on one prefix of 2,048 tokens, warm", (Row(DECODE, 8),), 16, 2048, out=64, warm=True)
    groups = Burst("groups-4x4", "four groups of four, each sharing 1,500 tokens, cold", (Row(WALL), Row(FIRST)), 4, 1500,
                   groups=4)
    yield from (in_turn(groups), groups)
    yield Burst("unrelated-8-400", "8 unrelated streams of 400 tokens", (Row(DECODE, 1.5), Row(WALL)), 8, 0, own=400, out=128)
    yield Burst("unrelated-8-1500", "8 unrelated streams of 1,500 tokens", (Row(DECODE, 2), Row(WALL)), 8, 0, own=1500,
                out=128)
    yield Burst("stream", "one stream, short context", (Row(DECODE, 1),), 1, 0, own=64, out=128)
    yield Burst("long-prompt", "one prompt of 4,000 tokens", (Row(FIRST), Row(WALL)), 1, 0, own=4000)
    # The demo's prompts are of 1,507 tokens on average, of which 1,490 are shared.
    yield Burst("demo", "the demo's 8 requests", (Row(WALL, 2), Row("ttft_median_s"), Row(FIRST)), 8, 1490, own=17, out=48,
                chat=True)


def with_goals(load, *goals):
    """The rows of these measures only, with these goals."""
    rows = tuple(dataclasses.replace(next(row for row in load.rows if row.measure == measure), goal=goal)
                 for measure, goal in goals)
    return dataclasses.replace(load, rows=rows)


def other_loads():
    """Of other models: Gemma 3 270M, whose layers slide; and random weights in the shapes of Llama 3.2 1B in Q4_K_M, Q6_K
    and Q8_0; of two models with experts, cut to four layers: Qwen 3 30B-A3B in Q4_K_M, gpt-oss 20B in MXFP4; and of a
    hybrid, cut to eight: Qwen 3.5 4B in Q4_K_M."""
    def of(model, load, **changes):
        return dataclasses.replace(load, name=f"{model}-{load.name}", title=f"{load.title} ({model})", model=model, **changes)

    cold = burst(8, 1500)
    # llama-server forgets what its windows have left, unless it keeps everything.
    for load, goal in ((in_turn(cold), 3), (cold, 8), (warm(cold), 2.5)):
        yield of("gemma3", with_goals(load, (WALL, goal)), peer_options=("", "--swa-full"))
    engine = {load.name: load for load in engine_loads()}
    yield of("1b", with_goals(engine["engine-512"], (PREFILL, 1.5), (DECODE, 1.2)))
    yield of("1b", with_goals(engine["engine-8x400"], (DECODE, 1.8)))
    # llama.cpp multiplies eight rows by Q6_K at a lower rate than four: it may cut a step in two.
    for packed, steps in (("q6_k", ("", "-ub 4")), ("q8_0", ("",))):
        yield of(packed, with_goals(engine["engine-512"], (PREFILL, 1.5), (DECODE, 1)))
        yield of(packed, with_goals(engine["engine-8x400"], (DECODE, 1.5)), peer_options=steps)
    sixteen = Engine("engine-16x200", "16 unrelated streams at depth 200", "sixteen", (
        Row(DECODE, 1.5, peer="llama-batched-bench -c 4608 -b 2048 -ub 512 -npp 200 -ntg 64 -npl 16", depth=200),), streams=16)
    for experts in ("qwen3moe", "gptoss"):
        yield of(experts, with_goals(engine["engine-512"], (PREFILL, 1.5), (DECODE, 1)))
        yield of(experts, sixteen)
    yield of("qwen35", with_goals(engine["engine-512"], (PREFILL, 1), (DECODE, 1)))


LOADS = {load.name: load for load in (*burst_loads(), *engine_loads(), *other_loads())}


def row_of(name, measure):
    """The row of that name; None where there is no such load or row."""
    return next((row for row in LOADS[name].rows if row.measure == measure), None) if name in LOADS else None


def chosen(names):
    """Loads by name or by the beginning of their names up to a dash ("engine", "cold-8"); "all". Unknown: KeyError."""
    found = []
    for name in names:
        some = [load for load in LOADS.values() if name == "all" or (load.name + "-").startswith(name + "-")]
        if not some:
            raise KeyError(name)
        found += [load for load in some if load not in found]
    return found
