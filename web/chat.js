// The chat: sends, streams the answers, and lets one go back: an edited message and each of n answers is a branch.

import { ChatTree } from "./chat_tree.js";
import { count, element, seconds } from "./format.js";
import { showMarkdown } from "./markdown.js";
import { pictureList, Pictures } from "./pictures.js";
import { events, request, settings } from "./server.js";

export class Chat {
  constructor(page, onRefused) {
    this.page = page;
    this.onRefused = onRefused;
    this.tree = new ChatTree();
    this.pictures = new Pictures(page);
    this.abort = null;
    this.drawing = false;
    page["chat-form"].addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.tree.path().at(-1) ?? this.tree.root, page["chat-input"].value);
    });
    page["chat-input"].addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      page["chat-form"].requestSubmit();
    });
    page["chat-stop"].addEventListener("click", () => this.abort?.abort());
    page["chat-new"].addEventListener("click", () => {
      this.abort?.abort();
      this.tree = new ChatTree();
      this.draw();
      page["chat-input"].focus();
    });
    this.draw();
  }

  /** A message behind `parent`, and its answers. `pictures`: null: those that wait in the form. */
  async ask(parent, text, pictures = null) {
    if (!text.trim() || this.abort) return;
    this.page["chat-input"].value = "";
    const question = this.tree.add(parent, "user", text.trim(), pictures ?? this.pictures.takeAll());
    await this.answer(question, Number(this.page["chat-n"].value));
  }

  async answer(question, n) {
    const answers = Array.from({ length: n }, () => this.tree.add(question, "assistant", ""));
    this.tree.choose(answers[0]);
    answers.forEach((answer) => { answer.state = "running"; });
    this.abort = new AbortController();
    this.draw();
    const start = performance.now();
    let first = 0;
    try {
      const body = {
        messages: ChatTree.messages(question, this.page["chat-system"].value.trim()), n, stream: true,
        stream_options: { include_usage: true }, max_tokens: Math.max(1, Number(this.page["chat-tokens"].value) || 256),
      };
      if (settings.salt) body.cache_salt = settings.salt;
      const reply = await request("/v1/chat/completions", { body, signal: this.abort.signal });
      for await (const event of events(reply)) {
        if (event.error) throw new Error(event.error.message);
        for (const choice of event.choices ?? []) {
          const { content = "", reasoning_content: thought = "" } = choice.delta ?? {};
          if (content || thought) first ||= performance.now() - start;
          answers[choice.index].content += content ?? "";
          answers[choice.index].thought += thought ?? "";
        }
        if (event.usage) this.note(answers, event.usage, first);
        this.drawSoon();
      }
      answers.forEach((answer) => { answer.state = ""; });
    } catch (error) {
      const stopped = this.abort.signal.aborted;
      answers.forEach((answer) => { answer.state = stopped ? "stopped" : "failed"; });
      if (!stopped) answers[0].note = error.message;
      if (error.status === 401) this.onRefused(error);
    }
    this.abort = null;
    this.draw();
  }

  note(answers, usage, first) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const text = `${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens from the cache · first token after ${seconds(first / 1000)}`;
    answers.forEach((answer) => { answer.note = text; });
  }

  drawSoon() {
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(() => {
      this.drawing = false;
      this.draw();
    }, 80);
  }

  draw() {
    const list = this.page.messages;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    const path = this.tree.path();
    this.page["chat-stop"].hidden = !this.abort;
    this.page["chat-send"].hidden = Boolean(this.abort);
    if (path.length === 0) {
      list.replaceChildren(element("li", { className: "message none" },
        "Edit a message you sent, or ask for several answers, and the tree grows a branch."));
      return;
    }
    const shown = [...list.children];
    path.forEach((message, i) => {
      const old = shown[i];
      const state = `${message.parent.chosen}/${message.parent.children.length} ${message.state} ${message.note} ${message.content.length} ${message.thought.length} ${Boolean(this.abort)}`;
      if (old?.message === message && old.state === state) return;
      const made = this.messageElement(message);
      made.message = message;
      made.state = state;
      if (old) old.replaceWith(made);
      else list.append(made);
    });
    [...list.children].slice(path.length).forEach((extra) => extra.remove());
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  messageElement(message) {
    message.drawn ??= element("div", { className: "text" });  // kept: only what changes is drawn
    const text = message.drawn;
    if (message.role === "user") text.textContent = message.content;
    else if (message.content) showMarkdown(text, message.content);
    const who = message.role === "user" ? "You" : "Answer";
    const item = element("li", { className: `message ${message.role} ${message.state}` },
      element("div", { className: "message-head" }, element("b", {}, who), this.switcher(message), this.actions(message, text)), this.thought(message), pictureList(message.pictures), text);
    if (message.state === "running") item.setAttribute("aria-busy", "true");
    if (message.note) item.append(element("p", { className: "hint", role: message.state === "failed" ? "alert" : "note" }, message.note));
    return item;
  }

  /** What a model thinks before it answers: open until the answer begins, then as one wishes. */
  thought(message) {
    if (!message.thought) return null;
    return element("details", { className: "thought", open: message.thoughtOpen ?? message.content === "", ontoggle: (event) => {
      if (event.target.isConnected && message.content !== "") message.thoughtOpen = event.target.open;
    } }, element("summary", {}, message.content === "" ? "Thinking" : "Thought"), element("p", {}, message.thought.trim()));
  }

  /** One of several branches. */
  switcher(message) {
    const { children } = message.parent;
    if (children.length < 2) return null;
    const at = children.indexOf(message);
    const step = (by, name) => element("button", {
      type: "button", className: "quiet small", ariaLabel: name, disabled: at + by < 0 || at + by >= children.length,
      onclick: () => {
        this.tree.choose(children[at + by]);
        this.draw();
      },
    }, by < 0 ? "‹" : "›");
    return element("span", { className: "switcher" }, step(-1, "Branch before"), `${at + 1} of ${children.length}`, step(1, "Next branch"));
  }

  actions(message, text) {
    if (this.abort) return null;
    if (message.role === "assistant")
      return element("button", { type: "button", className: "quiet small", onclick: () => this.answer(message.parent, 1) }, "Another");
    return element("button", { type: "button", className: "quiet small", onclick: () => this.edit(message, text) }, "Edit");
  }

  edit(message, text) {
    const input = element("textarea", { rows: 3, value: message.content, ariaLabel: "Edited message" });
    const form = element("form", { className: "edit" }, input, element("div", { className: "chat-row" },
      element("button", { type: "submit" }, "Send as a branch"),
      element("button", { type: "button", className: "quiet", onclick: () => form.replaceWith(text) }, "Cancel")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.replaceWith(text);
      this.ask(message.parent, input.value, message.pictures);
    });
    text.replaceWith(form);
    input.focus();
  }
}
