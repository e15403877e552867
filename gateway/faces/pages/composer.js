/** The message field: Enter sends, Shift+Enter breaks the line, an input method's Enter does neither. */

export class Composer {
  #field;
  #composing = false;

  /** @param {HTMLTextAreaElement} field  @param {() => void} send */
  constructor(field, send) {
    this.#field = field;
    field.addEventListener("compositionstart", () => {
      this.#composing = true;
    });
    field.addEventListener("compositionend", () => {
      // Safari ends the composition before it reports the Enter that ended it: let that pass.
      setTimeout(() => {
        this.#composing = false;
      });
    });
    field.addEventListener("input", () => this.#fit());
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || this.#inputMethod(event)) return;
      event.preventDefault();
      if (!event.repeat) send();
    });
  }

  get text() {
    return this.#field.value;
  }

  set text(value) {
    this.#field.value = value;
    this.#fit();
  }

  focus() {
    this.#field.focus({ preventScroll: true });
  }

  #inputMethod(event) {
    return this.#composing || event.isComposing || event.keyCode === 229;
  }

  /** Grow with the text, up to the height that the style sheet allows. */
  #fit() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
