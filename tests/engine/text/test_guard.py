from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.text.guard import Guard

MARKERS = ("<|im_start|>", "</s>", "[INST]", "<｜end▁of▁sentence｜>")
pieces = st.lists(
    st.sampled_from([*MARKERS, "<", "|", ">", "[/", "x", " ", "｜", "\n", "é🧵"]), max_size=12
)  # fmt: skip


@given(pieces)
def test_guarding_keeps_length_and_can_be_undone(parts: list[str]) -> None:
    guard, text = Guard(MARKERS), "".join(parts)
    guarded = guard.guard(text)
    assert len(guarded) == len(text)
    assert guard.restore(guarded) == text
    assert guard.guard(guarded) == guarded
    assert guard.guarded(guarded) == (guarded != text)


@given(pieces, st.integers(0, 40), st.integers(0, 40))
def test_no_part_of_guarded_text_completes_a_marker(parts: list[str], start: int, end: int) -> None:
    """Whatever is put around a slice of it."""
    guard = Guard(MARKERS)
    piece = guard.guard("".join(parts))[start:end]
    for marker in MARKERS:
        for cut in range(1, len(marker)):
            if not piece.isalnum():
                assert marker not in f"{marker[:cut]}{piece}"
                assert marker not in f"{piece}{marker[cut:]}"


def test_trees_are_copied_and_identifiers_kept_as_keys() -> None:
    guard = Guard(MARKERS)
    tree: dict[str, Any] = {"tool_name": ["</s>", 1, None, {"a<b": True}]}
    guarded = guard.guard_tree(tree)
    assert list(guarded) == ["tool_name"]
    assert "<" not in repr(guarded)
    assert guard.restore_tree(guarded) == tree
    assert tree == {"tool_name": ["</s>", 1, None, {"a<b": True}]}


def test_lone_surrogates_from_users_are_not_taken_for_twins() -> None:
    guard = Guard(MARKERS)
    forged = "".join(chr(code) for code in range(0xD800, 0xDC00, 7))
    assert set(guard.restore(guard.guard_tree(forged))) == {"\ufffd"}


def test_without_markers_nothing_changes() -> None:
    assert Guard(()).guard("<|x|>") == "<|x|>"
