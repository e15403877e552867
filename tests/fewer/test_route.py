"""`fewer route`: from a file of outcomes to a router, and to what it is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewer.main import main
from policies.router_model import read

EASY = ("怎么煮米饭", "how do I cook rice", "what goes into a salad")
HARD = ("证明这个群是交换群", "prove that the group is abelian", "find the field extension")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pytest.importorskip("wordllama")
    path = tmp_path / "data.csv"
    rows = ["prompt,small,large,weak_cost,strong_cost"]
    for i in range(90):
        rows.append(f"{EASY[i % 3]} {i},{int(i % 10 > 0)},1,1,10")
        rows.append(f"{HARD[i % 3]} {i},{int(i % 4 == 0)},{int(i % 10 > 0)},1,10")
    path.write_text("\n".join(rows), "utf-8")
    return path


def test_it_is_trained_and_evaluated(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    router = data.parent / "router.json"
    columns = ["--weak", "small", "--strong", "large"]
    assert main(["route", "train", str(data), "--out", str(router), *columns]) == 0
    told = capsys.readouterr().out
    assert "Trained on 180 prompts" in told
    assert read(router.read_bytes()).trained.prompts == 180
    assert main(["route", "eval", str(data), "--router", str(router), *columns]) == 0
    told = capsys.readouterr().out
    assert "trained on these very prompts" in told
    head, *rows = (line.split() for line in told.splitlines() if "%" in line or "QUALITY" in line)
    assert head == "STRONG THRESHOLD QUALITY GAP RECOVERED BY LENGTH MORE THAN LENGTH COST".split()
    assert [row[0] for row in rows] == [f"{share}0%" for share in range(1, 10)]
    half = rows[4]
    assert float(half[3]) > 0.8
    assert float(half[-1]) == pytest.approx(5.5)


def test_prompts_that_it_has_not_seen_without_costs(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router, other = data.parent / "router.json", data.parent / "other.csv"
    head, *rows = data.read_text("utf-8").splitlines()
    cut = [row.rsplit(",", 2)[0] for row in (head, *rows[:120])]
    other.write_text("\n".join(cut), "utf-8")
    columns = ["--weak", "small", "--strong", "large"]
    assert main(["route", "train", str(data), "--out", str(router), *columns]) == 0
    assert main(["route", "eval", str(other), "--router", str(router), *columns]) == 0
    told = capsys.readouterr().out
    assert "120 prompts. Quality: " in told
    assert "these very prompts" not in told
    assert "COST" not in told


def test_other_prompts_and_a_model_that_is_no_better(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router = data.parent / "router.json"
    train = ["route", "train", str(data), "--out", str(router)]
    assert main([*train, "--weak", "small", "--strong", "large"]) == 0
    evaluate = ["route", "eval", str(data), "--router", str(router)]
    assert main([*evaluate, "--weak", "large", "--strong", "small"]) == 1
    assert "no better: there is no gap" in capsys.readouterr().err
    assert main(evaluate) == 1
    assert "has no column 'weak'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), (b"\x80\x04", "no router file"), (b"{}", "no router file")],
)
def test_a_router_that_is_none(
    data: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, told: str
) -> None:
    router = data.parent / "router.json"
    if content is not None:
        router.write_bytes(content)
    words = ["route", "eval", str(data), "--router", str(router)]
    assert main([*words, "--weak", "small", "--strong", "large"]) == 1
    assert told in capsys.readouterr().err


def test_a_place_that_cannot_be_written(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["route", "train", str(data), "--out", str(data.parent)]
    assert main([*words, "--weak", "small", "--strong", "large"]) == 1
    assert "cannot be written" in capsys.readouterr().err
