"""What becomes of the settings `shape`, `input` and `agent`, from the file to the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine.protocol.errors import ConfigError
from gateway.backends.base import Backend, Capabilities
from gateway.backends.fields import to_fields
from gateway.backends.scripted import ScriptedBackend
from gateway.config import (
    AgentConfig,
    BudgetConfig,
    DedupConfig,
    HistoryConfig,
    InputConfig,
    LearnConfig,
    RouteConfig,
    ShapeConfig,
    load,
)
from gateway.route_policies import policies_of
from gateway.shaping import AS_INSTRUCTION, ONE_LIMIT
from policies.budget import BudgetPolicy
from policies.shape import ShapePolicy
from tests.fakes.conversations import calls, chat, result, user
from tests.fakes.serving import Gateway, Serve, scripted_config
from tests.gateway.test_prompt_policies import route_of

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"总额": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": "查询"}}]


def test_a_schema_is_read_from_its_file_or_stands_in_ours(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "发票.json").write_text(json.dumps(SCHEMA), "utf-8")
    route = route_of(tmp_path, "shape: {schema: schemas/发票.json}")
    assert route.shape == ShapeConfig(schema=SCHEMA)
    assert route_of(tmp_path, "shape: {schema: {type: object}}").shape == ShapeConfig(
        schema={"type": "object"}
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("shape: {schema: none.json}", "shape.schema: none.json cannot be read: No such file"),
        ("shape: {schema: broken.json}", "broken.json is not JSON"),
        ("shape: {schema: list.json}", "list.json is not a JSON Schema: it must hold an object"),
        ("shape: {schema: [1]}", "shape.schema: must be a mapping of names"),
        ("shape: {}", "shape: says nothing: give brevity, instruction, schema, answer or"),
        ("shape: {brevity: short}", "brevity: must be one of concise"),
        ("shape: {brevity: true}", "brevity: must be one of concise, not true"),
        ("shape: {reasoning: off}", "reasoning: must be one of shown, hidden"),
        ("shape: {instruction: ''}", "shape.instruction"),
        ("shape: {answer: Moved., brevity: concise}", "answer: leaves no place for anything"),
        ("shape: {answer: Moved., reasoning: hidden}", "answer: leaves no place for anything"),
        ("agent: {}", "agent: sets no limit: give max_tool_rounds or max_run_tokens"),
        ("agent: {max_tool_rounds: 0}", "agent.max_tool_rounds"),
        ("input: {}", "max_prompt_tokens is missing"),
        ("input: {max_prompt_tokens: 9, retrieved: dropped}", "retrieved: must be one of kept"),
        ("budget: {max_tokens: 9, learn: {percentile: 100}}", "learn.percentile"),
        ("budget: {max_tokens: 9, learn: {}, holdout: 0}", "learn: needs a holdout above 0"),
        ("budget: {max_tokens: 9, reasoning_tokens: 9}", "reasoning_tokens: needs a model that"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError) as caught:
        route_of(tmp_path, settings)
    assert message in caught.value.message


def test_a_model_says_what_it_calls_the_limit_of_its_thoughts(tmp_path: Path) -> None:
    model = "{openai: 'http://h/v1', reasoning_field: reasoning.max_tokens}"
    route = route_of(tmp_path, "budget: {max_tokens: 9, reasoning_tokens: 5}", model)
    assert route.budget == BudgetConfig(9, reasoning_tokens=5)
    policy = policies_of(route)[0]
    assert isinstance(policy, BudgetPolicy)
    assert policy.reasoning_tokens == 5
    with pytest.raises(ConfigError, match="reasoning_field"):
        route_of(tmp_path, "budget: {max_tokens: 9}", "{gguf: a, reasoning_field: 'a..b'}")


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    limits = "input: {max_prompt_tokens: 9}, agent: {max_tool_rounds: 3}"
    route = route_of(tmp_path, f"{limits}, budget: {{max_tokens: 9, learn: {{}}}}")
    assert route.input == InputConfig(9, "kept", "active", 0.0)
    assert route.agent == AgentConfig(3, None, "refuse", "active", 0.0)
    assert route.budget == BudgetConfig(9, learn=LearnConfig(95, 32, 200))


FULL = RouteConfig(
    "m",
    budget=BudgetConfig(9),
    history=HistoryConfig(high_tokens=9, low_tokens=1),
    dedup=DedupConfig(),
    shape=ShapeConfig(brevity="concise", schema=SCHEMA, holdout=0.25),
    input=InputConfig(9),
    agent=AgentConfig(3),
)


def test_output_comes_first_and_what_is_left_out_after_the_cut() -> None:
    """A schema must be known before answers are cut; history's cut must not move with the
    question; and no reference may lead to a text that is gone."""
    names = [policy.name for policy in policies_of(FULL)]
    places = [names.index(n) for n in ("shape", "budget", "agent", "history", "input", "dedup")]
    assert places == sorted(places)


def test_what_holds_in_both_arms_is_no_experiment() -> None:
    assert policies_of(FULL)[0].holdout == 0.25
    for shape in (
        ShapeConfig(schema=SCHEMA),
        ShapeConfig(answer="9"),
        ShapeConfig(reasoning="hidden"),
    ):
        assert policies_of(RouteConfig("m", shape=shape))[0].holdout == 0.0


def test_another_schema_is_another_experiment() -> None:
    shapes = [ShapeConfig(schema=schema) for schema in (SCHEMA, {"type": "object"})]
    epochs = {policies_of(RouteConfig("m", shape=shape))[0].epoch for shape in shapes}
    assert len(epochs) == 2


def test_what_is_learned_is_told_to_the_policy() -> None:
    settings = BudgetConfig(9, learn=LearnConfig(90, 5, 300))
    policy = policies_of(RouteConfig("m", settings))[0]
    assert isinstance(policy, BudgetPolicy)
    assert policy.learning is not None
    assert msgspec.structs.astuple(policy.learning) == (90, 5, 300)


def test_upstreams_get_a_schema_as_openai_writes_it() -> None:
    fields = to_fields(chat([user("多少钱？")], schema=SCHEMA))
    assert fields["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
    }
    assert "response_format" not in to_fields(chat([user("多少钱？")]))


@pytest.mark.parametrize(
    ("field", "given", "sent"),
    [
        ("thinking_token_budget", {}, {"thinking_token_budget": 256}),
        ("thinking_token_budget", {"thinking_token_budget": 64}, {"thinking_token_budget": 64}),
        ("thinking_token_budget", {"thinking_token_budget": 9**9}, {"thinking_token_budget": 256}),
        ("reasoning.max_tokens", {}, {"reasoning": {"max_tokens": 256}}),
        (
            "reasoning.max_tokens",
            {"reasoning": {"exclude": True}},
            {"reasoning": {"exclude": True, "max_tokens": 256}},
        ),
        ("a.b.c", {"a": "odd"}, {"a": {"b": {"c": 256}}}),
    ],
)
def test_upstreams_are_told_what_may_be_thought_in_their_words(
    field: str, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Neither more than the route allows, nor more than the client wants."""
    request = chat([user("多少钱？")], max_tokens=512, reasoning_tokens=256, parameters=given)
    before = json.dumps(given)
    fields = to_fields(request, "max_completion_tokens", field)
    messages = {"messages": request.messages}
    assert fields == messages | {"max_completion_tokens": 768} | sent
    assert json.dumps(given) == before


async def test_a_room_for_thoughts_is_asked_of_models_that_have_one(serve: Serve) -> None:
    route = RouteConfig("one", BudgetConfig(512, reasoning_tokens=256))
    refuse = {"refuse": {"code": "unavailable"}}
    one, two = backend("one", refuse), backend("two")
    one.capabilities = Capabilities(reasoning=True)
    gateway = await serving(serve, route, one, two)
    response = await gateway.chat()
    assert decisions(response)["budget"]["degraded"] == ONE_LIMIT
    assert [each.calls[0].request.most_tokens for each in (one, two)] == [768, 512]


def backend(name: str, *steps: dict[str, Any], structured: bool = False) -> ScriptedBackend:
    made = ScriptedBackend(name, {"steps": list(steps) or [{"text": '{"总额": 9}'}]})
    made.capabilities = Capabilities(structured=structured)
    return made


async def serving(serve: Serve, route: RouteConfig, *models: Backend) -> Gateway:
    config = replace(scripted_config(*(model.name for model in models)), routes={"chat": route})
    gateway: Gateway = await serve(config, {model.name: model for model in models})
    return gateway


def decisions(response: Any) -> dict[str, dict[str, str]]:
    assert response.status_code == 200, response.text
    found = json.loads(response.headers["x-fewer-decisions"])
    return {each["policy"]: each for each in found}


FORMED = RouteConfig("one", shape=ShapeConfig(schema=SCHEMA))


async def test_a_model_that_can_is_kept_to_the_schema(serve: Serve) -> None:
    gateway = await serving(serve, FORMED, backend("one", structured=True))
    told = decisions(await gateway.chat())["shape"]
    assert told["reason"] == "schema set"
    assert "degraded" not in told
    assert gateway.scripted.calls[0].request.schema == SCHEMA


async def test_for_another_it_is_an_instruction_and_that_is_said(serve: Serve) -> None:
    gateway = await serving(serve, FORMED, backend("one"))
    for stream in (False, True):
        told = decisions(await gateway.chat(stream=stream))["shape"]
        assert told["degraded"] == AS_INSTRUCTION
    got = gateway.scripted.calls[0].request
    assert got.schema is None
    assert got.messages[0]["role"] == "system"
    assert msgspec.json.encode(SCHEMA).decode() in got.messages[0]["content"]
    assert got.messages[1:] == [{"role": "user", "content": "Hi"}]


async def test_each_model_gets_what_it_can_do(serve: Serve) -> None:
    refuse = {"refuse": {"code": "unavailable"}}
    one, two = backend("one", refuse, structured=True), backend("two")
    gateway = await serving(serve, FORMED, one, two)
    response = await gateway.chat()
    assert decisions(response)["shape"]["degraded"] == AS_INSTRUCTION
    assert one.calls[0].request.schema == SCHEMA
    assert two.calls[0].request.schema is None


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"response_format": {"type": "json_object"}}])
async def test_a_request_that_says_its_own_form_keeps_it(
    serve: Serve, fields: dict[str, Any]
) -> None:
    gateway = await serving(serve, FORMED, backend("one"))
    debug = {"x-fewer-debug": "true"}
    told = decisions(await gateway.chat(headers=debug, **fields))["shape"]
    assert told["action"] == "keep"
    assert told["reason"].startswith("no schema: ")
    assert gateway.scripted.calls[0].request.schema is None
    assert gateway.scripted.calls[0].request.messages == [{"role": "user", "content": "Hi"}]


async def test_a_shadow_hides_and_shapes_nothing(serve: Serve) -> None:
    shape = ShapeConfig(schema=SCHEMA, reasoning="hidden", mode="shadow")
    gateway = await serving(serve, RouteConfig("one", shape=shape), backend("one", THOUGHT, SAID))
    response = await gateway.chat()
    assert "degraded" not in decisions(response)["shape"]
    assert response.json()["choices"][0]["message"]["reasoning_content"] == "想一想"
    assert gateway.scripted.calls[0].request.schema is None


THOUGHT, SAID = {"reasoning": "想一想", "tokens": 7}, {"text": "九元"}
HIDDEN = RouteConfig("one", shape=ShapeConfig(reasoning="hidden"))


async def test_hidden_reasoning_reaches_nobody_and_is_counted(serve: Serve) -> None:
    gateway = await serving(serve, HIDDEN, backend("one", THOUGHT, SAID))
    response = await gateway.chat()
    choice = response.json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "九元", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert response.json()["usage"]["completion_tokens"] == 8
    streamed = await gateway.chat(stream=True)
    assert "想" not in streamed.text
    assert "九元" in streamed.text


async def test_what_is_kept_and_shared_is_what_the_model_said(serve: Serve) -> None:
    """Each reader's route hides by itself: a hit on a route that hides is hidden too."""
    shown = RouteConfig("one")
    gateway = await serving(serve, shown, backend("one", THOUGHT, SAID))
    first = await gateway.chat(temperature=0)
    assert first.json()["choices"][0]["message"]["reasoning_content"] == "想一想"
    gateway.exchange(replace(gateway.config, routes={"chat": HIDDEN}))
    second = await gateway.chat(temperature=0)
    assert second.headers["x-fewer-cache"] == "hit"
    assert "reasoning_content" not in second.json()["choices"][0]["message"]
    gateway.exchange(gateway.config)
    third = await gateway.chat(temperature=0)
    assert third.json()["choices"][0]["message"]["reasoning_content"] == "想一想"


async def test_the_control_arm_hides_too(serve: Serve) -> None:
    shape = ShapeConfig(reasoning="hidden", brevity="concise", holdout=1.0)
    gateway = await serving(serve, RouteConfig("one", shape=shape), backend("one", THOUGHT, SAID))
    response = await gateway.chat()
    assert decisions(response)["shape"]["arm"] == "control"
    assert "reasoning_content" not in response.json()["choices"][0]["message"]
    assert gateway.scripted.calls[0].request.messages == [{"role": "user", "content": "Hi"}]


async def test_a_fixed_answer_asks_no_model(serve: Serve) -> None:
    shape = ShapeConfig(answer="本服务已迁移到 api.example.com。")
    gateway = await serving(serve, RouteConfig("one", shape=shape), backend("one"))
    response = await gateway.chat(n=2)
    texts = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert texts == ["本服务已迁移到 api.example.com。"] * 2
    assert response.json()["usage"]["total_tokens"] == 0
    assert decisions(response)["shape"]["action"] == "answer"
    streamed = await gateway.chat(stream=True)
    assert "本服务已迁移到 api.example.com。" in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert not gateway.scripted.calls


async def test_a_prompt_that_is_too_long_is_a_400_with_both_numbers(serve: Serve) -> None:
    route = RouteConfig("one", input=InputConfig(20))
    gateway = await serving(serve, route, backend("one"))
    response = await gateway.chat(messages=[user("多少钱？" * 20)])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "the route chat takes 20" in error["message"]
    assert "history" not in error["message"]  # which could leave nothing out of one message
    assert not gateway.scripted.calls


async def test_a_run_that_went_too_far_is_a_400_that_says_so(serve: Serve) -> None:
    route = RouteConfig("one", agent=AgentConfig(1))
    gateway = await serving(serve, route, backend("one"))
    run = [user("取消"), calls("a"), result("a", "好"), calls("b"), result("b", "好")]
    response = await gateway.chat(messages=run, tools=TOOLS)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "agent_limit_exceeded")
    assert error["param"] == "messages"
    assert (await gateway.chat(messages=run, tools=TOOLS, tool_choice="none")).status_code == 200


def test_the_policies_file_shows_them_commented() -> None:
    """As all that waits until a route asks for it."""
    text = (Path(__file__).parents[2] / "fewer.yaml").read_text("utf-8")
    for section in ("shape", "input", "agent"):
        assert f"    # {section}:" in text
    route = load(Path(__file__).parents[2] / "fewer.yaml", {"HOME": "/nowhere"}).routes["chat"]
    assert (route.shape, route.input, route.agent) == (None, None, None)
    assert ShapePolicy.name not in [policy.name for policy in policies_of(route)]
