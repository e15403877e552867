"""The contract of every policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from policies.context import Context, Outcome
from policies.decision import Decision
from policies.request import Request

Mode = Literal["disabled", "shadow", "active"]
"""disabled: not asked; shadow: asked and reported, but nothing changes; active: obeyed."""


class Transformer(Protocol):
    """Changes the events of one answer as they pass. No I/O; may hold events back.

    Events are those of the engine protocol, in order, without the terminal. `flush` is called
    once, before a successful terminal, and gives what was held back; a failed answer is not
    flushed.
    """

    def feed(self, event: Any) -> list[Any]: ...

    def flush(self) -> list[Any]: ...


class Policy(ABC):
    """A decision about each request. One instance serves all requests of a route.

    holdout: share of the conversations in whose control arm an active policy is not obeyed:
             it is asked and reported, `control` holds in its place, and nothing of the request
             or its answer is read from, joined to, or kept for others
    epoch:   names its settings (`policies.holdout.epoch_of`)
    """

    name: str
    mode: Mode
    holdout: float = 0.0
    epoch: str = ""

    @abstractmethod
    def decide(self, request: Request, context: Context) -> Decision:
        """Pure: the same request and context give the same decision. Never raises."""

    def recalls(self, request: Request, context: Context) -> Sequence[bytes]:
        """Keys of what `decide` is to find in `context.known`; pure, and never raises.

        They name texts that were kept for an earlier request of the same tenant. None, as for
        most, costs nothing.
        """
        return ()

    def control(self, request: Request, context: Context) -> Decision | None:
        """What holds in the control arm in place of `decide`; pure, and never raises.

        It also holds for everybody once an active policy was found to do harm. None, as for most,
        changes nothing; a limit that protects the service is what must hold all the same.
        """
        return None

    def transformer(self, request: Request, context: Context) -> Transformer | None:
        """For the answer to `request`, as it is after all policies. None leaves it alone.

        Asked for wherever `decide` is obeyed or `control` says something.
        """
        return None

    def settled(self, context: Context, outcome: Outcome) -> None:
        """The request has ended; called once, only if this policy decided about it."""
        return
