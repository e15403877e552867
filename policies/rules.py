"""Rules of a router: what can be told of a prompt without having learned anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Literal

from policies.features import is_code, script_of
from policies.prompt import Prompt

Has = Literal["tools", "images", "code"]


class Rule:
    """Holds for a prompt that is all of what it says.

    model:      answers then
    min_tokens, max_tokens: of the prompt
    has:        all of these
    script:     the script of most of its words, a name of `policies.features.SCRIPTS`
    pattern:    a regular expression that is found in the text
    """

    def __init__(
        self,
        model: str,
        *,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        has: tuple[Has, ...] = (),
        script: str | None = None,
        pattern: str | None = None,
    ) -> None:
        """Raises `re.error` for a pattern that is none."""
        self.model = model
        self._least = min_tokens
        self._most = max_tokens
        self._has = has
        self._script = script
        self._pattern = None if pattern is None else re.compile(pattern)

    def holds(self, prompt: Prompt) -> bool:
        """Pure. Cheap questions first."""
        return (
            all(_HAS[kind](prompt) for kind in self._has)
            and (self._least is None or prompt.tokens >= self._least)
            and (self._most is None or prompt.tokens <= self._most)
            and (self._script is None or script_of(prompt.text) == self._script)
            and (self._pattern is None or self._pattern.search(prompt.text) is not None)
        )

    @cached_property
    def condition(self) -> str:
        """In a few words of ASCII. Not the pattern: it may say what clients are not to know."""
        said: list[str] = [*self._has]
        if self._least is not None:
            said.append(f"{self._least} tokens and more")
        if self._most is not None:
            said.append(f"{self._most} tokens at most")
        if self._script is not None:
            said.append(f"script {self._script}")
        if self._pattern is not None:
            said.append("pattern")
        return ", ".join(said) or "everything else"


_HAS: dict[Has, Callable[[Prompt], bool]] = {
    "tools": lambda prompt: prompt.has_tools,
    "images": lambda prompt: prompt.has_images,
    "code": lambda prompt: is_code(prompt.text),
}
