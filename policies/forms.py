"""What form the answer to a request must have, as far as the request says so."""

from __future__ import annotations

from policies.request import Request

STRUCTURE_NAMES = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "grammar", "json_schema",
)  # fmt: skip
"""Beside `response_format`: an answer of a form that the end of a sentence does not complete."""


def names_form(request: Request) -> bool:
    """Does the client say a form, if only that it is text?"""
    return any(request.parameters.get(name) for name in ("response_format", *STRUCTURE_NAMES))


def offers_tools(request: Request) -> bool:
    """By OpenAI's present name or its former one, whether or not they may be called now."""
    return bool(request.tools) or bool(request.parameters.get("functions"))


def may_call(request: Request) -> bool:
    """May the answer be the call of a tool, by either name?"""
    functions, choice = (request.parameters.get(n) for n in ("functions", "function_call"))
    return bool(
        (request.tools and request.tool_choice != "none") or (functions and choice != "none")
    )


def may_think(request: Request) -> bool:
    """Unless the client says, in OpenAI's words or in those of the servers that have Qwen's
    template, that the model is not to."""
    template = request.parameters.get("chat_template_kwargs")
    is_off = isinstance(template, dict) and template.get("enable_thinking") is False
    in_chat = request.surface == "chat"
    return in_chat and not is_off and request.parameters.get("reasoning_effort") != "none"


def must_be_whole(request: Request) -> bool:
    """Is it to be JSON or another set form, or may it come to the call of a tool?"""
    form = request.parameters.get("response_format")
    kind = form.get("type", "text") if isinstance(form, dict) else "text"
    formed = kind != "text" or any(request.parameters.get(name) for name in STRUCTURE_NAMES)
    return formed or request.schema is not None or may_call(request)
