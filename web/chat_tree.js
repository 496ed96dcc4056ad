// A conversation that branches: messages form a tree, and a path through it is what one sees. Plain data.

export class ChatTree {
  constructor() {
    this.root = { role: "root", children: [], chosen: 0, parent: null };
  }

  add(parent, role, content, pictures = []) {
    const message = { role, content, pictures, parent, children: [], chosen: 0, state: "", note: "", thought: "" };
    parent.children.push(message);
    parent.chosen = parent.children.length - 1;
    return message;
  }

  choose(message) {
    message.parent.chosen = message.parent.children.indexOf(message);
  }

  /** The messages that one sees, first to last. */
  path() {
    const path = [];
    for (let at = this.root; at.children.length > 0;) {
      at = at.children[at.chosen];
      path.push(at);
    }
    return path;
  }

  /** Pictures stand before the text. */
  static content({ content, pictures }) {
    if (pictures.length === 0) return content;
    const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    return [...parts, { type: "text", text: content }];
  }

  /** What the server gets of a path that ends with `message`. */
  static messages(message, system) {
    const all = [];
    for (let at = message; at.role !== "root"; at = at.parent) all.unshift({ role: at.role, content: ChatTree.content(at) });
    return system ? [{ role: "system", content: system }, ...all] : all;
  }
}
