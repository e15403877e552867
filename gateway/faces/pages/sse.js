/** Server-sent events out of bytes. https://html.spec.whatwg.org/multipage/server-sent-events.html */

/** Feed it chunks as they arrive, cut anywhere; it gives back the data of each event that ended. */
export class EventParser {
  #decoder = new TextDecoder();
  #line = "";
  #endedInReturn = false;
  #data = [];

  /** @param {Uint8Array} bytes @returns {string[]} */
  feed(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    if (this.#endedInReturn && text.startsWith("\n")) text = text.slice(1);
    this.#endedInReturn = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line !== "") this.#field(line);
      else if (this.#data.length > 0) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    if (name !== "data") return; // comments, and fields that chat streams do not use
    const value = colon < 0 ? "" : line.slice(colon + 1);
    this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
  }
}
