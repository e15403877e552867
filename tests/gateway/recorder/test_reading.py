"""Reading what was recorded: in the order of arrival, over several files, past what is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.protocol.errors import SetupError
from gateway.recorder.line import Message, Sizes, encode
from gateway.recorder.reading import Recording
from policies.request import Request
from tests.gateway.recorder.lines import a_line, written

LINE = a_line(Request("chat", "chat", messages=[{"role": "user", "content": "你好"}]))


def test_lines_come_in_the_order_of_arrival_over_all_files(tmp_path: Path) -> None:
    arrivals = {"log": (5.0, 1.0), "log.1": (4.0, 0.5), "log.10": (3.0, 0.1), "log.lock": ()}
    for name, times in arrivals.items():
        written(tmp_path / name, [replace(LINE, begun_s=time_s) for time_s in times])
    recording = Recording(tmp_path / "log")
    for _ in range(2):
        assert [line.begun_s for line in recording] == [0.1, 0.5, 1.0, 3.0, 4.0, 5.0]
    assert recording.unreadable == 0


def test_what_is_broken_is_counted(tmp_path: Path) -> None:
    good = encode(LINE)
    later = encode(replace(LINE, format=2))
    sizes = [Sizes(messages=[Message("user", tokens, "h")]) for tokens in (-1, 10**12)]
    odd = b"".join(encode(replace(LINE, sizes=each)) for each in sizes)
    (tmp_path / "log").write_bytes(good + b"\xff\n{}\n" + later + odd + good + good[:50])
    recording = Recording(tmp_path / "log")
    assert list(recording) == [LINE, LINE]
    assert recording.unreadable == 6


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="There is no recording"):
        Recording(tmp_path / "log")
