"""Which texts have to do with a question."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.ranking import MOST_PIECES, ranked

CASES = {
    "How do I cancel a flight?": [
        "The hotel has a pool and a gym.",
        "Cancellation of flights is free within 24 hours of booking.",
        "Bags up to 23 kg are free on long-haul flights.",
    ],
    "怎么取消航班？": [
        "酒店有游泳池和健身房，早餐从七点开始。",
        "订票后二十四小时内可以免费取消航班，之后取消需要付费。",
        "航班上可以免费托运二十三公斤以内的行李。",
    ],
    "フライトをキャンセルするには": [
        "ホテルにはプールとジムがあります。",
        "予約後24時間以内であればフライトは無料でキャンセルできます。",
        "フライトでは23キロまでの荷物が無料です。",
    ],
    "ยกเลิกเที่ยวบินอย่างไร": [
        "โรงแรมมีสระว่ายน้ำและห้องออกกำลังกาย",
        "การยกเลิกเที่ยวบินไม่มีค่าใช้จ่ายภายใน 24 ชั่วโมง",
        "สัมภาระไม่เกิน 23 กิโลกรัมฟรี",
    ],
    "Как отменить рейс?": [
        "В гостинице есть бассейн и спортзал.",
        "Отмена рейса бесплатна в течение 24 часов.",
        "Багаж до 23 кг бесплатен.",
    ],
    "كيف ألغي الرحلة؟": [
        "في الفندق مسبح وصالة رياضية.",
        "إلغاء الرحلة مجاني خلال 24 ساعة من الحجز.",
        "الأمتعة حتى 23 كغ مجانية.",
    ],
    "A123 航班几点起飞？": [
        "A124航班下午三点起飞。",
        "A123航班上午九点起飞。",
        "B123航班已经取消。",
    ],
}


@pytest.mark.parametrize("question", CASES)
def test_the_text_that_answers_comes_first(question: str) -> None:
    assert ranked(question, CASES[question])[0] == 1


def test_a_rare_word_says_more_than_a_common_one() -> None:
    texts = ["the flight and the flight and the flight", "the visa", "the flight"]
    assert ranked("the flight visa", texts)[0] == 1


def test_long_texts_do_not_win_by_their_length() -> None:
    padding = " ".join(f"word{i}" for i in range(500))
    assert ranked("visa", [f"visa {padding}", "visa for China"]) == [1, 0]


def test_forms_that_look_alike_are_the_same() -> None:
    assert ranked("ＶＩＳＡ", ["hotel", "visa"])[0] == 1


words = st.sampled_from(
    ["visa", "签证", "cancellation", "航班A1", "рейс", "3.14", "", "—", "\ud800"]
)
texts = st.lists(st.lists(words, max_size=20).map(" ".join), max_size=12)


@settings(deadline=None)
@given(words, texts)
def test_every_text_has_one_place_always_the_same(question: str, found: list[str]) -> None:
    order = ranked(question, found)
    assert sorted(order) == list(range(len(found)))
    assert order == ranked(question, found)
    # Equals stay in their order, which is that of whoever found them.
    assert ranked("", found) == list(range(len(found)))


def test_a_question_of_any_length_is_ranked_in_time() -> None:
    question = " ".join(f"question{i}问题" for i in range(20_000))
    found = ["航班问题" * 500] * 20
    begun_s = time.process_time()
    assert ranked(question, found) == list(range(20))
    assert time.process_time() - begun_s < 1
    assert MOST_PIECES < 1000


@pytest.mark.parametrize("character", ["a", "问", "\ufdfa"])
def test_one_endless_word_is_ranked_in_time(character: str) -> None:
    begun_s = time.process_time()
    assert ranked(character * 1_000_000, [character * 20_000, "visa"]) == [0, 1]
    assert time.process_time() - begun_s < 1
