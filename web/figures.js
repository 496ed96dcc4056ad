// What sharing saved since the server started, and how full the pool is.

import { bytes, count, element, percent, seconds } from "./format.js";

const cards = [
  ["saved-tokens", "Prompt tokens not computed again",
    ({ saved, totals }) => [count(saved.tokens), `${percent(saved.tokens, totals.prompt_tokens)} of ${count(totals.prompt_tokens)} prompt tokens came from the tree`]],
  ["saved-seconds", "Computing time saved",
    ({ saved, prefill_tokens_per_second: speed }) => [seconds(saved.seconds), speed > 0 ? `prompts run at ${count(speed)} tokens a second` : "of prompts, at their speed"]],
  ["saved-bytes", "Keys and values not written again",
    ({ saved, blocks, block_bytes }) => [bytes(saved.bytes), `${bytes(blocks.spared * block_bytes)} spared at this moment`]],
  ["running", "Requests now",
    ({ running, waiting, totals }) => [`${count(running)} running`, `${count(waiting)} waiting, ${count(totals.finished)} finished`]],
];

export class Figures {
  constructor(page) {
    this.page = page;
    this.values = cards.map(([id, name]) => {
      const value = element("dd", { id, className: "figure" }, "–"), more = element("dd", { className: "hint" });
      page.figures.append(element("div", { className: "card" }, element("dt", {}, name), value, more));
      return [value, more];
    });
    this.parts = ["in_use", "cached", "free"].map((name) => element("i", { className: `part ${name}` }));
    page.pool.append(...this.parts);
  }

  show(frame) {
    cards.forEach(([, , tell], i) => {
      const [value, more] = tell(frame);
      change(this.values[i][0], value);
      change(this.values[i][1], more);
    });
    const { blocks, block_bytes: each, totals } = frame;
    const shares = [blocks.in_use, blocks.cached, blocks.free];
    this.parts.forEach((part, i) => { part.style.flexGrow = shares[i]; });
    const text = `${bytes(blocks.in_use * each)} in use, ${bytes(blocks.cached * each)} cached, ` +
      `${bytes(blocks.free * each)} free of ${bytes(blocks.total * each)}`;
    change(this.page["pool-text"], text);
    this.page.pool.setAttribute("aria-label", text);
    this.page["stored-key"].hidden = frame.tiers.length === 0;
    change(this.page["tiers-text"], outside(frame.tiers));
    change(this.page["pool-counts"], `${count(totals.nodes)} nodes in all namespaces · ${count(totals.forks)} blocks forked · ` +
      `${count(totals.evictions)} evicted · ${count(totals.preemptions)} requests preempted`);
  }
}

const PLACES = { host: "In the host's memory", disk: "On the disk", redis: "In Redis" };

/** What outside of the pool blocks lie in. How many there are in Redis nobody counts. */
function outside(tiers) {
  return tiers.map(({ tier, on, pieces, bytes: held }) => {
    const what = pieces > 0 ? `${count(pieces)} blocks, ${bytes(held)}` : on ? "works" : "";
    return `${PLACES[tier]}: ${[what, on ? "" : "doesn't work now"].filter(Boolean).join(", ")}`;
  }).join(" · ");
}

/** Leaves an element alone that says it already: screen readers and selections stay. */
export function change(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
