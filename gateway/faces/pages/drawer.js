/** The settings drawer and the dialog that asks for an API key. */

import { choices, session } from "./preferences.js";

const MAX_TOKENS_LIMIT = 1_000_000;

export class Drawer {
  #prompt = document.getElementById("system-prompt");
  #maxTokens = document.getElementById("max-tokens");

  /** @param {() => void} onKey the user wants to enter a key */
  constructor(onKey) {
    const dialog = document.getElementById("settings");
    this.#prompt.value = choices.get("system");
    this.#maxTokens.value = choices.get("max-tokens");
    this.#prompt.addEventListener("input", () => choices.set("system", this.#prompt.value));
    this.#maxTokens.addEventListener("input", () => {
      choices.set("max-tokens", this.maxTokens === null ? "" : String(this.maxTokens));
    });
    document.getElementById("open-settings").addEventListener("click", () => dialog.showModal());
    document.getElementById("change-key").addEventListener("click", () => {
      dialog.close();
      onKey();
    });
    closeOnBackdrop(dialog);
  }

  /** The system prompt; empty for none. */
  get systemPrompt() {
    return this.#prompt.value.trim();
  }

  /** The longest answer in tokens, or null for the route's own limit. */
  get maxTokens() {
    const value = Number(this.#maxTokens.value);
    return Number.isInteger(value) && value >= 1 && value <= MAX_TOKENS_LIMIT ? value : null;
  }
}

export class KeyDialog {
  #dialog = document.getElementById("key-dialog");
  #field = document.getElementById("key");
  #message = document.getElementById("key-message");
  #onKey = null;

  constructor() {
    this.#dialog.querySelector("form").addEventListener("submit", () => {
      session.set("key", this.#field.value.trim());
      this.#onKey();
    });
    this.#dialog.querySelector("[data-cancel]").addEventListener("click", () => this.#dialog.close());
    closeOnBackdrop(this.#dialog);
  }

  /** Ask; `onKey` runs once a key has been entered. `message` is what the server said, if it did. */
  ask(onKey, message = "") {
    this.#onKey = onKey;
    this.#field.value = session.get("key");
    this.#message.textContent = message;
    this.#message.hidden = message === "" || session.get("key") === ""; // no key yet is no mistake
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#field.select();
  }
}

function closeOnBackdrop(dialog) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
