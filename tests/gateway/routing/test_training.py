"""Training a router: what it learns, and that it learns nothing where there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from engine.protocol.errors import SetupError
from gateway.embedding import StaticEmbedding
from gateway.routing.curve import lengths, recovered
from gateway.routing.outcomes import Outcomes
from gateway.routing.training import PENALTIES, Inputs, train
from policies.router_model import Router, RouterModel, read

TOPICS = {
    "algebra": (
        "证明这个群是交换群",
        "prove that the group is abelian",
        "find the field extension",
    ),
    "food": ("怎么煮米饭", "how do I cook rice", "what goes into a salad"),
}
Right = Callable[[str, str, np.random.Generator], tuple[bool, bool]]


@pytest.fixture(scope="module")
def embed() -> StaticEmbedding:
    pytest.importorskip("wordllama")
    from gateway.embedding import bundled

    return bundled()


def made(right: Right, count: int = 400, seed: int = 0) -> Outcomes:
    """Prompts of two topics, and who was right."""
    random = np.random.default_rng(seed)
    prompts, weak, strong = [], [], []
    for _ in range(count):
        topic = ("algebra", "food")[random.integers(2)]
        text = TOPICS[topic][random.integers(3)]
        prompt = f"{text} {random.integers(10 ** random.integers(1, 9))}"
        prompts.append(prompt)
        one, other = right(topic, prompt, random)
        weak.append(float(one))
        strong.append(float(other))
    return Outcomes(prompts, np.array(weak), np.array(strong))


def by_topic(topic: str, prompt: str, random: np.random.Generator) -> tuple[bool, bool]:
    """The weaker model cannot do algebra."""
    return bool(random.random() < (0.9 if topic == "food" else 0.3)), bool(random.random() < 0.9)


def by_chance(topic: str, prompt: str, random: np.random.Generator) -> tuple[bool, bool]:
    return bool(random.random() < 0.5), bool(random.random() < 0.8)


def scores(model: RouterModel, embed: StaticEmbedding, prompts: Sequence[str]) -> np.ndarray:
    router = Router(model, lambda text: embed(text).tolist())
    return np.array([router.score(prompt) for prompt in prompts])


def test_what_a_prompt_is_about_is_learned(embed: StaticEmbedding) -> None:
    model = train(made(by_topic), embed)
    test = made(by_topic, seed=1)
    found = recovered(scores(model, embed, test.prompts), test, 0.5)
    assert found > 0.85 > recovered(lengths(test), test, 0.5)
    algebra, food = (scores(model, embed, TOPICS[topic]).mean() for topic in TOPICS)
    assert algebra == pytest.approx(0.6, abs=0.2)
    assert food == pytest.approx(0.0, abs=0.2)


def test_where_there_is_nothing_to_learn_the_embedding_counts_for_nothing(
    embed: StaticEmbedding,
) -> None:
    model = train(made(by_chance), embed)
    assert max(map(abs, model.weak.dimensions)) < 1 / PENALTIES[1]
    spread = scores(model, embed, made(by_chance, seed=1).prompts)
    assert spread.std() < 0.15
    assert spread.mean() == pytest.approx(0.3, abs=0.15)


def test_the_file_is_read_as_it_was_written_and_is_small(embed: StaticEmbedding) -> None:
    outcomes = made(by_topic, 100)
    model = train(outcomes, embed)
    data = msgspec.json.encode(model)
    assert read(data) == model
    assert len(data) < 10_000
    assert (model.trained.prompts, model.trained.data) == (100, outcomes.digest)
    assert model.embedding == embed.fingerprint
    inputs = Inputs.seen([*outcomes.prompts, "more"], embed)
    assert train(outcomes, embed, inputs.of(np.arange(100))) == model


def test_shares_are_of_prompts_that_it_had_not_seen(embed: StaticEmbedding) -> None:
    model = train(made(by_topic), embed)
    found = scores(model, embed, made(by_topic, seed=1).prompts)
    for share in (0.2, 0.5, 0.8):
        assert (found >= model.threshold(share)).mean() == pytest.approx(share, abs=0.12)


def test_models_that_are_equally_good_teach_nothing(embed: StaticEmbedding) -> None:
    with pytest.raises(SetupError, match="nothing to learn"):
        train(made(lambda *_: (True, True), 60), embed)
