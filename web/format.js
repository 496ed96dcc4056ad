// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (n) => whole.format(Math.round(n));

export function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

export function seconds(s) {
  if (s < 0.0005) return "0 s";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

export function ago(s) {
  return s < 1.5 ? "just now" : `${seconds(s).replace(/\.\d s$/, " s")} ago`;
}

export const percent = (part, all) => (all > 0 ? `${Math.floor((100 * part) / all)} %` : "0 %");

/** One line of a text, special characters shown. */
export function oneLine(text, most) {
  const line = (text ?? "").replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** An element with these properties and children; texts become text, never markup. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
