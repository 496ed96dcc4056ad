// The requests that run, wait and ended last: times, what came from the cache, and why a prefix missed.

import { count, element, seconds } from "./format.js";
import { change } from "./figures.js";

const STATES = { queued: "waiting", following: "waits for a prefix", prefill: "reads its prompt", decode: "answers", ended: "ended" };
const SHOWN = 40;

/** Line breaks as signs: a snippet is one line. */
const visible = (text) => (typeof text === "string" ? text.replace(/\n/g, "↵") : text);

export class Requests {
  constructor(page) {
    this.page = page;
    this.rows = new Map();
  }

  show(frame) {
    const requests = frame.requests.slice(0, SHOWN);
    const longest = Math.max(1, ...requests.map((request) => request.prompt_tokens));
    const ids = new Set(requests.map((request) => request.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.lines.forEach((line) => line.remove());
      this.rows.delete(id);
    }
    let before = null;
    for (const request of requests) {
      const row = this.rows.get(request.id) ?? this.add(request.id);
      this.fill(row, request, longest);
      if (!row.lines[0].isConnected || row.lines[0].previousElementSibling !== before) {
        if (before) before.after(...row.lines);
        else this.page.requests.prepend(...row.lines);
      }
      before = row.lines.at(-1);
    }
    const more = frame.waiting + frame.running;
    change(this.page["requests-summary"], requests.length === 0 ? "None yet. They appear as they come."
      : `${count(more)} open in all namespaces; the last ones that ended below`);
  }

  add(id) {
    const cell = (className = "") => element("td", { className });
    const row = {
      name: element("th", { scope: "row" }, `#${id}`), state: cell(), prompt: cell("wide"), queue: cell("number"), first: cell("number"),
      answer: cell("number"), chip: element("span", { className: "chip" }), bar: element("div", { className: "bar" }),
      cached: element("i", { className: "part cached" }), loaded: element("i", { className: "part loaded", title: "from the second tier" }), computed: element("i", { className: "part computed" }),
      rest: element("i", { className: "part rest" }), said: element("span", { className: "bar-text" }), why: null, report: null,
    };
    row.state.append(row.chip);
    row.bar.append(row.cached, row.loaded, row.computed, row.rest);
    row.prompt.append(row.bar, row.said);
    row.lines = [element("tr", {}, row.name, row.state, row.prompt, row.queue, row.first, row.answer)];
    this.rows.set(id, row);
    return row;
  }

  fill(row, request, longest) {
    const { stage, prompt_tokens: all, cached_tokens: cached, loaded_tokens: loaded } = request;
    const ended = stage === "ended";
    const computed = ended ? all - cached : Math.max(0, Math.min(all, request.computed_tokens) - cached);
    row.chip.className = `chip ${ended && !request.answered ? "broken" : stage}`;
    change(row.chip, ended && !request.answered ? "ended early" : STATES[stage]);
    row.bar.style.width = `${Math.max(4, (100 * all) / longest)}%`;
    row.cached.style.flexGrow = cached - loaded;
    row.loaded.style.flexGrow = loaded;
    row.computed.style.flexGrow = computed;
    row.rest.style.flexGrow = Math.max(0, all - cached - computed);
    change(row.said, `${count(cached)} of ${count(all)} from the cache${loaded > 0 ? `, ${count(loaded)} of these from the second tier` : ""}`);
    change(row.queue, seconds(request.queue_seconds));
    change(row.first, request.first_token_seconds > 0 ? seconds(request.first_token_seconds) : "–");
    change(row.answer, request.samples > 1 ? `${count(request.completion_tokens)} in ${request.samples}` : count(request.completion_tokens));
    if (request.report && !row.report) this.explain(row, request.report);
  }

  /** One line below the request: where its match ended, with the differing text marked. */
  explain(row, report) {
    row.report = report;
    if (report.ended === "last_token" && !report.loaded_tokens) return;
    const { before, asked, found } = Object.fromEntries(Object.entries(report.text || {}).map(([name, said]) => [name, visible(said)]));
    const line = element("p", { className: "why-line" }, element("b", {}, report.why), " ");
    const text = (...parts) => element("code", { className: "snippet" }, ...parts);
    if (asked) line.append(text(element("span", { className: "dim" }, before ? `…${before}` : ""), element("mark", { className: "asked", title: "the request's text" }, asked)));
    if (found) line.append(" the tree has ", text(element("span", { className: "dim" }, before ? `…${before}` : ""), element("mark", { className: "found", title: "the cached text" }, found)));
    if (report.lost_tokens > 0) line.append(` That cost ${count(report.lost_tokens)} tokens${report.lost_seconds > 0 ? ` (${seconds(report.lost_seconds)})` : ""}.`);
    const cell = element("td", { colSpan: 6 }, line);
    row.lines.push(element("tr", { className: "why-row" }, cell));
    row.lines[0].after(row.lines[1]);
  }
}
