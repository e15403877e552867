/** One exchange on the page: the question, its answer as it streams, and what it took. */

import { explain } from "./explain.js";
import { Prose } from "./prose.js";

export class Turn {
  /** The text of the answer so far. */
  answer = "";

  #speech;
  #parts;
  #prose;
  #pending = "";
  #reasoning = "";
  #frame = 0;
  #onGrown;
  #measured;
  #outcome;

  /**
   * @param {string} question
   * @param {{speech: Speech, template: HTMLTemplateElement, onGrown: () => void, onRetry: (turn: Turn) => void}} page
   */
  constructor(question, { speech, template, onGrown, onRetry }) {
    this.question = question;
    this.#speech = speech;
    this.#onGrown = onGrown;
    this.element = template.content.firstElementChild.cloneNode(true);
    this.#parts = Object.fromEntries(
      [...this.element.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]),
    );
    this.#parts.question.textContent = question;
    this.#parts.copy.addEventListener("click", () => copy(this.answer, this.#parts.copy, speech));
    this.#parts.retry.addEventListener("click", () => onRetry(this));
    this.reset();
  }

  /** Back to the moment before the first token. */
  reset() {
    this.answer = "";
    this.#pending = "";
    this.#reasoning = "";
    this.#measured = { startedAt: performance.now(), firstAt: null, lastAt: null, pieces: 0, usage: null };
    this.#outcome = { status: "waiting", opening: null, finish: null, failure: null };
    this.#parts.answer.replaceChildren();
    this.#parts.reasoning.textContent = "";
    this.#parts.thinking.hidden = true;
    this.#prose = new Prose(this.#parts.answer, (code) => this.#codeCopyButton(code));
    this.relabel();
  }

  /** Take one event of `complete`. */
  take(event) {
    const measured = this.#measured;
    if (event.kind === "open") this.#outcome.opening = event;
    else if (event.kind === "usage") measured.usage = event.usage;
    else if (event.kind === "finish") this.#outcome.finish = event.reason;
    else {
      measured.lastAt = performance.now();
      measured.firstAt ??= measured.lastAt;
      measured.pieces += 1;
      if (event.kind === "text") this.answer += event.text;
      if (event.kind === "text") this.#pending += event.text;
      else this.#reasoning += event.text;
      // One paint can hold many events: the page works at its own pace, not the model's.
      this.#frame ||= requestAnimationFrame(() => this.#paint());
    }
  }

  /** Nothing more comes. status: `done`, `stopped` or `failed` */
  end(status, failure = null) {
    cancelAnimationFrame(this.#frame);
    this.#paint();
    this.#prose.end();
    Object.assign(this.#outcome, { status, failure });
    this.relabel();
    this.#onGrown();
  }

  get failure() {
    return this.#outcome.failure;
  }

  /** Write every text of the page's own again, in the language of the moment. */
  relabel() {
    const { status, failure } = this.#outcome;
    const ended = status !== "waiting";
    this.#speech.apply(this.element);
    this.element.dataset.status = this.#measured.firstAt === null || ended ? status : "streaming";
    this.#parts.answer.setAttribute("aria-busy", String(!ended));
    this.#parts.waiting.hidden = this.element.dataset.status !== "waiting";
    this.#parts.footer.hidden = !ended;
    this.#parts.copy.hidden = this.answer === "";
    this.#show(this.#parts.notice, this.#notice());
    this.#parts.failure.hidden = !failure;
    if (failure) this.#showFailure(failure);
    if (ended) {
      this.#showStatistics();
      this.#showDecisions();
    }
  }

  #paint() {
    this.#frame = 0;
    if (this.element.dataset.status === "waiting" && this.#measured.firstAt !== null) this.relabel();
    this.#prose.feed(this.#pending);
    this.#pending = "";
    if (this.#reasoning) {
      this.#parts.thinking.hidden = false;
      this.#parts.reasoning.append(this.#reasoning);
      this.#reasoning = "";
    }
    this.#onGrown();
  }

  #notice() {
    const { status, finish } = this.#outcome;
    if (status === "stopped") return this.#speech.say("stoppedNotice");
    if (status !== "done") return "";
    if (finish === "length") return this.#speech.say("lengthNotice");
    if (finish === "content_filter") return this.#speech.say("filterNotice");
    return this.answer === "" ? this.#speech.say("emptyNotice") : "";
  }

  #showFailure(failure) {
    const { title, detail, hint } = explain(failure, this.#speech);
    const id = failure.requestId ?? this.#outcome.opening?.requestId;
    this.#show(this.#parts.failureTitle, title);
    this.#show(this.#parts.failureDetail, detail);
    this.#show(this.#parts.failureHint, hint);
    this.#show(this.#parts.requestId, id ? this.#speech.say("requestId", { id }) : "");
  }

  #showStatistics() {
    const { startedAt, firstAt, lastAt, pieces, usage } = this.#measured;
    const speech = this.#speech;
    const tokensOut = usage?.completion_tokens ?? pieces;
    const speed = (tokensOut - 1) / ((lastAt - firstAt) / 1000);
    const known = {
      ttft: firstAt && speech.duration((firstAt - startedAt) / 1000),
      speed: lastAt - firstAt > 1 && tokensOut > 1 && speech.say("perSecond", { value: speech.number(speed, 1) }),
      tokensIn: usage && speech.number(usage.prompt_tokens),
      tokensOut: usage ? speech.number(tokensOut) : firstAt && speech.say("about", { value: speech.number(tokensOut) }),
      cached: usage && speech.number(usage.prompt_tokens_details?.cached_tokens ?? 0),
      model: this.#outcome.opening?.model,
    };
    this.#parts.statistics.replaceChildren(
      ...Object.entries(known).filter(([, value]) => value).map(([name, value]) => this.#statistic(name, value)),
    );
  }

  #statistic(name, value) {
    const [pair, term, description] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    const counted = name === "tokensOut" && !this.#measured.usage;
    pair.dataset.statistic = name;
    pair.title = this.#speech.say(counted ? "aboutLong" : `${name}Long`);
    term.textContent = this.#speech.say(name);
    description.textContent = value;
    pair.append(term, description);
    return pair;
  }

  #showDecisions() {
    const opening = this.#outcome.opening;
    this.#parts.decisions.hidden = opening === null;
    if (opening === null) return;
    const rows = opening.decisions.map((decision) => this.#decision(decision));
    if (rows.length === 0) rows.push(row([["policy", this.#speech.say("policies")], ["reason", this.#speech.say("noPolicies")]]));
    this.#parts.decisions.replaceChildren(...rows);
  }

  #decision({ policy, mode, action, reason }) {
    const parts = [["policy", policy], ["action", this.#speech.action(String(action ?? ""))], ["reason", reason]];
    if (mode === "shadow") parts.push(["mode", this.#speech.say("shadow")]);
    const element = row(parts.filter(([, text]) => text));
    element.dataset.mode = String(mode ?? "");
    return element;
  }

  #codeCopyButton(code) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.text = "copy";
    button.textContent = this.#speech.say("copy");
    button.addEventListener("click", () => copy(code.textContent, button, this.#speech));
    return button;
  }

  #show(element, text) {
    element.textContent = text;
    element.hidden = text === "";
  }
}

/** A list item of spans with dots between; parts are [class name, text]. */
function row(parts) {
  const element = document.createElement("li");
  for (const [name, text] of parts) {
    const span = document.createElement("span");
    span.className = name;
    span.textContent = String(text);
    element.append(element.hasChildNodes() ? " · " : "", span);
  }
  return element;
}

async function copy(text, button, speech) {
  const label = button.querySelector("[data-text]") ?? button;
  const said = (await putOnClipboard(text)) ? "copied" : "copyFailed";
  label.textContent = speech.say(said);
  setTimeout(() => {
    label.textContent = speech.say("copy");
  }, 1600);
}

async function putOnClipboard(text) {
  try {
    await navigator.clipboard.writeText(text); // absent where the page came over plain HTTP
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
