// Draws the tree on a canvas: stems in the colour of their use, buds for running answers, light along a hit, texts where there
// is room for them.

import { ago, count } from "./format.js";
import { curveOf, normalOn, pointOn } from "./tree_layout.js";

const COLOURS = ["ink", "muted", "paper", "held", "held-deep", "idle", "idle-old", "bud", "hit", "ground", "fallen", "leaf", "autumn", "grass", "loaded"];
const TAPER = 0.82;  // a stem's end, of its beginning
const OLD_SECONDS = 300;  // an unused stem has lost its colour and its leaves by then
const CROWDED = 150;  // stems: beyond it no leaves, and few labels
const LEAF_TOKENS = 8;
const SLANT = -Math.PI / 3;  // of labels that have no room side by side

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = this.height = 0;
  }

  resize(width, height) {
    const scale = Math.min(devicePixelRatio || 1, 2);
    if (this.width === width && this.height === height && this.scale === scale) return;
    Object.assign(this, { width, height, scale });
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
  }

  paint({ items, buds, glows, selected, leftOut, blockSize }) {
    this.blockSize = blockSize;
    const c = this.context;
    const style = getComputedStyle(this.canvas);
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.font = style.fontFamily;
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    this.ground(items.length > 0);
    c.lineCap = "round";
    const rank = (item) => (item.dying !== null ? -1 : item.node.holders);
    this.leafy = items.length <= CROWDED;
    for (const item of [...items].sort((a, b) => rank(a) - rank(b))) this.stem(item, selected?.includes(item.node.id));
    for (const glow of glows) this.glow(glow);
    this.buds(buds);
    this.labels(items.filter((item) => item.dying === null), buds);
    if (leftOut > 0) this.text(`and ${count(leftOut)} more`, this.width - 14, this.height - 10, { align: "right" });
  }

  ground(any) {
    const c = this.context, y = this.height - 26;
    const fade = c.createLinearGradient(0, 0, this.width, 0);
    fade.addColorStop(0, "transparent");
    fade.addColorStop(0.2, this.colours.ground);
    fade.addColorStop(0.8, this.colours.ground);
    fade.addColorStop(1, "transparent");
    c.strokeStyle = fade;
    c.lineWidth = any ? 3 : 2;
    c.beginPath();
    c.moveTo(10, y);
    c.quadraticCurveTo(this.width / 2, y - 8, this.width - 10, y);
    c.stroke();
    // Grass, in tufts that stay where they are.
    c.strokeStyle = this.colours.grass;
    c.lineWidth = 1.3;
    c.beginPath();
    for (let i = 0, x = 30; x < this.width - 30; x += 15 + (i * 37) % 29, i += 1) {
      const u = (x - 10) / (this.width - 20), foot = y - 16 * u * (1 - u);
      for (const lean of [-3.5, 0, 3]) {
        c.moveTo(x + lean * 0.4, foot);
        c.quadraticCurveTo(x + lean * 0.5, foot - 4, x + lean * 1.4, foot - 5 - ((i * 7 + lean) % 4 + 4) % 4);
      }
    }
    c.stroke();
  }

  colourOf(node) {
    if (node.holders > 0) return mixed(this.colours.held, this.colours["held-deep"], Math.min(1, Math.log2(node.holders) / 6));
    return mixed(this.colours.idle, this.colours["idle-old"], Math.min(1, node.idle_seconds / OLD_SECONDS));
  }

  stem(item, selected) {
    const c = this.context, { x0, y0, x1, y1, width } = item.now;
    c.save();
    if (item.dying !== null) {
      c.globalAlpha = Math.max(0, 1 - item.fallen);
      c.translate(0, 36 * item.fallen * item.fallen);
    }
    const outline = outlineOf(curveOf(item.now), width, item.node.parent === null);
    if (selected) {
      c.strokeStyle = this.colours.hit;
      c.lineWidth = 5;
      c.globalAlpha *= 0.6;
      trace(c, outline);
      c.stroke();
      c.globalAlpha = 1;
    }
    c.fillStyle = item.dying !== null ? this.colours.fallen : this.colourOf(item.node);
    trace(c, outline);
    c.fill();
    c.beginPath();
    c.arc(x1, y1, width * TAPER / 2, 0, 7);
    c.fill();
    if (width > 9 && item.dying === null) this.bark(item);
    if (item.node.stored > 0 && item.dying === null) this.core(item);
    if (this.leafy && item.to.tip) this.leaves(item);
    if (item.node.left_out > 0 && item.dying === null) {  // branches that are not shown
      c.fillStyle = this.colours.muted;
      for (const step of [-5, 0, 5]) {
        c.beginPath();
        c.arc(x1 + step, y1 - 7, 1.4, 0, 7);
        c.fill();
      }
    }
    c.restore();
  }

  /** On a tip: one for some tokens, as far as there is room. Green while it is held; then they turn, and fall one by one. */
  leaves(item) {
    const c = this.context, curve = curveOf(item.now), { node, now } = item;
    const age = node.holders > 0 ? 0 : Math.min(1, node.idle_seconds / OLD_SECONDS);
    const room = (now.y0 - now.y1 + Math.abs(now.x1 - now.x0) * 0.5) / 8;
    const most = Math.floor(Math.min(node.tokens / LEAF_TOKENS, room, 28));
    const size = Math.max(6, Math.min(12, item.to.slot * 0.26));
    if (item.dying === null)
      c.fillStyle = node.holders > 0 ? this.colours.leaf : mixed(this.colours.autumn, this.colours["idle-old"], age);
    c.beginPath();
    for (let i = 0; i < most; ++i) {
      if ((i * 5 + node.id) % 8 < age * 8) continue;  // fallen
      const t = 0.97 - (0.72 * i) / Math.max(1, most), side = i % 2 === 0 ? 1 : -1;
      const [x, y] = pointOn(curve, t), [nx, ny] = normalOn(curve, t);
      // 50 degrees off the stem's direction, (ny, -nx).
      const dx = ny * 0.64 + side * nx * 0.77, dy = -nx * 0.64 + side * ny * 0.77;
      const x0 = x + side * nx * now.width * 0.3, y0 = y + side * ny * now.width * 0.3, mx = x0 + dx * size * 0.55, my = y0 + dy * size * 0.55;
      c.moveTo(x0, y0);
      c.quadraticCurveTo(mx - dy * size * 0.42, my + dx * size * 0.42, x0 + dx * size * 1.25, y0 + dy * size * 1.25);
      c.quadraticCurveTo(mx + dy * size * 0.42, my - dx * size * 0.42, x0, y0);
    }
    c.fill();
  }

  /** What a second tier has of it, too: a line in its middle, as long as that part of its tokens. */
  core(item) {
    const c = this.context, curve = curveOf(item.now), end = item.node.stored / item.node.tokens;
    c.save();
    c.strokeStyle = this.colours.loaded;
    c.lineWidth = Math.max(2, item.now.width * 0.36);
    c.lineCap = "butt";
    c.beginPath();
    for (let i = 0; i <= 24; ++i) c.lineTo(...pointOn(curve, (end * i) / 24));
    c.stroke();
    c.restore();
  }

  /** A light side, and a line for each block where these can be told apart. */
  bark(item) {
    const c = this.context, curve = curveOf(item.now), { width } = item.now;
    c.save();
    c.strokeStyle = this.colours.paper;
    c.globalAlpha = 0.12;
    c.lineWidth = width * 0.22;
    c.beginPath();
    for (let t = 0.02; t <= 0.98; t += 0.03) {
      const [x, y] = pointOn(curve, t), [nx, ny] = normalOn(curve, t);
      c.lineTo(x - nx * width * 0.24, y - ny * width * 0.24);
    }
    c.stroke();
    const blocks = Math.floor(item.node.tokens / this.blockSize);
    if (blocks > 1 && (item.now.y0 - item.now.y1) / blocks > 4.5) {
      c.globalAlpha = 0.35;
      c.lineWidth = 1;
      c.beginPath();
      for (let i = 1; i < blocks; ++i) {
        const t = i / blocks, half = width * (1 - (1 - TAPER) * t) * 0.46;
        const [x, y] = pointOn(curve, t), [nx, ny] = normalOn(curve, t);
        c.moveTo(x - nx * half, y - ny * half);
        c.lineTo(x + nx * half, y + ny * half);
      }
      c.stroke();
    }
    c.restore();
  }

  /** Light that runs from the ground to where a hit ends. */
  glow({ path, last, point, strength }) {
    if (!point) return;
    const c = this.context;
    c.save();
    c.globalAlpha = strength * 0.85;
    c.strokeStyle = this.colours.hit;
    path.forEach((item, i) => {
      const curve = curveOf(item.now);
      const end = i === path.length - 1 ? last : 1;
      c.lineWidth = Math.max(2, item.now.width * 0.45);
      c.beginPath();
      c.moveTo(item.now.x0, item.now.y0);
      for (let t = 0.1; t < end + 0.05; t += 0.1) c.lineTo(...pointOn(curve, Math.min(t, end)));
      c.stroke();
    });
    const halo = c.createRadialGradient(...point, 0, ...point, 26);
    halo.addColorStop(0, this.colours.hit);
    halo.addColorStop(1, "transparent");
    c.fillStyle = halo;
    c.beginPath();
    c.arc(...point, 26, 0, 7);
    c.fill();
    c.restore();
  }

  /** Answers that are being computed: a fan of buds on the node where each stands. */
  buds(buds) {
    const c = this.context;
    const fans = Map.groupBy ? Map.groupBy(buds, (bud) => bud.id) : grouped(buds);
    for (const fan of fans.values()) {
      const { x1, y1, width } = fan[0].item.now;
      const shown = Math.min(fan.length, 24), step = Math.min(0.5, 2.4 / shown), radius = Math.max(13, width * 0.7 + 6);
      for (let i = 0; i < shown; ++i) {
        const angle = -Math.PI / 2 + (i - (shown - 1) / 2) * step;
        this.bud(x1, y1, x1 + Math.cos(angle) * radius, y1 + Math.sin(angle) * radius, fan[i].stage === "prefill");
      }
    }
    c.globalAlpha = 1;
  }

  bud(x0, y0, x, y, prefill) {
    const c = this.context;
    c.strokeStyle = this.colours.held;
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x, y);
    c.stroke();
    const halo = c.createRadialGradient(x, y, 0, x, y, 11);
    halo.addColorStop(0, this.colours.bud);
    halo.addColorStop(1, "transparent");
    c.globalAlpha = 0.5;
    c.fillStyle = halo;
    c.beginPath();
    c.arc(x, y, 11, 0, 7);
    c.fill();
    c.globalAlpha = 1;
    c.fillStyle = prefill ? this.colours.paper : this.colours.bud;
    c.strokeStyle = this.colours.bud;
    c.lineWidth = 2;
    c.beginPath();
    c.arc(x, y, 4.2, 0, 7);
    c.fill();
    c.stroke();
  }

  /** The longest texts first; one that would cover another is left out. */
  labels(items, buds) {
    const taken = buds.map(({ item }) => ({ x: item.now.x1 - 16, y: item.now.y1 - 26, w: 32, h: 26 }));
    const order = [...items].sort((a, b) => b.node.tokens - a.node.tokens).slice(0, items.length > CROWDED ? 12 : 80);
    const points = items.flatMap((item) => [0.1, 0.3, 0.5, 0.7, 0.9, 1].map((t) => [...pointOn(curveOf(item.now), t), item.now.width / 2, item]));
    for (const item of order) {
      const { node, to } = item, { x0, y0, x1, y1, width } = item.now;
      const room = to.tip ? Math.min(to.slot - 10, 190) : 210;
      if (room < 62 || (!to.tip && y0 - y1 < 30)) continue;
      const lines = [...this.wrapped(label(node), room, to.tip ? 2 : 1), this.counted(node, room)];
      const w = Math.max(...lines.map((line) => this.measure(line))), h = 15 * lines.length;
      const [mx, my] = pointOn(curveOf({ x0, y0, x1, y1 }), 0.55);
      const above = to.tip && { x: x1 - w / 2, y: y1 - h - (buds.some((bud) => bud.id === node.id) ? 32 : 10), w, h, align: "center" };
      const right = { x: mx + width / 2 + 10, y: my - h / 2, w, h, align: "left" };
      const left = { x: mx - width / 2 - 10 - w, y: my - h / 2, w, h, align: "right" };
      const spot = [above, !to.tip && right, !to.tip && left].filter(Boolean).find((box) => this.free(box, taken, to.tip ? [] : points));
      if (!spot) continue;
      taken.push(spot);
      const x = spot.align === "center" ? spot.x + w / 2 : spot.align === "right" ? spot.x + w : spot.x;
      lines.forEach((line, i) => this.text(line, x, spot.y + 12 + 15 * i,
        { align: spot.align, strong: i < lines.length - 1, colour: i < lines.length - 1 ? "ink" : "muted" }));
    }
    if (items.length > CROWDED) return;
    for (const item of order) {
      if (item.to.tip && item.to.slot < 72 && item.to.slot > 12) this.slanted(item, buds.some((bud) => bud.id === item.node.id), taken, points);
    }
  }

  /** A text that goes up aslant from a tip, as far as the sky is free. */
  slanted(item, bud, taken, points) {
    const c = this.context, dx = Math.cos(SLANT), dy = Math.sin(SLANT), begin = bud ? 40 : 13, own = [];
    const others = points.filter((point) => point[3] !== item);
    let length = 0;
    for (; length < 130; length += 10) {
      const x = item.now.x1 + dx * (begin + length), y = item.now.y1 + dy * (begin + length);
      const box = { x: x - 5, y: y - 5, w: 10, h: 10, near: 0 };
      if (y < 8 || !this.free(box, taken, others)) break;
      own.push(box);
    }
    if (length < 40) return;
    const [line] = this.wrapped(label(item.node), length, 1);
    if (!line) return;
    taken.push(...own);
    c.save();
    c.translate(item.now.x1 + dx * begin, item.now.y1 + dy * begin);
    c.rotate(SLANT);
    this.text(line, 0, 4);
    c.restore();
  }

  measure(line) {
    this.context.font = `600 12px ${this.font}`;
    return this.context.measureText(line).width;
  }

  /** At most so many lines that fit; what doesn't is cut. */
  wrapped(text, room, most) {
    const lines = [];
    let rest = text.split(" ").filter(Boolean);
    while (rest.length > 0 && lines.length < most) {
      let n = 1;
      while (n < rest.length && this.measure(rest.slice(0, n + 1).join(" ")) <= room) n += 1;
      let line = rest.slice(0, n).join(" ");
      rest = rest.slice(n);
      if (lines.length === most - 1 && rest.length > 0) line += "…";
      while (line.length > 3 && this.measure(line) > room) line = `${line.slice(0, -2)}…`;
      lines.push(line);
    }
    return lines;
  }

  /** As much of its figures as fits. */
  counted(node, room) {
    const tokens = `${count(node.tokens)} tokens`;
    const all = [node.holders > 1 && `${tokens} · ${node.holders} stand on it`,
      node.hits > 0 && `${tokens} · ${node.hits} ${node.hits === 1 ? "hit" : "hits"}`, tokens, count(node.tokens)];
    return all.filter(Boolean).find((line) => this.measure(line) <= room) ?? "";
  }

  /** Whether a box meets none of the taken ones, and no stem's points. */
  free(box, taken, points) {
    if (box.x < 2 || box.x + box.w > this.width - 2 || box.y < 2 || box.y + box.h > this.height - 14) return false;
    const near = box.near ?? 6;
    const meets = (o) => box.x < o.x + o.w + near && o.x < box.x + box.w + near && box.y < o.y + o.h + 2 && o.y < box.y + box.h + 2;
    if (taken.some(meets)) return false;
    return !points.some(([x, y, r]) => x + r > box.x && x - r < box.x + box.w && y > box.y - 4 && y < box.y + box.h + 4);
  }

  text(line, x, y, { align = "left", strong = false, colour = "muted" } = {}) {
    const c = this.context;
    c.font = `${strong ? 600 : 400} 12px ${this.font}`;
    c.textAlign = align;
    c.lineJoin = "round";
    c.lineWidth = 4;
    c.strokeStyle = this.colours.paper;
    c.strokeText(line, x, y);
    c.fillStyle = this.colours[colour];
    c.fillText(line, x, y);
  }
}

/** A stem's edge, thinner at its end; one that stands on the ground has a foot. Points of a closed line. */
function outlineOf(curve, width, foot) {
  const left = [], right = [];
  const steps = width < 3 ? 8 : 22;
  for (let i = 0; i <= steps; ++i) {
    const t = i / steps;
    const half = (width / 2) * (1 - (1 - TAPER) * t) * (foot && Math.abs(curve[6] - curve[0]) < curve[1] - curve[7] ? 1 + 0.55 * Math.max(0, 1 - t * 7) ** 2 : 1);
    const [x, y] = pointOn(curve, t), [nx, ny] = normalOn(curve, t);
    left.push([x - nx * half, y - ny * half]);
    right.unshift([x + nx * half, y + ny * half]);
  }
  return [...left, ...right];
}

function trace(c, points) {
  c.beginPath();
  points.forEach(([x, y], i) => (i === 0 ? c.moveTo(x, y) : c.lineTo(x, y)));
  c.closePath();
}

/** Without the signs of the chat's template, and the role that follows them. */
const bare = (text) => text.replace(/<[|\w/][^<>]{0,40}>(?:\s*(?:system|user|assistant|model)\b)?/g, "\n");

/** A text as a label: from where it differs from its siblings', with the words of that sentence before it. */
function label(node) {
  const text = node.text ?? "", own = node.own_text ?? text;
  const before = bare(text.slice(0, text.length - own.length)).split(/[.!?:\n]/).at(-1);
  return `${before.length < 40 ? before : ""}${bare(own)}`.replace(/\s+/g, " ").trim();
}

/** What a node is, in a sentence. */
export function sentence(node) {
  const held = node.holders > 0 ? `held by ${count(node.holders)}` : `last used ${ago(node.idle_seconds)}`;
  const stored = node.stored === 0 ? "" : node.stored === node.tokens ? "; a second tier has them, too" : `; a second tier has ${count(node.stored)} of them, too`;
  return `${count(node.tokens)} tokens from position ${count(node.begin)}, ${held}, ${count(node.hits)} hits${stored}.`;
}

function grouped(buds) {
  const fans = new Map();
  for (const bud of buds) fans.set(bud.id, [...(fans.get(bud.id) ?? []), bud]);
  return fans;
}

/** Between two colours "#rrggbb". */
function mixed(a, b, t) {
  const part = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  const parts = [0, 1, 2].map((i) => Math.round(part(a, i) * (1 - t) + part(b, i) * t));
  return `rgb(${parts.join(" ")})`;
}
