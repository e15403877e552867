"""What a GGUF file says about its tokens (the `tokenizer.ggml.*` keys of the GGUF spec)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.protocol.errors import ModelFileError

_KEY = "tokenizer.ggml."
_ENDS = frozenset(
    "<|im_end|> <|eot_id|> <|eom_id|> <end_of_turn> <|end_of_text|> <|endoftext|> <|end|> </s> "
    "<｜end▁of▁sentence｜>".split()
)
"""End tokens by their usual names: many files name only one of the several their model uses."""


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """
    tokens:       the text of each id, as the file writes it
    types:        the `TokenType` of each id
    bos, unknown: ids, or None where the file names none
    add_bos:      a completion's prompt begins with `bos`
    end_ids:      ids that end a generation
    named:        the template's variables: `bos_token`, `eos_token`, `unk_token`, `pad_token`
    markers:      text to id of every token that steers the model and that therefore no user may
                  write: control tokens, and the user-defined ones that the chat template spells
                  (`<tool_call>`, `<think>`). Other user-defined tokens are ordinary text.
    """

    tokens: list[str]
    types: list[int]
    bos: int | None
    unknown: int | None
    add_bos: bool
    end_ids: frozenset[int]
    named: dict[str, str]
    markers: dict[str, int]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Raises `ModelFileError` when keys are missing or contradict one another."""
        tokens = [str(token) for token in required(metadata, "tokens")]
        types = [int(kind) for kind in metadata.get(_KEY + "token_type", ())]
        types = types or [TokenType.NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise ModelFileError(
                f"The tokenizer has {len(tokens)} tokens and {len(types)} token types: "
                "the file is damaged."
            )
        ids = {
            name: _special_id(metadata, f"{name}_token_id", len(tokens))
            for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
        }
        for name in ("bos", "eos", "eot", "eom"):  # some files call them normal tokens
            if (special := ids[name]) is not None and types[special] == TokenType.NORMAL:
                types[special] = TokenType.CONTROL
        return cls(
            tokens=tokens,
            types=types,
            bos=ids["bos"],
            unknown=ids["unknown"],
            add_bos=bool(metadata.get(_KEY + "add_bos_token", False)) and ids["bos"] is not None,
            end_ids=_end_ids(tokens, types, ids),
            named=_named(tokens, ids),
            markers=_markers(tokens, types, str(metadata.get("tokenizer.chat_template", ""))),
        )

    @property
    def plain_added(self) -> dict[str, int]:
        """User-defined tokens that are ordinary text: found in any text, before all else."""
        return {
            token: i
            for i, token in enumerate(self.tokens)
            if self.types[i] == TokenType.USER_DEFINED and token and token not in self.markers
        }


def required(metadata: Mapping[str, Any], name: str) -> Any:
    if _KEY + name not in metadata:
        raise ModelFileError(
            f"The model file lacks {_KEY}{name}: without it text cannot become tokens."
        )
    return metadata[_KEY + name]


def _special_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    value = metadata.get(_KEY + name)
    if value is None:
        return None
    if not 0 <= int(value) < size:
        raise ModelFileError(f"{_KEY}{name} is {value}, outside the vocabulary of {size} tokens.")
    return int(value)


def _end_ids(tokens: list[str], types: list[int], ids: dict[str, int | None]) -> frozenset[int]:
    named = {ids[name] for name in ("eos", "eot", "eom")} - {None}
    usual = {i for i, token in enumerate(tokens) if token in _ENDS and types[i] != TokenType.NORMAL}
    return frozenset(i for i in named | usual if i is not None)


def _named(tokens: list[str], ids: dict[str, int | None]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    return {
        f"{short}_token": tokens[i] for name, short in names.items() if (i := ids[name]) is not None
    }


def _markers(tokens: list[str], types: list[int], template: str) -> dict[str, int]:
    return {
        token: i
        for i, token in enumerate(tokens)
        if token
        and (
            types[i] == TokenType.CONTROL
            or (types[i] == TokenType.USER_DEFINED and token in template)
        )
    }
