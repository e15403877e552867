/**
 * Shows text as it streams: paragraphs, headings, fenced code, and inside finished paragraphs
 * inline code, bold and the bullets of lists. Only DOM nodes are built and only text is put into them, so whatever a
 * model writes is shown and never obeyed. Each character is handled once.
 */

const FENCE = /^[ \t]*(`{3,}|~{3,})([^`\n]*)\n?$/;
const HEADING = /^(#{1,6}) +/;
const MAYBE_FENCE_OR_HEADING = /^(?:[ \t]*|[ \t]*(?:`{1,2}|~{1,2})|#{1,6} *)$/;
const INLINE = /(?<!`)`([^`\n]+)`(?!`)|\*\*([^*\n]+)\*\*/g;
const BULLET = /^([ \t]*)[*+-][ \t]+(?=\S)/gm;
const MAX_HELD = 80;

export class Prose {
  #root;
  #copyButton;
  #held = "";
  #atLineStart = true;
  #block = null; // {element, node, fence: string | null, heading: boolean}

  /** @param {Element} root  @param {(code: Element) => Element} copyButton made for each code block */
  constructor(root, copyButton) {
    this.#root = root;
    this.#copyButton = copyButton;
  }

  /** Append a piece of text, cut anywhere. */
  feed(text) {
    for (let start = 0; start < text.length; ) {
      const end = text.indexOf("\n", start) + 1 || text.length;
      this.#piece(text.slice(start, end));
      start = end;
    }
  }

  /** The text is complete. */
  end() {
    if (this.#held) this.#line(this.#held);
    this.#held = "";
    this.#close();
  }

  #piece(piece) {
    if (!this.#atLineStart) return this.#write(piece);
    this.#held += piece;
    if (!piece.endsWith("\n") && this.#undecided()) return;
    const line = this.#held;
    this.#held = "";
    this.#line(line);
  }

  /** Could this start of a line still become a fence, a heading or an empty line? */
  #undecided() {
    if (this.#held.length > MAX_HELD) return false;
    return MAYBE_FENCE_OR_HEADING.test(this.#held) || FENCE.test(this.#held);
  }

  #line(line) {
    const fence = FENCE.exec(line);
    const open = this.#block?.fence;
    if (open) {
      const closes = fence && fence[2].trim() === "" && fence[1].startsWith(open);
      return closes ? this.#close() : this.#write(line);
    }
    if (fence) return this.#openCode(fence[1], fence[2]);
    if (line.trim() === "") return this.#close();
    const heading = HEADING.exec(line);
    if (heading) {
      this.#close();
      this.#open(document.createElement("h3"), { heading: true });
    }
    this.#write(heading ? line.slice(heading[0].length) : line);
  }

  #write(text) {
    if (!this.#block) this.#open(document.createElement("p"), {});
    this.#block.node.appendData(text);
    this.#atLineStart = text.endsWith("\n");
    if (this.#atLineStart && this.#block.heading) this.#close();
  }

  #open(element, { fence = null, heading = false, parent = element }) {
    const node = document.createTextNode("");
    parent.append(node);
    element.dir = fence ? "ltr" : "auto";
    this.#root.append(element);
    this.#block = { element, node, fence, heading };
  }

  #openCode(fence, language) {
    this.#close();
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const pre = document.createElement("pre");
    const code = document.createElement("code");
    const name = document.createElement("span");
    name.textContent = language.trim().split(/\s/, 1)[0];
    pre.tabIndex = 0; // wide code is scrolled by keyboard too
    pre.append(code);
    caption.append(name, this.#copyButton(code));
    figure.append(caption, pre);
    this.#open(figure, { fence, parent: code });
  }

  #close() {
    this.#atLineStart = true;
    const block = this.#block;
    this.#block = null;
    if (block && !block.fence) emphasise(block.node);
  }
}

/** Replace a finished paragraph's text by text, `code` and bold nodes. */
function emphasise(node) {
  const text = node.data.replace(/\n$/, "").replace(BULLET, "$1• ");
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const element = document.createElement(match[1] ? "code" : "strong");
    element.textContent = match[1] ?? match[2];
    parts.push(text.slice(end, match.index), element);
    end = match.index + match[0].length;
  }
  node.replaceWith(...parts, text.slice(end));
}
