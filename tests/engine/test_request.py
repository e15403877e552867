from __future__ import annotations

import numpy as np
import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.sampling import Sampling
from engine.request import Request
from engine.sequence import Sequence, blocks_for

BASE = Request(id="r", prompts=[np.array([1, 2], np.int32)])


def changed(**fields: object) -> Request:
    names = [name for name in Request.__slots__ if name not in fields]
    return Request(**{name: getattr(BASE, name) for name in names}, **fields)  # type: ignore[arg-type]


def test_a_plain_request_is_valid() -> None:
    BASE.validate(3)
    changed(n=128, max_tokens=1, weight=0.5).validate(3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompts": []}, "prompt"),
        ({"prompts": [np.empty(0, np.int32)]}, "prompt"),
        ({"prompts": [np.array([3], np.int32)]}, "prompt"),
        ({"prompts": [np.array([-1], np.int32)]}, "prompt"),
        ({"prompts": BASE.prompts * 2049}, "prompt"),
        ({"prompts": BASE.prompts * 100, "n": 100}, "n"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2, "sampling": Sampling(min_tokens=3)}, "min_tokens"),
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"sampling": Sampling(logit_bias={3: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(stop_token_ids=[10**12])}, "stop_token_ids"),
    ],
)
def test_what_no_engine_can_honour_is_refused_by_name(
    fields: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        changed(**fields).validate(3)
    assert raised.value.param == param


def test_counts() -> None:
    request = changed(prompts=[*BASE.prompts, np.array([0], np.int32)], n=3)
    assert (request.prompt_tokens, request.num_choices) == (3, 6)


def sequence_of(prompt: int = 20, max_tokens: int = 300, **rest: int) -> Sequence:
    request = changed(prompts=[np.arange(prompt, dtype=np.int32)], n=2)
    return Sequence(
        request,
        0,
        arrival_number=1,
        max_tokens=max_tokens,
        expected_tokens=rest.get("expected_tokens", 50),
        seed=1,
        end_ids=frozenset(),
        root=b"root",
    )


def test_a_sequence_grows_without_touching_the_prompt_it_shares() -> None:
    sequence = sequence_of()
    shared = sequence.request.prompts[0]
    early = sequence.output
    for token in range(300):
        sequence.append(token)
    assert sequence.output.tolist() == list(range(300))
    assert sequence.prompt.tolist() == shared.tolist() == list(range(20))
    assert (sequence.num_tokens, sequence.output_tokens, len(early)) == (320, 300, 0)
    assert sequence.tokens(18, 22).tolist() == [18, 19, 0, 1]


def test_guesses_stand_behind_the_tokens_until_they_are_said_or_not() -> None:
    sequence = sequence_of(20, 300)
    sequence.guess([7, 8, 9])
    assert sequence.num_tokens == 20
    assert sequence.output.tolist() == []
    assert sequence.output_until(22).tolist() == [7, 8]
    sequence.append(7)
    sequence.append(1)
    assert sequence.output.tolist() == [7, 1]
    sequence.guess([])
    assert sequence.request.prompts[0].tolist() == list(range(20))


@pytest.mark.parametrize("said", [0, 1, 49, 60, 64, 120, 284])
def test_guesses_find_room_wherever_the_buffer_ends(said: int) -> None:
    sequence = sequence_of(20, 300)
    for token in range(said):
        sequence.append(token)
    sequence.guess(list(range(1000, 1015)))
    assert sequence.output_until(20 + said + 15).tolist() == [*range(said), *range(1000, 1015)]


def test_lengths_are_derived() -> None:
    sequence = sequence_of(20, 300)
    assert (sequence.uncomputed, sequence.reserved_tokens) == (20, 70)
    sequence.add_blocks([7, 3])
    assert sequence.advance(20) == 0
    for token in range(60):
        sequence.append(token)
        sequence.advance(1)
    assert sequence.reserved_tokens == 20 + 60 + 16
    assert sequence.take_blocks() == [7, 3]
    assert (sequence.num_blocks, sequence.num_computed, sequence.uncomputed) == (0, 0, 80)
    assert sequence.advance(50) == 50
    assert sequence.recomputed_tokens == 50


def test_the_reservation_never_exceeds_the_cap() -> None:
    assert sequence_of(20, 30, expected_tokens=500).reserved_tokens == 50


def test_keys_do_not_depend_on_when_they_are_made() -> None:
    early, late = sequence_of(), sequence_of()
    early.key(0)
    for token in range(40):
        early.append(token)
        late.append(token)
    assert early.key(2) == late.key(2)
    assert early.key(0) == late.key(0) != late.key(1)


def test_choices_have_noise_of_their_own() -> None:
    one = sequence_of()
    other = Sequence(
        one.request,
        1,
        arrival_number=1,
        max_tokens=1,
        expected_tokens=1,
        seed=1,
        end_ids=frozenset(),
        root=b"root",
    )
    assert one.seed != other.seed
    assert 0 <= one.seed < 2**64


def test_blocks_for() -> None:
    assert [blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_repr_is_a_status_line() -> None:
    assert repr(sequence_of()) == "<Sequence r/0 queued computed=0/20 blocks=0>"
