"""The Jinja in which chat templates run: as Hugging Face's, sandboxed, guarded and bounded.

A template is a program that came with the model file. Jinja's immutable sandbox keeps it from
the host; a budget of steps and characters keeps it, and what users make it do, from running or
growing without end. Guarded strings (see `guard`) show their real characters wherever a
template asks a question whose answer is not text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from engine.text.guard import Guard

MAX_STEPS = 200_000
MAX_CHARS = 128 * 1024 * 1024
_MAX_REPEAT_CHARS = 1024 * 1024

_QUESTIONS = frozenset("startswith endswith find rfind index rindex count".split())
"""Methods of a string whose results are not text: they are asked of the real characters."""
_ANSWERS = frozenset("split rsplit replace strip lstrip rstrip partition rpartition "
                     "removeprefix removesuffix".split())  # fmt: skip
"""Methods whose results are parts of the string: their arguments are guarded to match it."""


@dataclass(slots=True)
class Budget:
    """What one rendering may still use: loop rounds and calls, and characters built."""

    steps: int = MAX_STEPS
    chars: int = MAX_CHARS

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise TemplateError(f"it takes more than {MAX_STEPS} steps")

    def build(self, value: Any) -> Any:
        if isinstance(value, str):
            self.chars -= len(value)
            if self.chars < 0:
                raise TemplateError(f"it builds more than {MAX_CHARS} characters")
        return value


budget: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering that runs in this thread; `ChatTemplate` sets it."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """
    guard: the twins of the model's markers
    clock: what `strftime_now` formats
    """

    intercepted_binops = frozenset(["+", "*", "**"])

    def __init__(self, guard: Guard, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Tracked],
            finalize=self._text,
        )
        self._guard = guard
        self.globals = {
            "dict": dict,
            "range": self.globals["range"],
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "strftime_now": lambda pattern: clock().strftime(pattern),
        }
        self.filters |= {
            "tojson": self._to_json,
            "replace": self._replace,
            "string": self._text,
            "_text": self._text,
            "_rounds": _rounds,
            "_built": _built,
            "_real": self._real,
        }

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call from a template, counted; a guarded string's own methods see through it."""
        budget.get().step()
        text, method = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str) and __self._guard.guarded(text):
            if method in _QUESTIONS:
                __obj = getattr(__self._guard.restore(text), method)
            elif method in _ANSWERS:
                args = tuple(__self._guarded(argument) for argument in args)
        return budget.get().build(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateError("powers are not available")
        if operator == "*":
            _check_repeat(left, right)
        return budget.get().build(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = Parser(self, source, name, filename).parse()
        _Rewriter().visit(template)
        return template

    def _text(self, value: Any) -> Any:
        """Python writes a container by `repr`, which would spell out the twins inside it."""
        if isinstance(value, (dict, list, tuple)):
            return self._guard.guard(str(self._guard.restore_tree(value)))
        return value if isinstance(value, str) else str(value)

    def _guarded(self, value: Any) -> Any:
        return self._guard.guard(value) if isinstance(value, str) else value

    @pass_context
    def _real(self, context: Context, value: Any) -> Any:
        return self._guard.restore(value) if isinstance(value, str) else value

    @pass_context
    def _replace(self, context: Context, text: Any, old: str, new: str, count: int = -1) -> str:
        text = str(text)
        if self._guard.guarded(text):
            old, new = self._guarded(old), self._guarded(new)
        replaced: str = budget.get().build(text.replace(old, new, count))
        return replaced

    @pass_context
    def _to_json(
        self,
        context: Context,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Hugging Face's `tojson`: no HTML escapes. JSON of anything counts as data."""
        text = json.dumps(
            value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
        text = self._guard.restore(budget.get().build(text))
        if ensure_ascii:
            text = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
        return self._guard.guard(text)


class _Rewriter(NodeTransformer):
    """Puts the counting and the seeing through into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_rounds")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(part, "_text") for part in node.nodes]
        return _filtered(node, "_built")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_real")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_real")
        return node


class _Tracked(Extension):
    """`{% generation %}` marks answers for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    expression = cast("nodes.Expr", node)  # Jinja types a loop's `iter` too widely
    return nodes.Filter(expression, name, [], [], None, None, lineno=node.lineno)


@pass_context  # also keeps Jinja from folding these while it compiles
def _rounds(context: Context, value: Any) -> list[Any]:
    items = list(value)
    budget.get().step(len(items))
    return items


@pass_context
def _built(context: Context, value: Any) -> Any:
    return budget.get().build(value)


def _check_repeat(left: Any, right: Any) -> None:
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
        if len(sequence) * count > _MAX_REPEAT_CHARS:
            raise TemplateError(f"it repeats something to more than {_MAX_REPEAT_CHARS}")
    elif isinstance(left, int) and isinstance(right, int) and left.bit_length() > 64:
        raise TemplateError("it computes with more than 64 bits")


def _raise(message: str) -> None:
    raise TemplateRefusal(message)


class TemplateRefusal(TemplateError):
    """The template's own `raise_exception`."""
