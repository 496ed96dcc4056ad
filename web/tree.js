// The picture of the tree: keeps what is drawn, moves it towards each new frame's layout, and knows which node is meant by a
// pointer or a key. What it looks like is tree_paint.js, where things stand is tree_layout.js.

import { childrenOf, curveOf, layout, pointOn } from "./tree_layout.js";
import { Painter } from "./tree_paint.js";

const MOVE_MS = 420, FALL_MS = 900, PULSE_MS = 1100;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const mix = (a, b, t) => a + (b - a) * t;
const eased = (t) => 1 - (1 - t) ** 3;

export class Tree {
  constructor(canvas, onPoint) {
    this.canvas = canvas;
    this.onPoint = onPoint;  // (node or null, x, y)
    this.painter = new Painter(canvas);
    this.items = new Map();  // id -> {node, from, to, now, born, dying}
    this.buds = [];
    this.pulses = [];
    this.nodes = [];
    this.selected = null;
    this.frameAsked = false;
    this.frames = { count: 0, longest: 0 };  // for the test
    // At another size all stand where they belong at once, as the ground does.
    new ResizeObserver(() => this.place(performance.now() - MOVE_MS)).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.select(null));
    canvas.addEventListener("click", (event) => this.point(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.select(null));
  }

  /** A frame of the server's. */
  show(frame) {
    const now = performance.now();
    this.noteHits(frame.tree.nodes, now);
    this.nodes = frame.tree.nodes;
    this.leftOut = frame.tree.left_out;
    this.requests = frame.requests;
    this.blockSize = frame.block_size;
    this.place(now);
  }

  noteHits(nodes, now) {
    const before = new Map(this.nodes.map((node) => [node.id, node]));
    const grown = nodes.filter((node) => node.hits > (before.get(node.id)?.hits ?? node.hits));
    const parents = new Set(grown.map((node) => node.parent));
    for (const node of grown) {
      if (!parents.has(node.id)) this.pulses.push({ id: node.id, start: now });  // the hit's far end
    }
    this.pulses = this.pulses.slice(-24);
  }

  place(now) {
    const box = this.canvas.parentElement.getBoundingClientRect();
    if (box.width === 0) return;
    this.painter.resize(box.width, box.height);
    const slim = box.width < 560;
    const room = { left: slim ? 8 : 28, right: box.width - (slim ? 8 : 28), top: slim ? 108 : 118, ground: box.height - 30 };
    const places = layout(this.nodes, room);
    for (const [id, to] of places) this.move(id, to, now, places);
    for (const [id, item] of this.items) {
      if (!places.has(id) && item.dying === null) item.dying = now;
    }
    this.parents = new Map(this.nodes.map((node) => [node.id, node.parent]));
    this.buds = budsOf(this.requests ?? []);
    this.wake();
  }

  move(id, to, now, places) {
    const known = this.items.get(id);
    if (known) {
      known.cut = to.node.tokens < known.node.tokens ? cut(known, to.node.tokens / known.node.tokens) : null;
      known.from = known.cut?.lower ?? { ...known.now };
      Object.assign(known, { to, node: to.node, start: now, dying: null });
      return;
    }
    const below = this.items.get(to.node.parent);
    const { x1, y1 } = below?.from ?? { x1: to.x0, y1: to.y0 };
    let from = { x0: x1, y0: y1, x1, y1, width: 1 };
    if (below?.cut && !below.cut.taken && below.cut.end === to.node.begin + to.node.tokens) {
      from = below.cut.upper;  // a node was split: what stood above the cut stays where it is, now as the new node
      below.cut.taken = true;
    }
    this.items.set(id, { node: to.node, from, to, now: { ...from }, start: now, dying: null, cut: null });
  }

  wake() {
    if (this.frameAsked) return;
    this.frameAsked = true;
    requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.frameAsked = false;
    const begin = performance.now();
    let moving = false;
    for (const [id, item] of this.items) {
      const t = calm.matches ? 1 : Math.min(1, (now - item.start) / MOVE_MS);
      for (const key of ["x0", "y0", "x1", "y1", "width"]) item.now[key] = mix(item.from[key], item.to[key], eased(Math.max(0, t)));
      moving ||= t < 1;
      item.fallen = 0;
      if (item.dying === null) continue;
      item.fallen = calm.matches ? 1 : (now - item.dying) / FALL_MS;
      if (item.fallen >= 1) this.items.delete(id);
      else moving = true;
    }
    this.pulses = this.pulses.filter((pulse) => !calm.matches && now - pulse.start < PULSE_MS && this.items.has(pulse.id));
    moving ||= this.pulses.length > 0;
    this.draw(now);
    this.frames.count += 1;
    this.frames.longest = Math.max(this.frames.longest, performance.now() - begin);
    if (moving) this.wake();
  }

  draw(now = performance.now()) {
    this.painter.paint({
      items: [...this.items.values()],
      buds: this.buds.filter((bud) => this.items.has(bud.id)).map((bud) => ({ ...bud, item: this.items.get(bud.id) })),
      glows: this.pulses.map((pulse) => this.glow(pulse, (now - pulse.start) / PULSE_MS)),
      selected: this.selected && this.pathTo(this.selected),
      leftOut: this.leftOut ?? 0,
      blockSize: this.blockSize ?? 32,
    });
  }

  /** Ids from the ground to a node. */
  pathTo(id) {
    const path = [];
    for (let at = id; at !== null && at !== undefined; at = this.parents.get(at)) path.unshift(at);
    return path.filter((step) => this.items.has(step));
  }

  glow({ id }, t) {
    const path = this.pathTo(id);
    const at = Math.min(path.length - 1e-6, eased(Math.min(1, t * 1.25)) * path.length);
    const item = this.items.get(path[Math.floor(at)]);
    return { path: path.slice(0, Math.floor(at) + 1).map((step) => this.items.get(step)), last: at % 1,
      point: item ? pointOn(curveOf(item.now), at % 1) : null, strength: Math.min(1, 3 * (1 - t)) };
  }

  // --- pointing at a node ---

  nearest(x, y) {
    let best = null, distance = 18 ** 2;
    for (const [id, item] of this.items) {
      const box = item.now;
      if (item.dying !== null || y < box.y1 - 18 || y > box.y0 + 18) continue;
      const curve = curveOf(box);
      for (let t = 0; t <= 1; t += 0.1) {
        const [px, py] = pointOn(curve, t);
        const far = Math.max(0, Math.hypot(px - x, py - y) - box.width / 2) ** 2;
        if (far < distance) [best, distance] = [id, far];
      }
    }
    return best;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.select(this.nearest(event.clientX - box.left, event.clientY - box.top), event.type === "click");
  }

  select(id, open = false) {
    if (this.selected === id && !open) return;
    this.selected = id;
    const item = id === null ? null : this.items.get(id);
    this.canvas.style.cursor = item ? "pointer" : "default";
    this.onPoint(item?.node ?? null, item ? (item.now.x0 + item.now.x1) / 2 : 0, item?.now.y1 ?? 0, open);
    this.wake();
  }

  key(event) {
    const children = childrenOf(this.nodes);
    const node = this.items.get(this.selected)?.node;
    const siblings = node ? children.get(node.parent) : [];
    const beside = (step) => siblings[siblings.findIndex((other) => other.id === node.id) + step];
    const steps = {
      ArrowUp: () => (node ? children.get(node.id)[0] : children.get(null)[0]),
      ArrowDown: () => (node ? this.items.get(node.parent)?.node : children.get(null)[0]),
      ArrowLeft: () => (node ? beside(-1) : children.get(null)[0]),
      ArrowRight: () => (node ? beside(1) : children.get(null)[0]),
      Home: () => children.get(null)[0],
      Enter: () => node,
      Escape: () => null,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = steps[event.key]();
    if (next === undefined) return;
    this.select(next?.id ?? null, event.key === "Enter");
  }
}

/** Both parts of what is drawn of a node that is cut at this part of its length. */
function cut({ node, now }, at) {
  const [x, y] = pointOn(curveOf(now), at);
  return { end: node.begin + node.tokens, lower: { ...now, x1: x, y1: y }, upper: { ...now, x0: x, y0: y } };
}

/** A bud for each running sample, on the node where it stands. */
function budsOf(requests) {
  const buds = [];
  for (const request of requests) {
    for (const id of request.nodes) {
      if (id !== 0) buds.push({ id, request: request.id, stage: request.stage });
    }
  }
  return buds;
}
