"""The page in a real browser, on the real server and model."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from coppice_process import Coppice, model_path
from second_tier import ask, prompt, start_with_store
from vision_model import picture, words, write_model

REPO = Path(__file__).resolve().parents[2]
SYSTEM = ("You work at the visitor desk of a small museum of clocks. Be brief and friendly. The museum opens at ten and closes at "
          "five, on Thursdays at nine in the evening; on Mondays it is closed. A ticket costs eight, for children three. The tower "
          "clock strikes every hour, and at noon a keeper winds it while visitors watch. Photographs are welcome without flash. "
          "There is a lift to the second floor, a cafe in the yard, and a shop that sells kits. Dogs may come in if they are carried. "
          "Guided tours begin at eleven and at three. ") * 3
QUESTIONS = ["When does the museum open?", "What does a ticket cost?", "May I take photographs?", "Is there a lift?",
             "Can my dog come in?", "When is the next tour?", "Who winds the clock?", "Where is the cafe?"]
POET = ("You write short poems about trees. Rhyme where you can, be kind to children, and never use more than eight lines. Ash, oak, "
        "hazel and alder grow in the wood behind the school, and each of them has a voice of its own. ")
STEM_WITH_EIGHT = """() => {
  const { nodes, buds } = window.coppice.tree;
  const stem = nodes.find((node) => nodes.filter((other) => other.parent === node.id).length >= 8);
  const branches = stem ? nodes.filter((node) => node.parent === stem.id && node.holders > 0) : [];
  const decoding = document.querySelector("#requests .chip.decode");
  return buds.length >= 8 && stem?.holders >= 8 && branches.length >= 8 && decoding ? { stem, branches } : null;
}"""


@pytest.fixture(scope="module")
def server():
    with Coppice("--kv-bytes", "256MiB", "--drain-seconds", "1", "--temp", "0.3") as server:
        yield server
        assert server.end() == 0


def chat(server, system, question, **fields):
    return server.post("/v1/chat/completions", {"messages": [{"role": "system", "content": system},
                                                             {"role": "user", "content": question}]} | fields)


def burst(server, system=SYSTEM, tokens=160, **fields):
    """Eight requests at once, in the background."""
    fields = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0} | fields
    pool = ThreadPoolExecutor(8)
    for question in QUESTIONS:
        pool.submit(chat, server, system, question, **fields)
    return pool


def test_an_empty_server_says_how_to_begin(visit):
    with Coppice("--kv-bytes", "64MiB") as server:
        tab = visit(server.url).live()
        assert tab.page.locator("#empty").is_visible()
        assert "Nothing has grown yet" in tab.page.inner_text("#empty")
        tab.page.click("#burst")
        tab.wait("() => window.coppice.tree.nodes.length >= 9")
        assert tab.page.locator("#empty").is_hidden()
        tab.wait("() => document.querySelectorAll('#requests tr').length >= 8")
        assert server.idle_stats()["requests"]["finished"] == 8
        tab.close()


def test_a_burst_that_fails_says_so(visit):
    """And asks for no key, which is not what is wrong."""
    with Coppice("--kv-bytes", "64MiB") as server:
        tab = visit(server.url).live()
        tab.page.route("**/v1/completions", lambda route: route.abort())
        tab.page.click("#burst")
        tab.wait("() => document.getElementById('burst-failed').textContent.startsWith('That failed: ')")
        assert not tab.page.locator("#settings[open]").count()
        tab.page.unroute("**/v1/completions")
        tab.page.click("#burst")
        tab.wait("() => window.coppice.tree.nodes.length >= 9")
        tab.complaints.clear()  # the browser tells of the request that was aborted
        tab.close()


def set_the_scene(server, tab):
    """What a picture shows besides the burst: other texts that were used before, and a chat that has branched."""
    for end in ("for children", "for a gardener", "in three lines"):
        chat(server, POET, f"Write a poem about an old ash tree, {end}.", max_tokens=60)
    chat(server, SYSTEM, "I have one hour. What should I see?", max_tokens=1)
    tab.page.click(".system summary")
    tab.page.fill("#chat-system", SYSTEM)
    tab.page.click(".system summary")
    tab.page.fill("#chat-tokens", "60")
    tab.page.select_option("#chat-n", "2")
    tab.page.fill("#chat-input", "I have one hour. What should I see?")
    tab.page.keyboard.press("Enter")
    tab.wait("() => document.querySelectorAll('.message').length === 2 && !document.querySelector('.message.running')")


def test_a_burst_of_eight_is_one_stem_with_eight_branches(server, visit, request):
    screenshots = request.config.getoption("--screenshots")
    tab = visit(server.url, viewport={"width": 1360, "height": 1180 if screenshots else 900}).live()
    if screenshots:
        set_the_scene(server, tab)
    pool = burst(server)
    seen = tab.wait(STEM_WITH_EIGHT)
    assert len(seen["branches"]) == 8
    assert seen["stem"]["tokens"] > 300
    assert "visitor desk" in seen["stem"]["text"]
    if screenshots:
        tab.page.mouse.move(5, 5)
        tab.page.wait_for_timeout(1200)
        tab.page.screenshot(path=REPO / "docs/page.png")
    pool.shutdown()
    tab.wait("() => window.coppice.tree.buds.length === 0")
    assert "% of" in tab.page.inner_text("#figures")


def test_a_hit_shows(server, visit):
    chat(server, "A hit. " + SYSTEM, "When does it open?", max_tokens=4)
    tab = visit(server.url).live()
    tab.wait("() => window.coppice.tree.nodes.length > 0")
    tab.page.evaluate("""() => {
      window.glowed = 0;
      const { tree } = window.coppice, glow = tree.glow.bind(tree);
      tree.glow = (...args) => { window.glowed += 1; return glow(...args); };
    }""")
    before = tab.page.inner_text("#saved-tokens")
    cached = chat(server, "A hit. " + SYSTEM, "When does it close?", max_tokens=4)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 300
    tab.wait("() => window.glowed > 3")
    tab.wait("(before) => document.getElementById('saved-tokens').textContent !== before", before)


def test_what_came_from_a_second_tier_has_a_colour_of_its_own(visit, tmp_path):
    tier, text = ["--kv-dir", str(tmp_path / "kv"), "--kv-dir-free", "0"], prompt(400)
    with start_with_store(*tier) as before:
        ask(before, text)
        assert before.end() == 0
    with start_with_store(*tier) as after:
        tab = visit(after.url).live()
        assert tab.page.locator("#stored-key").is_visible()
        _, usage, _ = ask(after, text)
        loaded = usage["cached"]
        assert loaded > 300
        row = tab.page.locator("#requests tr", has_text=f"{loaded} of these from the second tier")
        row.wait_for()
        parts = row.evaluate("""(row) => Object.fromEntries(["cached", "loaded", "computed"].map((name) => {
          const part = row.querySelector("." + name);
          return [name, { width: part.getBoundingClientRect().width, colour: getComputedStyle(part).backgroundColor }];
        }))""")
        assert parts["loaded"]["width"] > 10 * parts["computed"]["width"] and parts["cached"]["width"] == 0, parts
        assert len({part["colour"] for part in parts.values()}) == 3, parts
        tab.wait("() => window.coppice.tree.nodes.some((node) => node.stored > 300)")
        tab.page.click("#toggle-outline")
        assert "a second tier has" in tab.page.inner_text("#outline")
        tab.close()


def test_why_a_prefix_missed_is_marked(server, visit):
    tab = visit(server.url).live()
    tab.wait("() => window.coppice.tree.requests !== undefined")
    chat(server, "Today is Monday, the first of May. " + SYSTEM, "Hello", max_tokens=2)
    chat(server, "Today is Friday, the first of May. " + SYSTEM, "Hello", max_tokens=2)
    tab.wait("() => [...document.querySelectorAll('mark.asked')].some((mark) => mark.textContent.includes('Friday'))")
    row = tab.page.locator(".why-row", has=tab.page.locator("mark.asked", has_text="Friday"))
    assert "goes on differently" in row.inner_text()
    assert "Monday" in row.locator("mark.found").inner_text()


def test_a_chat_branches(server, visit):
    tab = visit(server.url).live()
    page = tab.page
    page.fill("#chat-tokens", "12")
    page.select_option("#chat-n", "3")
    page.fill("#chat-input", "Name three trees that are coppiced in Europe, please.")
    page.keyboard.press("Enter")
    tab.wait("() => document.querySelectorAll('.message').length === 2 && !document.querySelector('.message.running')")
    assert "1 of 3" in page.inner_text(".message.assistant")
    page.select_option("#chat-n", "1")
    page.locator(".message.user button", has_text="Edit").click()
    page.fill(".edit textarea", "Name three birds that live in coppices, please.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    tab.wait("() => document.querySelector('.message.user .switcher')?.textContent.includes('2 of 2')")
    tab.wait("() => document.querySelectorAll('.message').length === 2 && !document.querySelector('.message.running')")
    page.locator(".message.user .switcher button").first.click()
    assert "trees" in page.inner_text(".message.user .text")
    # The tree has the fork: both messages stand on what they have in common.
    tab.wait("""() => {
      const { nodes } = window.coppice.tree, has = (text) => nodes.find((node) => node.text.includes(text));
      const trees = has("Name three trees"), birds = has("Name three birds");
      return trees && birds && trees.id !== birds.id;
    }""")


def test_a_wrong_key_is_refused(visit):
    with Coppice("--kv-bytes", "64MiB", "--api-key", "sk-right") as server:
        tab = visit(server.url)
        page = tab.page
        page.locator("#settings[open]").wait_for()
        assert "wants an API key" in page.inner_text("#settings-why")
        page.fill("#key", "sk-wrong")
        page.keyboard.press("Enter")
        tab.wait("() => document.getElementById('settings-why').textContent.includes('Incorrect API key')")
        page.fill("#key", "sk-right")
        page.keyboard.press("Enter")
        tab.live()
        page.fill("#chat-tokens", "4")
        page.fill("#chat-input", "Hello")
        page.keyboard.press("Enter")
        tab.wait("() => document.querySelector('.message.assistant:not(.running)')")
        # The browser itself writes a line for each 401.
        assert all("401" in complaint for complaint in tab.complaints), tab.complaints
        tab.complaints.clear()
        tab.close()


HOSTILE = """Hello <img src=x onerror="window.hacked=1"> <script>window.hacked=2</script>
[click](javascript:window.hacked=3) ![pixel](https://example.com/p.png) [fine](https://example.com/a)

<iframe src="https://example.com"></iframe><style>body{display:none}</style>
<form action="https://example.com"><input id=chat-input></form>

    <svg onload="window.hacked=4">

| a | b |
|---|---|
| `<b>` | **bold** &lt;i&gt; |
"""


def test_a_hostile_answer_stays_text(server, visit):
    tab = visit(server.url).live()
    page = tab.page
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": HOSTILE}, "finish_reason": "stop"}]})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        status=200, content_type="text/event-stream", body=f"data: {event}\n\ndata: [DONE]\n\n"))
    page.fill("#chat-input", "<b>Be evil</b>")
    page.keyboard.press("Enter")
    tab.wait("() => document.querySelector('.message.assistant:not(.running) table')")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    answer = page.locator(".message.assistant .text")
    text = answer.inner_text()
    for shown in ("<img src=x", "<script>", "<iframe", "<form action", "<svg onload", "<b>", "<i>", "pixel"):
        assert shown in text, (shown, text)
    assert answer.locator("img, script, iframe, style, form, input, svg").count() == 0
    assert answer.locator("a").evaluate_all("(all) => all.map((a) => a.href)") == ["https://example.com/a"]
    assert page.inner_text(".message.user .text") == "<b>Be evil</b>"


DRAW = """async (texts) => {
  const { showMarkdown } = await import("/page/markdown.js");
  const target = document.createElement("div"), start = performance.now();
  for (const text of texts) showMarkdown(target, text);
  return [target.innerHTML, target.textContent, performance.now() - start];
}"""


COSTLY = ["*a ", "_a ", "**a ", "***a ", "*a_b ", ">", "> ", "- ", "- - ", "[", "[a](", "![", "~", "`", "<", "|a", "[x](<", "a|b\n-|-\n", "- a\n",
          "1. a\n", "> a\n", "<a b=\""]


def test_costly_answers_are_plain_text(server, visit):
    """24 KB of "*a " took 3.9 s for each draw, 5,000 ">" overflowed the stack. The limit leaves room for a busy machine."""
    tab = visit(server.url).live()
    for piece in COSTLY:
        text = (piece * 24_000)[:24_000]
        _, shown, took = tab.page.evaluate(DRAW, ["Before.\n\n" + text])
        assert shown.startswith("Before.")
        assert took < 3000, piece
        if piece in ("*a ", "[a]("):
            assert text in shown


def test_an_answer_that_grows_is_drawn_as_at_once(server, visit):
    text = ("# Trees\n\nAn *ash* has `keys`,\nan **oak** has [acorns][1].\n\n- one\n- two\n\n  still two\n\n1. a\n2. b\n\n```c\nint\tmain;\n\n"
            "\treturn;\n```\n> a quote\ngoes on\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nTitle\n===\n\n[1]: https://example.com/a\n\nSee [it][1].\n\n***\n"
            "The\r\nend & more.") * 2
    tab = visit(server.url).live()
    whole = tab.page.evaluate(DRAW, [text])[0]
    for step in (1, 7, 50):
        grown = tab.page.evaluate(DRAW, [text[:end] for end in range(step, len(text) + step, step)])[0]
        # A definition that comes later finds no text before it, unless all is drawn anew.
        for tag in ("<h3>", "<p>", "<li>", "<pre>", "<code>", "<blockquote>", "<table>", "<strong>", "<em>", "<hr>", "<ul>", "<ol"):
            assert grown.count(tag) == whole.count(tag), (step, tag)
    # What can't change any more stays where it is.
    assert tab.page.evaluate("""async () => {
      const { showMarkdown } = await import("/page/markdown.js");
      const target = document.createElement("div");
      showMarkdown(target, "One.\\n\\nTwo.\\n\\nThr");
      const [one, two, three] = target.children;
      showMarkdown(target, "One.\\n\\nTwo.\\n\\nThree *and*");
      return target.children[0] === one && target.children[1] === two && target.children[2] !== three && target.textContent;
    }""") == "One.Two.Three and"


def test_what_a_model_thinks_is_apart(server, visit):
    tab = visit(server.url).live()
    page = tab.page
    deltas = [{"role": "assistant"}, {"reasoning_content": "Hm, <b>trees</b>. "}, {"reasoning_content": "Many."}, {"content": "They *grow*."}]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body="".join(
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n" for delta in deltas) + "data: [DONE]\n\n"))
    for _ in range(2):
        page.fill("#chat-input", "Why?")
        page.keyboard.press("Enter")
        tab.wait("() => document.querySelector('.message.assistant:not(.running) em')")
    answer = page.locator(".message.assistant").first
    assert answer.locator(".text").inner_text() == "They grow."
    assert answer.locator(".thought p").is_hidden()
    answer.locator(".thought summary").click()
    assert answer.locator(".thought p").inner_text() == "Hm, <b>trees</b>. Many."
    sent = page.evaluate("window.coppice.chat.tree.path().map((message) => message.content)")
    assert sent == ["Why?", "They *grow*."] * 2


def test_a_page_cannot_write_markup(server, visit):
    """The policy is there if the code should ever forget."""
    tab = visit(server.url).live()
    refused = tab.page.evaluate("""() => {
      try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); return false; } catch { return true; }
    }""")
    assert refused
    tab.complaints.clear()


def test_keys_walk_along_the_tree(server, visit):
    chat(server, SYSTEM, "By keys?", max_tokens=2)
    chat(server, SYSTEM, "Or by pointer?", max_tokens=2)
    tab = visit(server.url).live()
    page = tab.page
    tab.wait("() => window.coppice.tree.nodes.length >= 3")
    page.focus("#tree")
    page.keyboard.press("Home")
    tab.wait("() => document.getElementById('tree-said').textContent.includes('tokens from position 0')")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.click("#toggle-outline")
    tab.wait("() => document.querySelectorAll('#outline li').length >= 3")
    assert "hits." in page.inner_text("#outline")


def test_stems_stand_on_the_ground_at_another_size(server, visit):
    chat(server, SYSTEM, "Do I grow?", max_tokens=2)
    tab = visit(server.url).live()
    tab.wait("() => window.coppice.tree.nodes.length > 0")
    tab.page.wait_for_timeout(700)  # they have grown up
    above = tab.page.evaluate("""async () => {
      const { tree } = window.coppice, height = tree.painter.height;
      document.getElementById("stage").style.minHeight = `${height + 200}px`;
      while (tree.painter.height === height) await new Promise(requestAnimationFrame);
      await new Promise(requestAnimationFrame);
      return [...tree.items.values()].filter((item) => item.node.parent === null).map((item) => tree.painter.height - item.now.y0);
    }""")
    assert above and all(abs(y - 30) < 0.5 for y in above), above  # they may be growing still, by less than anybody sees


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(server, visit, scheme, request):
    chat(server, SYSTEM, "Can everybody use it?", max_tokens=2)
    tab = visit(server.url, color_scheme=scheme, bypass_csp=True).live()
    tab.wait("() => document.querySelectorAll('#requests tr').length > 0")
    found = Axe().run(tab.page).response["violations"]
    serious = [(each["id"], [node["target"] for node in each["nodes"]]) for each in found if each["impact"] in ("serious", "critical")]
    assert serious == []


def test_a_phone(server, visit, request):
    with ThreadPoolExecutor(1) as pool:
        tab = visit(server.url, viewport={"width": 390, "height": 844}, color_scheme="dark", is_mobile=True, has_touch=True).live()
        chat(server, SYSTEM, "On a telephone?", max_tokens=2)
        pool.submit(chat, server, SYSTEM, "On a phone?", max_tokens=2)
        tab.wait("() => document.querySelector('.why-line mark')")
    # Nothing is wider than the screen; of the requests' table the figures may be, as it scrolls, but not what it explains.
    assert tab.page.locator(".why-line").evaluate_all("(lines) => lines.every((line) => line.getBoundingClientRect().right <= innerWidth)")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if request.config.getoption("--screenshots"):
        more = burst(server)
        tab.wait(STEM_WITH_EIGHT)
        tab.page.wait_for_timeout(1000)
        tab.page.screenshot(path=REPO / "docs/page-phone.png")
        more.shutdown()


def test_the_page_ends_no_server_late(visit):
    """A page that is open doesn't keep a server from ending."""
    with Coppice("--kv-bytes", "64MiB", "--drain-seconds", "60") as server:
        tab = visit(server.url).live()
        assert server.end() == 0
        tab.page.locator("#status.lost").wait_for()
        tab.page.close()
        tab.complaints.clear()  # the browser has told of each attempt to connect


def test_ten_thousand_nodes(visit, tmp_path):
    model = tmp_path / "small.gguf"
    shape = ["--types", "q8_0", "--embd", "64", "--ff", "64", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--head-size", "32",
             "--context", "2048"]
    subprocess.run([sys.executable, REPO / "bench/random_model.py", *shape, "--vocabulary", model_path(), model], check=True)
    with Coppice("--kv-bytes", "256MiB", "--block-size", "8", "--max-batch", "64", model=str(model)) as server:
        stem = list(range(1000, 1064))
        prompts = [stem + [2000 + i // 100] * 8 + [4000 + i % 100] * 9 for i in range(10_000)]
        for first in range(0, len(prompts), 100):
            server.post("/v1/completions", {"prompt": prompts[first:first + 100], "max_tokens": 1})
        assert server.stats()["tree_nodes"] > 10_000
        tab = visit(server.url).live()
        tab.wait("() => window.coppice.tree.nodes.length > 500")
        summary = tab.page.inner_text("#tree-summary")
        assert "branches more not shown" in summary, summary
        # It goes on to follow what happens, and to answer.
        server.post("/v1/completions", {"prompt": stem + [7] * 20, "max_tokens": 1})
        tab.wait("() => window.coppice.tree.nodes.some((node) => node.begin === 64 && node.tokens < 100 && node.idle_seconds < 60)")
        tab.page.mouse.move(500, 400)
        tab.page.click("#toggle-outline")
        assert tab.page.locator("#outline li").count() >= 100
        tab.page.click("#toggle-outline")
        tab.page.wait_for_timeout(1000)
        print("longest frame:", tab.page.evaluate("window.coppice.tree.frames.longest"), "ms")
        tab.close()


DROP = """() => {
  const data = new DataTransfer();
  data.items.add(window.dropped);
  document.getElementById("chat-form").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_a_picture_is_dropped_into_the_chat(visit, tmp_path):
    model = write_model("smolvlm", tmp_path)
    with Coppice("--kv-bytes", "16MiB", "--ctx", "512", model=model) as server:
        tab = visit(server.url).live()
        page = tab.page
        page.fill("#chat-tokens", "4")
        bytes_ = list(picture("page"))
        page.evaluate("(bytes) => { window.dropped = new File([new Uint8Array(bytes)], 'p.png', { type: 'image/png' }); }", bytes_)
        page.evaluate(DROP)
        tab.wait("() => document.querySelectorAll('#chat-pictures img').length === 1")
        page.fill("#chat-input", words(30, 31))
        page.keyboard.press("Enter")
        done = "() => document.querySelectorAll('.message').length === 2 && !document.querySelector('.message.running')"
        tab.wait(done)
        assert page.locator(".message.user .pictures img").count() == 1
        assert page.locator("#chat-pictures img").count() == 0
        page.locator(".message.user button", has_text="Edit").click()
        page.fill(".edit textarea", words(40, 41))
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        tab.wait("() => document.querySelector('.message.user .switcher')?.textContent.includes('2 of 2')")
        tab.wait(done)
        assert page.locator(".message.user .pictures img").count() == 1
        assert "prompt tokens from the cache" in page.inner_text(".message.assistant .hint")
        cached = int(page.inner_text(".message.assistant .hint").split(" ")[0])
        assert cached >= 48  # three stretches of 16 rows
        tab.wait("() => window.coppice.tree.nodes.some((node) => node.text.includes('[image 128x64, 16 tokens]'))")
        # One stem, which both questions stand on.
        tab.wait("() => window.coppice.tree.nodes.filter((node) => node.text.startsWith('<s>')).length === 1")
        tab.close()
