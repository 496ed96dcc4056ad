// Pictures for the next message: pasted, dropped or chosen, as data URLs.

import { element } from "./format.js";

const read = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});

/** Those of a message, small. */
export const pictureList = (urls) => urls.length > 0
  ? element("div", { className: "pictures" }, ...urls.map((url) => element("img", { src: url, alt: "Picture" }))) : null;

export class Pictures {
  constructor(page) {
    this.list = page["chat-pictures"];
    this.urls = [];
    const form = page["chat-form"];
    page["chat-input"].addEventListener("paste", (event) => this.take(event, event.clipboardData));
    form.addEventListener("dragover", (event) => event.preventDefault());
    form.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
    page["chat-file"].addEventListener("change", (event) => this.add([...event.target.files]));
  }

  take(event, data) {
    const files = [...(data?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    for (const file of files) this.urls.push(await read(file));
    this.draw();
  }

  /** For the message that is sent: then there are none. */
  takeAll() {
    const { urls } = this;
    this.urls = [];
    this.draw();
    return urls;
  }

  draw() {
    this.list.replaceChildren(...this.urls.map((url) => element("button", {
      type: "button", className: "quiet", ariaLabel: "Take this picture out",
      onclick: () => {
        this.urls = this.urls.filter((other) => other !== url);
        this.draw();
      },
    }, element("img", { src: url, alt: "Picture to send" }))));
  }
}
