// The server: its key and namespace, and the streams of events that it sends.

const KEY = "coppice-key", SALT = "coppice-salt";

export const settings = {
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  get salt() { return sessionStorage.getItem(SALT) ?? ""; },
  set(key, salt) {
    sessionStorage.setItem(KEY, key);
    sessionStorage.setItem(SALT, salt);
  },
};

/** An answer that is no success; `status` is HTTP's. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (settings.key) headers.Authorization = `Bearer ${settings.key}`;
  if (body) headers["Content-Type"] = "application/json";
  const reply = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => null);
  throw new ServerError(reply.status, told?.error?.message ?? `The server says ${reply.status}.`);
}

/** The JSON of each server-sent event. EventSource can't send a key. */
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

/** `path` with these fields, the namespace's too where one is set. */
export function withQuery(path, fields = {}) {
  const query = new URLSearchParams(fields);
  if (settings.salt) query.set("cache_salt", settings.salt);
  return query.size > 0 ? `${path}?${query}` : path;
}

/** Calls onFrame with every frame, for ever; onState with "live", "lost" or a ServerError. */
export class Feed {
  constructor(onFrame, onState) {
    this.onFrame = onFrame;
    this.onState = onState;
    this.abort = null;
    this.run = 0;
  }

  async start() {
    this.abort?.abort();
    const run = ++this.run;
    for (let pause = 250; run === this.run; pause = Math.min(pause * 2, 4000)) {
      this.abort = new AbortController();
      try {
        const reply = await request(withQuery("/v1/cache/events"), { signal: this.abort.signal });
        this.onState("live");
        for await (const frame of events(reply)) {
          if (run !== this.run) return;
          pause = 250;
          this.onFrame(frame);
        }
        this.onState("lost");
      } catch (error) {
        if (run !== this.run) return;
        if (error instanceof ServerError && error.status < 500) return this.onState(error);
        this.onState("lost");
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}
