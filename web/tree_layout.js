// Where each node of the tree stands: tips side by side, stems upwards, long texts long and busy stems thick. Pure functions.

const LEAST_LENGTH = 12;  // px
const THICKEST = 40;

/** Less than linear: a question of 30 tokens is still seen beside a document of 10,000. */
const lengthOf = (node) => node.tokens ** 0.42;

/** Children of each node, in the order of the frame; `null` has the first ones. */
export function childrenOf(nodes) {
  const children = new Map([[null, []]]);
  for (const node of nodes) {
    children.set(node.id, []);
    children.get(node.parent).push(node);
  }
  return children;
}

/** Tokens of the longest text, and what stands between the ground and its end in lengths. */
function reach(nodes) {
  const sums = new Map([[null, { length: 0, count: 0 }]]);
  let most = { length: 0, count: 0 };
  for (const node of nodes) {
    const below = sums.get(node.parent);
    const sum = { length: below.length + lengthOf(node), count: below.count + 1 };
    sums.set(node.id, sum);
    if (sum.length > most.length) most = sum;
  }
  return most;
}

/**
 * @param nodes of a frame, parents first
 * @param room {left, right, top, ground}: px
 * @returns Map of id to {node, x0, y0, x1, y1, width, slot, tip}: a stem from (x0, y0) up to (x1, y1); `slot`: px beside each
 *   other that its tips have
 */
export function layout(nodes, room) {
  const children = childrenOf(nodes);
  const places = new Map();
  const most = reach(nodes);
  const height = room.ground - room.top;
  const spare = Math.max(0, height - most.count * LEAST_LENGTH);
  const unit = most.length > 0 ? spare / most.length : 0;
  const least = Math.min(LEAST_LENGTH, height / Math.max(1, most.count));

  // Tips have slots; those that are held wider ones.
  const weight = new Map();
  for (const node of [...nodes].reverse()) {
    const below = children.get(node.id);
    weight.set(node.id, below.length === 0 ? (node.holders > 0 ? 2 : 1) : below.reduce((sum, c) => sum + weight.get(c.id), 0));
  }
  const all = children.get(null).reduce((sum, node) => sum + weight.get(node.id), 0);
  const perWeight = all > 0 ? (room.right - room.left) / all : 0;

  let next = room.left;
  const spread = (node, y0) => {  // depth is bounded by the server's limit
    const y1 = y0 - least - unit * lengthOf(node);
    const below = children.get(node.id);
    const place = { node, y0, y1, slot: weight.get(node.id) * perWeight, tip: below.length === 0 };
    places.set(node.id, place);
    if (place.tip) {
      place.x1 = next + place.slot / 2;
      next += place.slot;
      place.width = Math.max(1.2, Math.min(node.holders > 0 ? 8 : 5, place.slot * 0.3));
      return place;
    }
    const above = below.map((child) => spread(child, y1));
    place.x1 = (above[0].x1 + above.at(-1).x1) / 2;
    // The pipe model: a stem's section is the sum of those it carries.
    place.width = Math.min(THICKEST, place.slot * 0.4, Math.sqrt(above.reduce((sum, a) => sum + a.width ** 2, 0)) * 1.02);
    for (const a of above) a.x0 = place.x1;
    return place;
  };
  const middle = (room.left + room.right) / 2;
  const stems = children.get(null);
  for (const stem of stems) {
    const place = spread(stem, room.ground);
    place.x0 = stems.length === 1 ? place.x1 : middle + (place.x1 - middle) * 0.35;
  }
  return places;
}

/** The curve of a stem: a cubic that leaves towards its place, and arrives upright. */
export function curveOf({ x0, y0, x1, y1 }) {
  const height = y0 - y1;
  return [x0, y0, x0 + (x1 - x0) * 0.22, y0 - height * 0.38, x1, y1 + height * 0.62, x1, y1];
}

/** What is to the right of a curve at t, as a unit vector. */
export function normalOn([x0, y0, x1, y1, x2, y2, x3, y3], t) {
  const u = 1 - t;
  const dx = u * u * (x1 - x0) + 2 * u * t * (x2 - x1) + t * t * (x3 - x2);
  const dy = u * u * (y1 - y0) + 2 * u * t * (y2 - y1) + t * t * (y3 - y2);
  const length = Math.hypot(dx, dy) || 1;
  return [-dy / length, dx / length];
}

export function pointOn([x0, y0, x1, y1, x2, y2, x3, y3], t) {
  const u = 1 - t;
  const a = u * u * u, b = 3 * u * u * t, c = 3 * u * t * t, d = t * t * t;
  return [a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3];
}
