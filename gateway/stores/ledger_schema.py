"""The tables of the ledger's file, and the columns of each in the order in which rows are written.

The script at place i of MIGRATIONS makes version i + 1. None that was released is ever edited: what
came later has a list of its own.
"""

from __future__ import annotations

from gateway.ledger.entry import Origins

_MEASURED_AT_FIRST = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "seconds",
    "dollars",
    "cut",
    "failed",
)
_QUALITY = ("unparsed", "repeated", "approval", "rated")
MEASURED = (*_MEASURED_AT_FIRST, *_QUALITY)
"""What is summed up for each conversation of a holdout. approval: of `rated` requests, what people
think of the answer, each from 0 to 1."""

ORIGINS = Origins.__struct_fields__
_AT_FIRST = (
    "time_s", "route", "tenant", "model", "error", "failed", "cut", "prompt_tokens",
    "completion_tokens", "cached_tokens", "reused_tokens", "estimated", "first_token_s",
    "per_token_s", "queue_ms", "seconds", "dollars", *(f"{origin}_tokens" for origin in ORIGINS),
)  # fmt: skip
_NAMES = ("call_id", "request_id", "conversation")
_COUNTS = ("unparsed", "repeated", "accepted_tokens", "rejected_tokens")
REQUEST = (*_AT_FIRST, "choices", *_NAMES, *_COUNTS, "asked_by")
RULING = (
    "request", "policy", "epoch", "mode", "arm", "action", "asked_tokens", "allowed_tokens",
    "cut_tokens",
)  # fmt: skip

_FEEDBACK = """
    CREATE TABLE feedback (
        request INTEGER PRIMARY KEY, given_s, score, label,
        FOREIGN KEY (request) REFERENCES requests (id) ON DELETE CASCADE
    )
"""

MIGRATIONS = (
    f"""
    CREATE TABLE requests (id INTEGER PRIMARY KEY, {", ".join(_AT_FIRST)});
    CREATE INDEX requests_by_time ON requests (time_s);
    CREATE TABLE rulings (
        {", ".join(RULING)}, FOREIGN KEY (request) REFERENCES requests (id) ON DELETE CASCADE
    );
    CREATE INDEX rulings_by_request ON rulings (request);
    CREATE TABLE conversations (
        route, policy, epoch, arm, conversation, last_s, {", ".join(_MEASURED_AT_FIRST)},
        PRIMARY KEY (route, policy, epoch, arm, conversation)
    ) WITHOUT ROWID;
    CREATE INDEX conversations_by_time ON conversations (last_s);
    CREATE TABLE looks (
        route, policy, epoch, number, time_s, control, treated, found,
        PRIMARY KEY (route, policy, epoch, number)
    ) WITHOUT ROWID;
    """,
    "ALTER TABLE requests ADD COLUMN choices DEFAULT 1;",
    ";".join(
        [
            *(f"ALTER TABLE requests ADD COLUMN {name}" for name in _NAMES),
            *(f"ALTER TABLE requests ADD COLUMN {name} DEFAULT 0" for name in _COUNTS),
            *(f"ALTER TABLE conversations ADD COLUMN {name} DEFAULT 0" for name in _QUALITY),
            "CREATE INDEX requests_by_call ON requests (call_id)",
            "CREATE INDEX requests_by_name ON requests (request_id) WHERE request_id IS NOT NULL",
            _FEEDBACK,
        ]
    ),
    "ALTER TABLE requests ADD COLUMN asked_by DEFAULT ''",
    "CREATE TABLE followed (stream PRIMARY KEY, position) WITHOUT ROWID",
)
