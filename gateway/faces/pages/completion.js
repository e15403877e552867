/** One streamed chat completion: the request, its events, and its failures. */

import { EventParser } from "./sse.js";

/**
 * Why no answer came, or not all of one.
 *
 * kind: `http` refused with a status, `stream` an error object inside the stream, `broken` the
 *       stream ended without an end, `network` no connection
 */
export class Failure extends Error {
  constructor(kind, { message = "", status = 0, code = null, retryAfterS = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, retryAfterS, requestId });
  }
}

/** The names a client may ask for. @returns {Promise<string[]>} */
export async function fetchRoutes(key) {
  const response = await request("/v1/models", { headers: headers(key) });
  try {
    const body = await response.json();
    return body.data.map((model) => String(model.id));
  } catch {
    throw new Failure("broken");
  }
}

/**
 * Ask for an answer; yields what happens:
 *   {kind: "open", route, model, requestId, decisions}
 *   {kind: "text", text}   {kind: "reasoning", text}   {kind: "finish", reason}   {kind: "usage", usage}
 * Leaving the loop early closes the connection, which ends the generation.
 * Throws a `Failure`, or an AbortError when `signal` fired.
 */
export async function* complete(body, { key, signal }) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  yield opening(response.headers);
  let finished = false;
  for await (const data of eventData(response.body, signal)) {
    if (data === "[DONE]") break;
    for (const event of eventsOf(parse(data))) {
      finished ||= event.kind === "finish";
      yield event;
    }
  }
  if (!finished) throw new Failure("broken");
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Failure("network");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy's own page rather than our error object: the status says enough.
  }
  const retryAfter = Number.parseFloat(response.headers.get("retry-after"));
  return new Failure("http", {
    message: String(error.message ?? ""),
    status: response.status,
    code: error.code ?? null,
    retryAfterS: Number.isFinite(retryAfter) ? retryAfter : null,
    requestId: response.headers.get("x-request-id"),
  });
}

function opening(headers) {
  return {
    kind: "open",
    route: headers.get("x-fewer-route"),
    model: headers.get("x-fewer-model"),
    requestId: headers.get("x-request-id"),
    decisions: decisions(headers.get("x-fewer-decisions")),
  };
}

function decisions(header) {
  try {
    const list = JSON.parse(header ?? "[]");
    return Array.isArray(list) ? list.filter((item) => item && typeof item === "object") : [];
  } catch {
    return []; // a proxy may cut long headers
  }
}

async function* eventData(stream, signal) {
  const reader = stream.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } catch (problem) {
    if (signal.aborted) throw problem;
    throw new Failure("broken");
  } finally {
    reader.cancel().catch(() => {}); // it has failed already, or is over
  }
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure("broken");
  }
}

function* eventsOf(chunk) {
  if (chunk?.error) {
    throw new Failure("stream", { message: String(chunk.error.message ?? ""), code: chunk.error.code ?? null });
  }
  const choice = chunk?.choices?.[0];
  const delta = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (typeof reasoning === "string" && reasoning) yield { kind: "reasoning", text: reasoning };
  const text = delta.content || delta.refusal;
  if (typeof text === "string" && text) yield { kind: "text", text };
  if (choice?.finish_reason) yield { kind: "finish", reason: String(choice.finish_reason) };
  if (chunk?.usage) yield { kind: "usage", usage: chunk.usage };
}
