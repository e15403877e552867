"""From a grammar's text to what requests start from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson
from llguidance import LLMatcher, LLParserLimits

from engine.grammar.closing import Closer, Open
from engine.grammar.state import GrammarState
from engine.protocol.errors import InvalidRequest
from engine.protocol.grammar import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_TEXT_CHARS = 512 * 1024
"""What compiles in a second or two at worst; llguidance's own limits bound it beyond that."""
MAX_DEPTH = 64
MAX_MINIMUM_TOKENS = 4096
"""An answer must be able to end within this many."""

_COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False, "item_separator": ",", "key_separator": ":",
    "coerce_one_of": False, "lenient": False,
}  # fmt: skip
"""No white space at all: it says nothing, and some models write it for ever."""
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")


class Compiled:
    """One grammar, ready for any number of answers. Immutable.

    minimum_tokens: of the shortest answer that was found; None where answers are not closed at
                    their cap, which is so for all but JSON
    """

    def __init__(self, closer: Closer, matcher: LLMatcher, opening: list[int] | None) -> None:
        self._closer, self._matcher, self._opening = closer, matcher, opening
        self.minimum_tokens = None if opening is None else len(opening)

    def begin(self, max_tokens: int) -> GrammarState:
        """The state of one answer of up to so many tokens. Called from one thread."""
        return GrammarState(self._matcher, self._closer, self._opening, max_tokens)

    def check_cap(self, max_tokens: int) -> None:
        """Raise `InvalidRequest` where no answer that was found fits into the cap."""
        if self.minimum_tokens is not None and self.minimum_tokens > max_tokens:
            raise InvalidRequest(
                f"The shortest answer of this form has {self.minimum_tokens} tokens, but the "
                f"output may have {max_tokens}. Raise max_tokens.",
                param="max_tokens",
            )


def compile_grammar(grammar: Grammar, closer: Closer) -> Compiled:
    """Raises `InvalidRequest` that says what cannot be honoured, and where it stands."""
    if len(grammar.text) > MAX_TEXT_CHARS:
        raise _refused(
            grammar, f"it has {len(grammar.text)} characters; the limit is {MAX_TEXT_CHARS}"
        )
    limits = LLParserLimits(max_items_in_row=1000, step_max_items=10_000, verbose_errors=False)
    matcher = LLMatcher(closer.vocabulary.native, _source(grammar), log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # some faults show only here
    if matcher.is_error():
        raise _refused(grammar, _reason(grammar, matcher.get_error()))
    opening = None
    if grammar.kind == "json_schema":
        opening = closer.close(matcher, Open(), MAX_MINIMUM_TOKENS, thorough=True)
        if opening is None:
            raise _refused(
                grammar, f"no answer of up to {MAX_MINIMUM_TOKENS} tokens was found for it"
            )
    return Compiled(closer, matcher, opening)


def _source(grammar: Grammar) -> str:
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        schema = orjson.loads(grammar.text)
    except orjson.JSONDecodeError as error:
        raise _refused(grammar, f"it is not JSON: {error}") from error
    if not isinstance(schema, dict) and schema is not True:
        raise _refused(grammar, "it must be an object")
    _check(grammar, schema)
    try:
        text = "{}" if schema is True else grammar.text
        return LLMatcher.grammar_from_json_schema(text, overrides=_COMPACT)
    except ValueError as error:
        raise _refused(grammar, str(error)) from error


def _check(grammar: Grammar, schema: Any) -> None:
    """What llguidance would take for options of its own, or could not take at all."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _refused(grammar, f"it is nested more than {MAX_DEPTH} levels deep")
        if any(isinstance(node, dict) and "x-guidance" in node for node in level):
            raise _refused(grammar, "x-guidance is not supported")
        level = [child for node in level for child in _children(node)]


def _children(node: Any) -> list[Any]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [value for value in values if isinstance(value, (dict, list))]


def _reason(grammar: Grammar, error: str) -> str:
    found = _UNIMPLEMENTED.search(error)
    if found is None or grammar.kind != "json_schema":
        return " ".join(line.strip() for line in error.split("<non-verbose/>")[0].splitlines())
    keys = orjson.loads(found[1])
    schema = orjson.loads(grammar.text)
    where = [_path(schema, key) or key for key in keys]
    return f"{', '.join(where)} cannot be enforced here"


def _path(node: Any, key: str, path: str = "#") -> str | None:
    """Where a keyword stands first, as a JSON pointer."""
    if isinstance(node, dict):
        if key in node:
            return f"{path}/{key}"
        children = [(f"{path}/{name}", child) for name, child in node.items()]
    else:
        children = [(f"{path}/{index}", child) for index, child in enumerate(node)]
    found = (_path(child, key, at) for at, child in children if isinstance(child, (dict, list)))
    return next((at for at in found if at is not None), None)


def _refused(grammar: Grammar, reason: str) -> InvalidRequest:
    what = {"json_schema": "JSON Schema", "regex": "regular expression", "lark": "grammar"}
    return InvalidRequest(
        f"This {what[grammar.kind]} cannot be honoured: {reason[:500].rstrip('. ')}.",
        param=grammar.param,
    )
