"""The forms of one English word as one."""

from __future__ import annotations

_IRREGULAR = """
    use used using|make made|take took taken|give gave given|get got gotten|go went gone
    find found|build built
    keep kept|hold held|run ran|write wrote written|begin began begun|choose chose chosen
    buy bought|show shown|mean meant|send sent|do done|say said|see saw seen|know knew known
    person people|child children|man men|woman women|foot feet|tooth teeth|mouse mice
    datum data|index indices|split split|let let|eat ate eaten|drink drank drunk|come came
    become became|leave left|lose lost|pay paid|speak spoke spoken|think thought|tell told
"""


def _irregular() -> dict[str, str]:
    lines = (line for part in _IRREGULAR.split("\n") for line in part.split("|"))
    return {form: words[0] for line in lines if (words := line.split()) for form in words[1:]}


_BASES = _irregular()

_ENDINGS = (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""))
_LEAST = 3
"""Letters that a word keeps: `is`, `bed` and `king` have no endings."""


def stem(word: str) -> str:
    """The same for the forms of one verb or noun; not itself a word."""
    word = _BASES.get(word, word)
    for ending, instead in _ENDINGS:
        left = len(word) - len(ending)
        if not word.endswith(ending) or left < _LEAST or word.endswith(("ss", "us", "is")):
            continue
        word = word[:left] + instead
        if ending in ("ing", "ed") and word[-1] == word[-2] and word[-1] not in "lsz":
            word = word[:-1]
        break
    return word[:-1] if word.endswith("e") and len(word) > _LEAST else word
