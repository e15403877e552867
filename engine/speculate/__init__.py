"""Guesses at what comes next, verified in the step that would have computed one token.

Accept iff equal: at every position the engine's own token is sampled by the rule that always
holds, from that position's logits, penalties and noise; a guess counts only while it is that very
token, and the first that is not gives way to it. So no guess, however bad, changes an answer.
"""
