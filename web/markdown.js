// A model's text as elements. marked reads the Markdown; its tokens become elements one by one, and texts stay texts. No HTML is
// ever parsed, so that there is none to sanitise: what a model writes can't run, load anything, or look like the page's controls.
// The page's policy holds it to that (require-trusted-types-for).

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "\"", "&#39;": "'" };

/** marked escapes some tokens' texts for HTML. */
const plain = (text) => text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity]);

function made(name, children, properties = {}) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function link(token) {
  const inner = nodes(token.tokens);
  let url = null;
  try {
    url = new URL(plain(token.href));
  } catch {
    return inner;  // relative: it would be one of ours
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return inner;
  return [made("a", inner, { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" })];
}

function table(token) {
  const row = (cells, name) => made("tr", cells.map((cell) => made(name, nodes(cell.tokens))));
  return made("table", [made("thead", [row(token.header, "th")]), made("tbody", token.rows.map((cells) => row(cells, "td")))]);
}

const inside = (name) => (token) => [made(name, nodes(token.tokens))];

const makers = {
  space: () => [],
  hr: () => [made("hr", [])],
  br: () => [made("br", [])],
  paragraph: inside("p"),
  blockquote: inside("blockquote"),
  strong: inside("strong"),
  em: inside("em"),
  del: inside("del"),
  heading: (token) => [made(`h${Math.min(6, token.depth + 2)}`, nodes(token.tokens))],
  code: (token) => [made("pre", [made("code", [token.text])])],
  codespan: (token) => [made("code", [plain(token.text)])],
  list: (token) => [made(token.ordered ? "ol" : "ul", token.items.map((item) => made("li", nodes(item.tokens))),
    token.ordered && token.start > 1 ? { start: token.start } : {})],
  table: (token) => [table(token)],
  link,
  image: (token) => [token.text],
  html: (token) => [token.raw],
  def: () => [],
  text: (token) => (token.tokens ? nodes(token.tokens) : [plain(token.text)]),
  escape: (token) => [plain(token.text)],
};

function nodes(tokens = []) {
  return tokens.flatMap((token) => makers[token.type]?.(token) ?? [token.raw]);
}

export function showMarkdown(target, text) {
  target.replaceChildren(...nodes(marked.lexer(text, { gfm: true, breaks: true })));
}
