"""Bodies: what is JSON to one reader and not to another is refused, and never a 500."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.body import MAX_DEPTH, MAX_VALUES, decode_object
from engine.protocol.errors import InvalidRequest


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode_object(body)
    assert caught.value.status == 400
    assert caught.value.message.endswith(".")
    return caught.value


def test_an_object_is_decoded() -> None:
    assert decode_object(b' {"a": [1, "\\u00e9\\ud83e\\uddf5", null]} ') == {"a": [1, "é🧵", None]}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"  \n", b"{", b"[]", b"null", b'"text"', b"1", b"{'a': 1}", b'{"a": 1,}',
        b"\xff\xfe", b'{"a": "\xff"}', b"\xef\xbb\xbf{}", b'{"a": 1} {"b": 2}', b'{"a": 1e999}',
        b'{"a": "\\ud800"}', b'{"a": "\\udc00x"}', b'{"\\ud800": 1}', b'{"a": "\n"}', b'{"a": 01}',
        b"\x00", b'{"a": "\\x"}',
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refused(body)


def test_the_place_of_the_fault_is_named_without_the_parser_s_words() -> None:
    error = refused(b'{"a": 1,\n "b": tru}')
    assert "line 2" in error.message
    assert "char" not in error.message


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_not_a_number_names_the_field_that_holds_it(constant: bytes) -> None:
    body = b'{"model": "NaN", "logit_bias": {"5": [1, %b]}, "top_p": 1}' % constant
    assert refused(body).param == "logit_bias"


def test_not_a_number_in_text_is_only_text() -> None:
    assert decode_object(b'{"a": "NaN"}') == {"a": "NaN"}
    assert refused(b'{"a": "NaN", "b": }').param is None
    assert refused(b"[NaN]").param is None


def test_not_a_number_among_many_fields_is_found_in_one_pass() -> None:
    body = b"{%b}" % b",".join([*(b'"f%d":1' % n for n in range(60_000)), b'"last":NaN'])
    start = time.thread_time()
    assert refused(body).param == "last"
    assert time.thread_time() - start < 2.0


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"m": [{"role": "user", "x": {"role": 1, "role": 2}}]}', "role"),
        (b'{"a": 1, "\\u0061" : 2}', "a"),
    ],
)
def test_a_key_given_twice_is_refused(body: bytes, key: str) -> None:
    assert repr(key) in refused(body).message


def test_text_that_looks_like_keys_is_no_key() -> None:
    value = {"a": '"b": 1, "b": 2', "c\\": '\\": "', "d": ["x", ":", '":']}
    assert decode_object(orjson.dumps(value)) == value


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)

    assert decode_object(nested(MAX_DEPTH))
    assert "levels" in refused(nested(MAX_DEPTH + 1)).message
    refused(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    refused(b'{"a":' + b"[" * 1_000_000)


def test_the_number_of_values_is_bounded() -> None:
    assert decode_object(b'{"a":[' + b"1," * (MAX_VALUES - 10) + b"1]}")
    assert "values" in refused(b'{"a":[' + b"{}," * MAX_VALUES + b"1]}").message


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), _values, max_size=4))
@settings(max_examples=200, deadline=None)
def test_every_object_comes_through_unchanged(value: dict[str, Any]) -> None:
    assert decode_object(orjson.dumps(value)) == value
    assert decode_object(json.dumps(value, indent=1).encode()) == value


@given(
    st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0de8 aNtf1.-', max_size=30).map(str.encode)
)
@settings(max_examples=500, deadline=None)
def test_no_bytes_raise_anything_but_a_refusal(body: bytes) -> None:
    try:
        assert isinstance(decode_object(body), dict)
    except InvalidRequest:
        pass
