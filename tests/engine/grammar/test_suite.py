"""The JSON-Schema-Test-Suite, held against what llguidance says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.grammar.closing import Closer
from engine.grammar.compiled import Compiled, compile_grammar
from engine.protocol.errors import InvalidRequest
from tests.engine.grammar.schemas import of_schema

DRAFT = "draft2020-12"


def accepts(compiled: Compiled, closer: Closer, value: Any) -> bool:
    """Can this value be generated, token by token, and then the end?"""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    tokens = closer.vocabulary.tokens_of(text)
    state = compiled.begin(len(tokens) + 4096)
    output = np.array(tokens, np.int32)
    if state.usable(output[:0], tokens) != len(tokens):
        return False
    mask = state.mask(output)
    end = min(closer.vocabulary.end_ids)
    return mask is not None and bool(mask[end // 32] >> (end % 32) & 1)


def groups(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((folder / "tests" / DRAFT).glob("*.json")):
        for group in json.loads(path.read_text()):
            yield path.stem, group


def test_every_valid_instance_and_no_invalid_one(
    shared_data: Callable[[str], Path], closer: Closer
) -> None:
    listed = json.loads(
        (shared_data("llguidance") / "expected_json_schema_test_suite.json").read_text()
    )[DRAFT]
    accepted = refused = 0
    for name, group in groups(shared_data("JSON-Schema-Test-Suite")):
        expected = listed.get(name, {}).get(group["description"], {})
        try:
            compiled = compile_grammar(of_schema(group["schema"]), closer)
        except InvalidRequest:
            refused += 1
            assert "pass" not in expected.values(), (name, group["description"])
            continue
        accepted += 1
        for case in group["tests"]:
            if accepts(compiled, closer, case["data"]) != case["valid"]:
                assert expected[case["description"]].startswith("false_"), (name, case)
    assert accepted > 150
    assert refused > 50


@pytest.mark.parametrize("text", ["三十", 'naïve \\ "quoted"', "\U0001f600", "a\nb"])
def test_any_text_can_be_said(text: str, closer: Closer) -> None:
    compiled = compile_grammar(of_schema({"type": "string"}), closer)
    assert accepts(compiled, closer, text)
