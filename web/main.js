// Puts the page together.

import { sendBurst } from "./burst.js";
import { Chat } from "./chat.js";
import { change, Figures } from "./figures.js";
import { count, element, oneLine } from "./format.js";
import { Requests } from "./requests.js";
import { Feed, request, ServerError, settings, withQuery } from "./server.js";
import { Tree } from "./tree.js";
import { sentence } from "./tree_paint.js";

const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((part) => [part.id, part]));
const figures = new Figures(page), requests = new Requests(page);
const tree = new Tree(page.tree, showNode);
const feed = new Feed(showFrame, showState);
const chat = new Chat(page, showState);
let last = null, outlined = "";

function showFrame(frame) {
  page.loading.hidden = !frame.loading;
  if (frame.loading) {
    page["loading-progress"].value = frame.loading.progress;
    change(page["loading-stage"], `${frame.loading.stage}, ${Math.round(frame.loading.progress * 100)} %`);
    showStatus("loading", "loading");
    return;
  }
  last = frame;
  showStatus("live", "live");
  change(page.model, frame.model);
  page["chat-picture"].hidden = !frame.vision;
  const { nodes, left_out: left } = frame.tree;
  const hidden = left + nodes.reduce((sum, node) => sum + node.left_out, 0);
  const standing = frame.requests.reduce((sum, one) => sum + one.nodes.length, 0);
  change(page["tree-summary"], nodes.length === 0 ? "" : `${count(nodes.length)} ${nodes.length === 1 ? "node" : "nodes"}${hidden > 0 ? `, ${count(hidden)} branches more not shown` : ""}` +
    `${standing > 0 ? `, ${count(standing)} answers growing` : ""}`);
  page.empty.hidden = nodes.length > 0 || frame.requests.some((one) => one.stage !== "ended");
  tree.show(frame);
  figures.show(frame);
  requests.show(frame);
  if (!page.outline.hidden) showOutline();
}

function showStatus(state, text) {
  page.status.className = `status ${state}`;
  change(page.status, text);
}

/** A state of the feed's, or a refusal. */
function showState(state) {
  if (!(state instanceof ServerError)) return state === "lost" ? showStatus("lost", "no connection; trying again") : undefined;
  showStatus("lost", state.status === 401 ? "a key is wanted" : "refused");
  change(page["settings-why"], state.status === 401 && !settings.key ? "This server wants an API key." : state.message);
  openSettings();
}

function openSettings() {
  page.key.value = settings.key;
  page.salt.value = settings.salt;
  if (!page.settings.open) page.settings.showModal();
}

page["open-settings"].addEventListener("click", () => {
  change(page["settings-why"], "");
  openSettings();
});
page["settings-form"].addEventListener("submit", () => {
  settings.set(page.key.value.trim(), page.salt.value);
  showStatus("", "connecting");
  feed.start();
});

page.burst.addEventListener("click", async () => {
  page.burst.disabled = true;
  change(page["burst-failed"], "");
  try {
    await sendBurst();
  } catch (error) {
    if (error.status === 401) showState(error);
    else change(page["burst-failed"], `That failed: ${error.message}`);
  }
  page.burst.disabled = false;
});

// --- a node's text ---

function showNode(node, x, y, open) {
  page.tip.hidden = !node;
  if (!node) return;
  const common = node.own_text === undefined ? "" : node.text.slice(0, node.text.length - node.own_text.length);
  const text = element("p", { className: "tip-text" });
  if (node.text === undefined) text.textContent = "The operator shows no texts here.";
  else text.append(element("span", { className: "dim" }, oneLine(common, 60)), common && " ", oneLine(node.own_text ?? node.text, 90));
  page.tip.replaceChildren(text, element("p", { className: "hint" }, sentence(node)));
  const box = page.stage.getBoundingClientRect();
  page.tip.style.left = `${Math.max(8, Math.min(x - 130, box.width - 276))}px`;
  page.tip.style.top = `${Math.max(8, Math.min(y + 14, box.height - 150))}px`;
  change(page["tree-said"], `${oneLine(node.own_text ?? node.text ?? "", 90)}. ${sentence(node)}`);
  if (open && node.text !== undefined) showWholeText(node, text);
}

async function showWholeText(node, target) {
  const reply = await request(withQuery("/v1/cache/tree", { nodes: 128, text: 500 })).catch(() => null);
  const found = (await reply?.json())?.nodes.find((other) => other.id === node.id);
  if (found && target.isConnected) target.textContent = found.text;
}

// --- the same as a list ---

page["toggle-outline"].addEventListener("click", () => {
  const list = page.outline.hidden;
  page.outline.hidden = !list;
  page.tree.hidden = list;
  page["toggle-outline"].setAttribute("aria-pressed", String(list));
  outlined = "";
  if (list) showOutline();
});

function showOutline() {
  const nodes = (last?.tree.nodes ?? []).slice(0, 300);
  const now = JSON.stringify(nodes.map((node) => [node.id, node.tokens, node.holders, node.hits, node.left_out]));
  if (now === outlined) return;
  outlined = now;
  const lists = new Map([[null, element("ul")]]);
  for (const node of nodes) {
    const item = element("li", {}, element("b", {}, oneLine(node.own_text ?? node.text ?? "(text not shown)", 70)), ` ${sentence(node)}`);
    const below = element("ul");
    lists.set(node.id, below);
    lists.get(node.parent)?.append(item);
    if (nodes.some((other) => other.parent === node.id)) item.append(below);
    if (node.left_out > 0) item.append(element("p", { className: "hint" }, `${count(node.left_out)} branches more`));
  }
  page.outline.replaceChildren(lists.get(null));
}

Object.assign(window, { coppice: { tree, chat } });  // for the browser's console, and the test
feed.start();
