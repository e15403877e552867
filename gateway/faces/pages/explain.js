/** What to tell a person about a failure: what happened, what the server said, what to do. */

/** @returns {{title: string, detail: string, hint: string}} */
export function explain(failure, speech) {
  const [title, hint] = keys(failure);
  const wait = failure.retryAfterS;
  return {
    title: speech.say(title),
    detail: failure.message,
    hint: wait === null ? speech.say(hint) : speech.say("waitHint", { seconds: speech.number(Math.ceil(wait)) }),
  };
}

function keys({ kind, status, code }) {
  if (kind === "network") return ["unreachable", "unreachableHint"];
  if (kind === "broken") return ["broken", "brokenHint"];
  if (kind === "stream") return ["streamFailed", "streamFailedHint"];
  if (code === "context_length_exceeded") return ["status400", "contextHint"];
  const known = [401, 403, 404, 413, 429, 503];
  const name = known.includes(status) ? `status${status}` : status < 500 ? "status400" : "status500";
  return [name, `${name}Hint`];
}
