/** What the page remembers: choices in localStorage, the API key only for this tab's session. */

class Store {
  #storage;
  #memory = new Map();

  constructor(open) {
    try {
      this.#storage = open();
    } catch {
      this.#storage = null; // the browser forbids it: remembered until the page closes
    }
  }

  get(name) {
    return this.#memory.get(name) ?? this.#storage?.getItem(`fewer.${name}`) ?? "";
  }

  set(name, value) {
    this.#memory.set(name, value);
    try {
      if (value === "") this.#storage?.removeItem(`fewer.${name}`);
      else this.#storage?.setItem(`fewer.${name}`, value);
    } catch {
      // full or forbidden: the memory above has it
    }
  }
}

export const choices = new Store(() => window.localStorage);
export const session = new Store(() => window.sessionStorage);
