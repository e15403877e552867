"""The form that an answer must have, as a request says it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from engine.protocol.errors import InvalidRequest

GrammarKind = Literal["json_schema", "regex", "lark"]

_MUST_BE = "json_object, json_schema or text"


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer must be, from its first token to its last.

    kind:  how `text` is to be read
    text:  a JSON Schema as JSON (its order of properties is the answer's), a regular expression of
           the whole answer, or a Lark grammar in llguidance's dialect
    param: the field of the client's body that it came from, for errors to name
    """

    kind: GrammarKind
    text: str
    param: str = "response_format"


def grammar_of(fields: dict[str, Any]) -> Grammar | None:
    """The grammar that checked fields ask for; None where the answer is free text.

    Raises `InvalidRequest` for a form that is not known, or for two at once.
    """
    asked = [grammar for grammar in (_formatted(fields), *_structured(fields)) if grammar]
    if len(asked) > 1:
        raise InvalidRequest(
            f"{asked[0].param} and {asked[1].param} both say what the answer must be; "
            "give one of them.",
            param=asked[1].param,
        )
    return asked[0] if asked else None


def _formatted(fields: dict[str, Any]) -> Grammar | None:
    wanted = fields.get("response_format") or {"type": "text"}
    kind = wanted["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_schema", '{"type":"object"}')
    if kind != "json_schema":
        raise InvalidRequest(
            f"response_format.type must be {_MUST_BE}, not {kind[:32]!r}.",
            param="response_format.type",
        )
    path = "response_format.json_schema.schema"
    schema = wanted["json_schema"].get("schema")
    if schema is None:
        raise InvalidRequest(f"{path} is missing.", param=path)
    return Grammar("json_schema", _json(schema), path)


def _structured(fields: dict[str, Any]) -> list[Grammar]:
    """vLLM's names, present and former."""
    named: dict[str, Any] = {
        f"structured_outputs.{name}": value
        for name, value in (fields.get("structured_outputs") or {}).items()
    }
    named |= {name: value for name, value in fields.items() if name.startswith("guided_")}
    return [
        _named(path, path.removeprefix("structured_outputs.").removeprefix("guided_"), value)
        for path, value in named.items()
        if value is not None and value is not False
    ]


def _named(path: str, name: str, value: Any) -> Grammar:
    if name == "json_object":
        return Grammar("json_schema", '{"type":"object"}', path)
    if name == "json":
        return Grammar("json_schema", value if isinstance(value, str) else _json(value), path)
    if name == "choice" and isinstance(value, list) and value:
        if all(isinstance(text, str) for text in value):
            # JSON's strings are Lark's, where what is not ASCII stands for itself.
            return Grammar("lark", "start: " + " | ".join(map(_json, value)), path)
        raise InvalidRequest(f"{path} must be an array of strings.", param=path)
    if name in ("regex", "grammar") and isinstance(value, str) and value:
        return Grammar("regex" if name == "regex" else "lark", value, path)
    raise InvalidRequest(
        f"{path} is not supported here: an answer's form may be said as json, json_object, regex, "
        "choice or grammar.",
        param=path,
    )


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise InvalidRequest("The schema is nested too deeply.", param="response_format") from error
