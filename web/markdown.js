// A model's text as elements. marked reads the Markdown; its tokens become elements one by one, and texts stay texts. No HTML is
// ever parsed, so that there is none to sanitise: what a model writes can't run, load anything, or look like the page's controls.
// The page's policy holds it to that (require-trusted-types-for).
//
// What a model writes may take marked minutes, or overflow its stack: emphasis that nothing ends, quotes in quotes. So what is
// dear stays plain text, and of a text that grows only the last blocks are read again.

const MOST_TEXT = 65536;  // characters that are read at once, all that may still change
const MOST_LINE = 8192;
const MOST_DEPTH = 12;  // blocks, or spans, inside each other
const MOST_WORK = 1e6;  // of a block: its characters times its marks, as each mark is looked for up to the end
const MOST_WORK_OF_ALL = 4e6;
const MARKS = /[*_~[\]<`!|&@:\\(]/g;

/** marked's reader, which leaves what is dear as plain text. */
class Lexer extends marked.Lexer {
  constructor(links) {
    super({ ...marked.getDefaults(), gfm: true, breaks: true });
    this.tokens.links = links;
    this.depth = 0;
    this.work = MOST_WORK_OF_ALL;
  }

  blockTokens(text, tokens = []) {
    return this.bounded(text, tokens, () => super.blockTokens(text, tokens));
  }

  inlineTokens(text, tokens = []) {
    const work = text.length * (text.match(MARKS)?.length ?? 0);
    if (work > Math.min(MOST_WORK, this.work)) return this.left(text, tokens);
    this.work -= work;
    return this.bounded(text, tokens, () => super.inlineTokens(text, tokens));
  }

  bounded(text, tokens, read) {
    if (this.depth >= MOST_DEPTH) return this.left(text, tokens);
    this.depth += 1;
    try {
      return read();
    } finally {
      this.depth -= 1;
    }
  }

  left(text, tokens) {
    tokens.push({ type: "plain", raw: text });
    return tokens;
  }
}

/** The blocks of a text. Their `raw`s are the text. `links`: definitions that came before; new ones are added. */
function blocks(text, links) {
  if (text.length > MOST_TEXT || text.split("\n").some((line) => line.length > MOST_LINE)) return [{ type: "plain", raw: text }];
  return new Lexer(links).lex(text);
}

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
  plain: (token) => [made("span", [token.raw], { className: "plain" })],
  escape: (token) => [plain(token.text)],
};

function nodes(tokens = []) {
  return tokens.flatMap((token) => makers[token.type]?.(token) ?? [token.raw]);
}

/**
 * Shows a text. Where `target` shows the beginning of it, what can't change any more stays: all but the last block, and what is
 * empty behind that.
 */
export function showMarkdown(target, text) {
  // As marked does.
  const clean = text.replace(/\r\n|\r/g, "\n").replace(/^( *)(\t+)/gm, (_, blanks, tabs) => blanks + "    ".repeat(tabs.length));
  const shown = target.shown?.text && clean.startsWith(target.shown.text) ? target.shown : { text: "", last: [], links: Object.create(null) };
  if (shown !== target.shown) target.replaceChildren();
  shown.last.forEach((node) => node.remove());
  const read = blocks(clean.slice(shown.text.length), shown.links);
  let last = read.length - 1;
  while (last > 0 && read[last].type === "space") last -= 1;
  const settled = read.slice(0, Math.max(0, last));
  target.append(...nodes(settled));
  const before = target.childNodes.length;
  target.append(...nodes(read.slice(Math.max(0, last))));
  target.shown = { links: shown.links, text: shown.text + settled.map((token) => token.raw).join(""), last: [...target.childNodes].slice(before) };
}
