from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer

MANY_SCRIPTS = "Zażółć 🧵 👩‍🚀 終わり"


def test_text_of_many_bytes_a_character_arrives_whole(tokenizer: Tokenizer) -> None:
    """B01, with tokens of one byte as a grammar would force them."""
    one_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    for ids in (
        tokenizer.encode(MANY_SCRIPTS),
        [one_byte[bytes([byte])] for byte in MANY_SCRIPTS.encode()],
    ):
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.feed(token) for token in ids]
        assert "".join(pieces) == MANY_SCRIPTS
        assert all("\ufffd" not in piece for piece in pieces)
        assert detokenizer.flush() == ""


def test_an_unfinished_character_is_held_and_then_replaced(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🧵")
    assert len(ids) > 1
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.feed(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_text_is_not_held_longer_than_needed(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.encode("The capital of Japan is Tokyo."):
        assert detokenizer.feed(token) == tokenizer.decode([token])


def test_control_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.feed(token) for token in sorted(tokenizer.control_ids)] == [""] * 17


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 49_300), max_size=60)
    | st.lists(st.integers(0, 300), max_size=60)
)  # fmt: skip
def test_pieces_join_to_the_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)
