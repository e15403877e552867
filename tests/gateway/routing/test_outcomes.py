"""The file of outcomes that a router is trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.protocol.errors import SetupError
from gateway.routing.outcomes import LEAST_PROMPTS, Columns, Outcomes, read_outcomes

ROWS = [f'"第{i}题，\n多少？",{"true" if i % 2 else "False"},1' for i in range(LEAST_PROMPTS)]


def written(tmp_path: Path, header: str, rows: list[str], encoding: str = "utf-8") -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes("\n".join([header, *rows]).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_prompts_of_several_lines_and_words_for_numbers(tmp_path: Path, encoding: str) -> None:
    outcomes = read_outcomes(written(tmp_path, "prompt,weak,strong", ROWS, encoding))
    assert outcomes.prompts[3] == "第3题，\n多少？"
    assert list(outcomes.weak[:4]) == [0.0, 1.0, 0.0, 1.0]
    assert outcomes.gains.sum() == LEAST_PROMPTS / 2
    assert outcomes.weak_cost is None


def test_columns_may_have_other_names_and_costs(tmp_path: Path) -> None:
    rows = [f"p{i},x,0.25,0.75,1,2.5" for i in range(LEAST_PROMPTS)]
    path = written(tmp_path, "prompt,other,mixtral,gpt,weak_cost,strong_cost", rows)
    outcomes = read_outcomes(path, Columns(weak="mixtral", strong="gpt"))
    assert (outcomes.weak[0], outcomes.strong[0]) == (0.25, 0.75)
    assert outcomes.weak_cost is not None
    assert outcomes.strong_cost is not None
    assert (outcomes.weak_cost[0], outcomes.strong_cost[0]) == (1.0, 2.5)


def test_one_cost_alone_is_none(tmp_path: Path) -> None:
    rows = [f"p{i},0,1,2" for i in range(LEAST_PROMPTS)]
    assert read_outcomes(written(tmp_path, "prompt,weak,strong,weak_cost", rows)).weak_cost is None


@pytest.mark.parametrize(
    ("header", "rows", "told"),
    [
        ("prompt,weak", ROWS, r"has no column 'strong'; it has prompt, weak\."),
        ("", [], r"has no column 'prompt'; it has none\."),
        ("prompt,weak,strong", ROWS[:3], r"has 3 prompts; at least 50 are needed\."),
        (
            "prompt,weak,strong",
            ["a,maybe,1"],
            r":2: weak must be true, false, or 0 to 1, not 'maybe'",
        ),
        ("prompt,weak,strong", ["a,2,1"], r":2: weak must be true, false, or 0 to 1, not '2'"),
        ("prompt,weak,strong", ["a,nan,1"], r":2: weak must be"),
        ("prompt,weak,strong", ["a,1"], r":2: strong must be .* not ''"),
        (
            "prompt,weak,strong,weak_cost,strong_cost",
            ["a,1,1,-1,2"],
            r":2: weak_cost must be a number that is not negative, not '-1'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, header: str, rows: list[str], told: str
) -> None:
    with pytest.raises(SetupError, match=told):
        read_outcomes(written(tmp_path, header, rows))


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"prompt,weak,strong\n\xff\xfe\x00")
    with pytest.raises(SetupError, match="no CSV file in UTF-8"):
        read_outcomes(tmp_path / "binary.csv")
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        read_outcomes(tmp_path / "missing.csv")


def test_a_digest_is_of_the_outcomes_in_any_order() -> None:
    one = Outcomes(["a", "b"], np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    other = one.of(np.array([1, 0]))
    assert (other.prompts, one.digest) == (["b", "a"], other.digest)
    assert one.digest != Outcomes(["a", "b"], one.strong, one.weak).digest
