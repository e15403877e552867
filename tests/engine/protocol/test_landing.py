"""Where text may end. `¦` stands in the texts below for each place, and is no part of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.protocol.landing import LandingPoints


def feed(text: str, earliest: int, piece: int) -> int | None:
    points = LandingPoints()
    points.earliest = earliest
    found = (points.feed(text[at : at + piece]) for at in range(0, len(text), piece))
    return next((end for end in found if end is not None), None)


def marked(text: str, piece: int = 1) -> str:
    """`text` with a mark at each place."""
    ends: list[int] = []
    while (end := feed(text, ends[-1] + 1 if ends else 1, piece)) is not None:
        ends.append(end)
    for end in reversed(ends):
        text = f"{text[:end]}¦{text[end:]}"
    return text


SENTENCES = [
    "It is done.¦ Next! ¦Then",
    "Really?! ¦Yes.¦\nAnd so on",
    '"Stop." ¦He left (at last.)¦ **Good.**¦ ’Tis “over.”¦ Now',
    "你好。¦今天很好！¦真的吗？¦是；¦完了",
    "“今天很好。”¦他说。¦「はい。」¦そう（笑）。¦次",
    '他说"好。"¦走。¦"来。"¦**重点。**¦句。¦**又**一',
    "好!¦我说?¦你.¦我",
    "こんにちは。¦ありがとう！¦さて",
    "안녕하세요. ¦반갑습니다! ¦네",
    "नमस्ते। ¦आप कैसे हैं? ¦मैं ठीक हूँ।¦ हाँ",
    "كيف حالك؟ ¦أنا بخير.¦ شكرا",
    "یہ ٹھیک ہے۔ ¦اور",
    "Привет. ¦Как дела? ¦Хорошо",
    "„Ja.“ ¦Er ging. ¦«Oui !» ¦Bon",
    "สวัสดีครับ¦\nวันนี้อากาศดี¦\nลา",
    "ສະບາຍດີ¦\nລາ",
    "Ναι. ¦Όχι",
    "Բարեւ։ ¦Այո",
]
NO_SENTENCES = [
    "Pi is 3.14 and e is 2.718",
    "version 1.2.3 of https://a.example/b.html?c=d. and so on",
    "see Node.js, file.txt, a@b.example or 10.0.0.1 for it",
    "Dr. Smith, Mr. Brown and Mrs. Li",
    "fruit, e.g. Apples, i.e. Malus",
    "J. K. Rowling and U.S. Army, Ph.D. Students",
    "see Fig. 3, No. 5 and vol. 2, Jan. 1",
    "approx. five, etc. and so on",
    "am 3. Oktober, z. B. Heute, bzw. Morgen",
    "и т. д. Потом, т.е. Так",
    "Well... Then… Again.. More",
    "这是……好。。。再说……",
    "“Why?” he said, “Yahoo! was”",
    "1. 2. a. Begin",
    "IV. Begin",
    ".NET and .5 of it",
    "run `a. B` or `c! D",
    "Node.js是1.5版本",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_ends_in_any_language(text: str) -> None:
    # What follows the mark may be white space, with the mark before it.
    text = text.replace(" ¦", "¦ ")
    assert marked(text.replace("¦", "")) == text


@pytest.mark.parametrize("text", NO_SENTENCES)
def test_numbers_addresses_abbreviations_and_pauses_end_none(text: str) -> None:
    assert marked(text) == text


LINES = [
    "- milk¦\n- eggs, bread¦\n",
    "* a¦\n+ b¦\n• c¦\n– d¦\n",
    "1. one¦\n2) two¦\n10.1. ten¦\na) x¦\n",
    "1、苹果¦\n二、梨¦\n（3）桃¦\n",
    "  - deep¦\n> - quoted¦\n",
    "- **Steps:**\n- first:\n  1. go¦\n",
    "- \n1.\n---\n***\n",
    "Plain line\nand another\n\nroses are red\n",
    "Ingredients:\n",
    "# 1. Title. More?\n## What is it?\nA thing.¦\n",
    "**What now?**\nGo on.¦\n",
    "| a | b |\n|---|---|\n| Yes. No | d |¦\n| e | f |¦\nText\n",
]
CODE = [
    "So:\n```py\nx = 1.\nprint('a. B')\n\n- no\n```¦\nDone.¦ Ok",
    "````md\n```\nText. More\n```\n````¦\n",
    "~~~\na. B\n```\nc. D\n~~~¦\n",
    "1. Run:\n   ```sh\n   ls. Go\n   ```¦\n",
    "Answer: ```py\na. B\n```¦\nOk.¦ Yes",
    "```a. B``` is code.¦ Yes",
    "```py\nx = '```'\na. B\n``` no\nc. D\n",
    "$$\nx = 3.\n$$\nSo.¦ Then",
    "\\[\nx = 3.\n\\]\nSo.¦ Then",
    "$$ x = 3. $$\nSo.¦ Then",
]


@pytest.mark.parametrize("text", LINES + CODE)
def test_items_and_fences_end_with_their_last_line(text: str) -> None:
    assert marked(text.replace("¦", "")) == text


@pytest.mark.parametrize("opening", ["{", "[\n{", '["', "<p>", " <think>"])
def test_data_and_markup_have_no_place_to_end(opening: str) -> None:
    text = f'{opening}"a": "One. Two.\n- three\n", Four. Five'
    points = LandingPoints()
    assert marked(text) == text
    assert points.feed(f"{text}.") is None
    assert not points.ends_cleanly


@pytest.mark.parametrize(
    ("text", "cleanly"),
    [
        ("", False),
        ("\n", False),
        ("Done.", True),
        ("Done. ", True),
        ('He said "done."', True),
        ("好。", True),
        ("Done.\n\n", True),
        ("Done.\n\nNot", False),
        ("- milk\n", True),
        ("- milk", False),
        ("```\nx\n```", True),
        ("```\nx\n``", False),
        ("```\nx.", False),
        ("$$\nx\n$$", False),
        ("It costs $3.", False),
        ("It costs $3. ", True),
        ("It is the 3. ", False),
        ("It was 1999.", False),
        ("It was 1999. ", True),
        ("at a.example/b.", False),
        ("Mr.", False),
        ("e.g.", False),
        ("J.", False),
        ("x." * 40, False),
        ("x." * 40 + "xx.", False),
        ("see no.", False),
        ("Well...", False),
        ("# A title.", False),
        ("Run `it.", False),
    ],
)
def test_a_text_that_is_cut_ends_cleanly_only_where_nothing_can_follow(
    text: str, cleanly: bool
) -> None:
    points = LandingPoints()
    assert points.feed(text) is None
    assert points.ends_cleanly is cleanly


def test_an_end_before_the_earliest_does_not_count() -> None:
    text = "One. Two. Three. Four"
    assert [feed(text, earliest, 1) for earliest in (1, 4, 5, 9, 10, 17)] == [
        4, 4, 9, 9, 16, None,
    ]  # fmt: skip


def test_nothing_ends_before_it_is_told_to() -> None:
    points = LandingPoints()
    assert points.feed("One. Two. Three") is None


texts = st.lists(
    st.sampled_from(
        ["a", "B", "é", "1", " ", " ", "\n", ".", "!", "?", "。", "”", '"', "*", "`", "```", "- ",
         "好", "“", ":", "…", "|", "#", "~~~", "$$", "\\[", "e.g", "Dr", "{", "ก"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(1, 7), st.integers(1, 30))
@example("Hi. \nB", 3, 1)
def test_how_the_text_was_cut_into_pieces_changes_nothing(
    text: str, piece: int, earliest: int
) -> None:
    end = feed(text, earliest, 1)
    assert feed(text, earliest, piece) == feed(text, earliest, 1000) == end
    if end is None:
        return
    assert end >= earliest
    # A caller may have shown all but the piece that told; it must not have shown too much.
    shortest = next(n for n in range(len(text) + 1) if feed(text[:n], earliest, 1) is not None)
    assert text[end : shortest - 1].strip() == ""


@settings(max_examples=300, deadline=None)
@given(texts)
def test_no_end_is_inside_a_fence(text: str) -> None:
    whole = f"```\n{text.replace('`', '').replace('~', '')}"
    assert marked(whole) == whole
