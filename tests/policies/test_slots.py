"""What keeps an answer to one text from being an answer to another."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from policies import english, numerals
from policies.reading import MAX_CHARS, reading_of
from policies.slots import difference

SAME = [
    ("How do I delete my account?", "How do I remove my account?"),
    ("What is the capital of France?", "What's the capital of France?"),
    ("Please tell me how to ship 30 boxes.", "tell me how to ship thirty boxes"),
    ("Tell me why he cannot win.", "Please tell me why he can't win"),
    ("The `add` method is used to load a table.", "A table can be loaded by using `add()` method."),
    ("You can split a dataset by using `take`.", "You can divide a dataset with `take`."),
    ("Does it cost 1,000 dollars?", "Does it cost 1000 dollars?"),
    ("In the Python shell, how do I sort a list?", "How do I sort a list in the Python shell?"),
    ("北京的护照多少钱？", "请问北京的护照什么价格？"),
    ("怎么在上海办护照？", "如何在上海办护照？"),
    ("三十天内能退货吗？", "30天内可以退货吗？"),
    ("护照丢了怎么办", "护照丢了怎么办？"),
]  # fmt: skip

DIFFERENT = [
    ("How do I enable two-factor login?", "How do I disable two-factor login?"),
    ("Is it safe to eat 30 eggs?", "Is it safe to eat 31 eggs?"),
    ("Is it safe to eat thirty eggs?", "Is it safe to eat thirty-one eggs?"),
    ("Answer in 2.5 hours?", "Answer in 2,5 hours?"),
    ("Is it legal?", "Is it not legal?"),
    ("Can I pay with a card?", "Can I pay without a card?"),
    ("Should I call him?", "Should I never call him?"),
    ("Who beat Alice at chess, Bob?", "Who beat Bob at chess, Alice?"),
    ("Where was Ada Lovelace born?", "Where was Alan Turing born?"),
    ("Does Adam live here?", "Does Adams live here?"),
    ("Is gold heavier than iron?", "Is iron heavier than gold?"),
    ("Do cats eat dogs?", "Do dogs eat cats?"),
    ("How do I fly from Paris to Rome?", "How do I fly from Rome to Paris?"),
    ("When did it open?", "Where did it open?"),
    ("Did he win?", "Will he win?"),
    ("Must I pay?", "Can I pay?"),
    ("Is a dog nicer to a cat than to a dog?", "Is a dog nicer to a cat than to a cat?"),
    ("Was the cat chased by the dog?", "Was the cat chased near the dog?"),
    ("What was chased by the dog?", "What was chased, the dog?"),
    ("The table is empty at noon.", "Is the table empty at noon?"),
    ("The cat sees a dog and a bird near a dog.", "The cat sees a wolf and a bird near a dog."),
    ("The cat sees the cat and the dog.", "The cat sees the dog and the dog."),
    ("We know: the red cat sees a red dog.", "We know: the red cat sees a dog dog."),
    ("The red cat sees the dog and the cat.", "The red cat sees the dog and the dog."),
    ("The cat is on the old roof of the house.", "The cat is on the red roof of the house."),
    ("The method gives the name of a column.", "The method lists the name of a column."),
    ("Why can't cats swim?", "Why don't cats swim?"),
    ("What is my name?", "What is your name?"),
    ("Is the US large?", "Is the UK large?"),
    ("What does US mean?", "What does us mean?"),
    ("How long are 5 km?", "How long are 5 miles?"),
    ("Is it before noon?", "Is it after noon?"),
    ("What costs $5?", "What costs €5?"),
    ("What is 2 + 2?", "What is 2 - 2?"),
    ("What does `foo` do?", "What does `bar` do?"),
    ("What does foo_bar do?", "What does foo_baz do?"),
    ('Who said "I came"?', 'Who said "I saw"?'),
    ("Summarise https://a.example/x for the team.", "Summarise https://a.example/y for the team."),
    ("Are all birds able to fly?", "Are some birds able to fly?"),
    ("The method creates a copy of the table.", "The method deletes a copy of the table."),
    ("The `a` option was removed.", "The `a` option is removed."),
    ("You can pay in advance for the trip.", "You must pay in advance for the trip."),
    ("The table is loaded from the cloud.", "The table is loaded from the disk."),
    ("The old man likes the young woman.", "The young woman likes the old man."),
    ("The table is not empty.", "The table is empty."),
    ("Das ist gut.", "Das ist nicht gut."),
    ("Le chat mange la souris.", "La souris mange le chat."),
    ("Это хорошо.", "Это не хорошо."),
    ("犬は猫を食べますか", "猫は犬を食べますか"),
    ("护照可以补办吗？", "护照不可以补办吗？"),
    ("我没去过北京。", "我去过北京。"),
    ("北京的护照多少钱？", "上海的护照多少钱？"),
    ("三十天内能退货吗？", "三十一天内能退货吗？"),
    ("一万二千元够吗？", "12元够吗？"),
    ("气温升高怎么办？", "气温降低怎么办？"),
    ("狗吃猫吗？", "猫吃狗吗？"),
    ("怎么办护照？", "为什么办护照？"),
    ("只有他来吗？", "还有他来吗？"),
]  # fmt: skip


def differ(one: str, other: str) -> str | None:
    a, b = reading_of(one), reading_of(other)
    assert a is not None
    assert b is not None
    found = difference(a, b)
    assert (found is None) == (difference(b, a) is None)
    return found


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_in_other_words(one: str, other: str) -> None:
    assert differ(one, other) is None


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_close_but_different(one: str, other: str) -> None:
    assert differ(one, other) is not None


def test_a_statement_may_say_a_word_more_and_not_another_in_its_place() -> None:
    said = "The add method puts a column into the table at the given position."
    assert differ(said, said.replace("given", "given index")) is None
    assert differ(said, said.replace("column", "row")) is not None
    question = "Where does the add method put a column into the table?"
    assert differ(question, question.replace("column", "new column")) is not None


def test_another_voice_turns_a_statement_around() -> None:
    active = "The cat chases the dog through the garden."
    assert differ(active, "The dog is chased by the cat through the garden.") is None
    assert differ(active, "The cat is chased by the dog through the garden.") == "voice"
    assert differ(active, "The dog chases the cat through the garden.") == "order"


def test_what_cannot_be_compared() -> None:
    assert reading_of("") is None
    assert reading_of("?!") is None
    assert reading_of("why " * MAX_CHARS) is None
    assert reading_of("Fix this:\n```python\nprint(1)\n```") is None


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("two hundred and five", [205]),
        ("thirty one", [31]),
        ("two three", [2, 3]),
        ("twelve five", [12, 5]),
        ("five million two hundred", [5_000_200]),
        ("hundred", [100]),
        ("zero", [0]),
        ("", []),
    ],
)
def test_english_numbers(words: str, numbers: list[int]) -> None:
    assert numerals.english(words.split()) == numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("三十", 30), ("十", 10), ("两百", 200), ("一百零五", 105), ("二〇二四", 2024), ("零", 0),
     ("一万二千", 12_000), ("三亿", 300_000_000)],
)  # fmt: skip
def test_chinese_numbers(text: str, number: int) -> None:
    assert numerals.chinese(text) == number


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1,000", "1000"),
        ("３０", "30"),
        ("2.50", "2.5"),
        ("007", "7"),
        ("12:30", "12:30"),
        ("1,5", "1,5"),
    ],
)
def test_figures(text: str, plain: str) -> None:
    assert numerals.digits(text) == plain


def test_no_word_has_two_meanings() -> None:
    for lines in (english._SYNONYMS, english._LOOSE):
        words = lines.split()
        assert len(words) == len(set(words))


def test_an_answer_that_begins_with_no_says_it_again() -> None:
    said = "The table does not exist in the new version."
    assert differ(said, f"No, {said.replace('The', 'the')}") is None


def test_code_may_be_named_more_than_once() -> None:
    said = "The `add` method of the table puts a column into it."
    assert differ(said, f"{said} It is the `add` method.") is None


@pytest.mark.parametrize("part", ["万亿", "hundred ", "1", "?", "+.", "a@", "a.", "`", "two and "])
def test_the_longest_texts_of_any_kind_are_read(part: str) -> None:
    text = part * (MAX_CHARS // len(part))
    for asked in (text, f"{text}a"[-MAX_CHARS:]):
        reading = reading_of(asked)
        assert reading is None or difference(reading, reading) is None


@given(st.text(max_size=200))
@example("٣ ² Ⅳ ½ ३")
@example("十" * 50)
def test_any_text_can_be_read_and_is_like_itself(text: str) -> None:
    reading = reading_of(text)
    assert reading is None or difference(reading, reading) is None


QUESTIONS = (
    "What happens to Ada if she eats {} apples in the garden?",
    "Why does the train to Rome take {} hours?",
    "上海的护照{}天内能办好吗？",
)


@given(st.sampled_from(QUESTIONS), st.integers(0, 10**7), st.integers(0, 10**7))
def test_two_numbers_are_never_one(question: str, one: int, other: int) -> None:
    assume(one != other)
    assert differ(question.format(one), question.format(other)) is not None


WORDS = "cat dog house river stone train paper window garden doctor market winter".split()


@given(st.lists(st.sampled_from(WORDS), min_size=3, max_size=8, unique=True), st.randoms())
def test_one_word_for_another_is_always_seen_in_a_question(
    words: list[str], draw: random.Random
) -> None:
    place = draw.randrange(len(words))
    instead = draw.choice([word for word in WORDS if word not in words] + ["table"])
    changed = [*words[:place], instead, *words[place + 1 :]]
    one, other = (f"Why is the {' near the '.join(each)}?" for each in (words, changed))
    assert differ(one, other) is not None


@given(st.lists(st.sampled_from(WORDS), min_size=3, max_size=8, unique=True), st.randoms())
def test_a_negation_is_always_seen(words: list[str], draw: random.Random) -> None:
    place = draw.randrange(len(words))
    for negation in ("not", "never", "without"):
        denied = [*words[:place], negation, *words[place:]]
        for form in ("Is {} there?", "The {} is there."):
            one, other = (form.format(" ".join(each)) for each in (words, denied))
            assert differ(one, other) is not None
