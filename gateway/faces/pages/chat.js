/** The chat page: wires the parts together and holds the conversation. */

import { complete, Failure, fetchRoutes } from "./completion.js";
import { Composer } from "./composer.js";
import { Drawer, KeyDialog } from "./drawer.js";
import { explain } from "./explain.js";
import { Follower } from "./follow.js";
import { choices, session } from "./preferences.js";
import { LANGUAGES, preferredLanguage, Speech } from "./texts.js";
import { Turn } from "./turn.js";

const page = Object.fromEntries(
  ["conversation", "routes", "form", "message", "send", "stop", "status", "start", "start-failure", "turn"].map(
    (id) => [id, document.getElementById(id)],
  ),
);

class Chat {
  #speech = new Speech(preferredLanguage(choices.get("language"), navigator.languages));
  #follower = new Follower(page.conversation, document.getElementById("to-end"));
  #composer = new Composer(page.message, () => this.send(this.#composer.text));
  #keyDialog = new KeyDialog();
  #drawer = new Drawer(() => this.#askForKey());
  #turns = [];
  #running = null; // the AbortController of the answer that streams

  start() {
    page.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.#composer.text);
    });
    page.stop.addEventListener("click", () => this.stop());
    page.routes.addEventListener("change", () => choices.set("route", page.routes.value));
    for (const suggestion of page.start.querySelectorAll("[data-suggestion]")) {
      suggestion.addEventListener("click", () => this.send(suggestion.textContent));
    }
    document.getElementById("new-chat").addEventListener("click", () => this.clear());
    document.getElementById("retry-start").addEventListener("click", () => this.loadRoutes());
    document.getElementById("theme").addEventListener("click", switchTheme);
    document.getElementById("language").addEventListener("click", () => this.switchLanguage());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) this.stop();
    });
    this.#relabel();
    this.#showRunning();
    this.loadRoutes();
    this.#composer.focus();
  }

  async loadRoutes() {
    page["start-failure"].hidden = true;
    try {
      const names = await fetchRoutes(session.get("key"));
      page.routes.replaceChildren(...names.map((name) => new Option(name, name)));
      if (names.includes(choices.get("route"))) page.routes.value = choices.get("route");
      page.routes.disabled = names.length === 0;
    } catch (failure) {
      this.#showStartFailure(failure);
    }
  }

  async send(text) {
    if (this.#running || text.trim() === "" || page.routes.value === "") return;
    const turn = new Turn(text.trim(), {
      speech: this.#speech,
      template: page.turn,
      onGrown: () => this.#follower.grown(),
      onRetry: (which) => this.#retry(which),
    });
    this.#turns.push(turn);
    page.conversation.append(turn.element);
    page.start.hidden = true;
    this.#composer.text = "";
    this.#composer.focus();
    await this.#run(turn);
  }

  stop() {
    if (!this.#running) return;
    this.#running.abort();
    this.#composer.focus();
  }

  clear() {
    this.stop();
    for (const turn of this.#turns.splice(0)) turn.element.remove();
    page.start.hidden = false;
    this.#announce("announceNew");
    this.#composer.focus();
  }

  switchLanguage() {
    const next = (LANGUAGES.indexOf(this.#speech.language) + 1) % LANGUAGES.length;
    this.#speech.language = LANGUAGES[next];
    choices.set("language", this.#speech.language);
    this.#relabel();
  }

  async #run(turn) {
    const controller = new AbortController();
    this.#running = controller;
    this.#showRunning();
    this.#follower.toEnd();
    this.#announce("announceStart");
    try {
      const options = { key: session.get("key"), signal: controller.signal };
      for await (const event of complete(this.#body(turn), options)) turn.take(event);
      turn.end("done");
      this.#announce("announceEnd");
    } catch (problem) {
      this.#failed(turn, problem, controller);
    } finally {
      this.#running = null;
      this.#showRunning();
    }
  }

  #failed(turn, problem, controller) {
    if (controller.signal.aborted) {
      turn.end("stopped");
      this.#announce("announceStop");
      return;
    }
    const failure = problem instanceof Failure ? problem : new Failure("broken");
    turn.end("failed", failure);
    page.status.textContent = explain(failure, this.#speech).title;
    if (failure.status === 401) this.#askForKey(failure.message, turn);
    if (failure !== problem) throw problem; // a defect of this page: let the console tell
  }

  #retry(turn) {
    if (this.#running || turn !== this.#turns.at(-1)) return;
    turn.reset();
    this.#composer.focus();
    this.#run(turn);
  }

  /** The request: the turns that have an answer, then this one's question. */
  #body(turn) {
    const messages = [];
    if (this.#drawer.systemPrompt) messages.push({ role: "system", content: this.#drawer.systemPrompt });
    for (const earlier of this.#turns) {
      if (earlier === turn || earlier.answer === "") continue;
      messages.push({ role: "user", content: earlier.question }, { role: "assistant", content: earlier.answer });
    }
    messages.push({ role: "user", content: turn.question });
    const body = { model: page.routes.value, messages };
    if (this.#drawer.maxTokens !== null) body.max_tokens = this.#drawer.maxTokens;
    return body;
  }

  #askForKey(message = "", turn = null) {
    this.#keyDialog.ask(async () => {
      if (page.routes.disabled) await this.loadRoutes();
      if (turn) this.#retry(turn);
      this.#composer.focus();
    }, message);
  }

  #showStartFailure(failure) {
    page.routes.replaceChildren(new Option(this.#speech.say("noRoutes"), ""));
    page.routes.disabled = true;
    const { title, detail, hint } = explain(failure, this.#speech);
    page["start-failure"].querySelector("strong").textContent = title;
    page["start-failure"].querySelector("p").textContent = `${detail} ${hint}`.trim();
    page["start-failure"].hidden = false;
    if (failure.status === 401) this.#askForKey(failure.message);
  }

  #showRunning() {
    page.send.hidden = this.#running !== null;
    page.stop.hidden = this.#running === null;
  }

  #relabel() {
    document.documentElement.lang = this.#speech.language;
    document.title = this.#speech.say("title");
    this.#speech.apply(document);
    for (const turn of this.#turns) turn.relabel();
  }

  #announce(key) {
    page.status.textContent = this.#speech.say(key);
  }
}

function switchTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (choices.get("theme") || system) === "dark" ? "light" : "dark";
  const chosen = next === system ? "" : next; // back to the system's: follow it again
  choices.set("theme", chosen);
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

new Chat().start();
