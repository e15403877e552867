"""From which similarity on two texts may be one question: for each script another.

On one embedding, pairs of Chinese texts sit far higher than pairs of English ones: its vocabulary
has a token for a word of English, and one for a character or a byte of Chinese, which most texts
share. Calibrated on one half of the data (`benchmarks/semantic.py --calibrate`), told on the other:
with the words read as well, the bound of wrong answers holds from 0.5 on, and these are the lowest
values at which the vectors still say something; each step up costs hits.
"""

from __future__ import annotations

from policies.features import script_of

VERSION = 1
"""Goes up with every change of a threshold."""

ANSWER = {"latin": 0.70, "han": 0.80}
"""Where an old answer takes the place of a new one."""

DRAFT = {"latin": 0.60, "han": 0.75}
"""Where it is only a draft: what is wrong in it costs a little time, and never an answer."""

OTHER = 0.95
"""Of every script that nothing was measured for."""


def threshold(text: str, *, answers: bool) -> float:
    """Cosine of two texts of the script that this one is of."""
    return (ANSWER if answers else DRAFT).get(script_of(text) or "", OTHER)
