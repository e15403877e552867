"""`fewer route`: train a router between two models, and see what it would be worth."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.protocol.errors import SetupError

if TYPE_CHECKING:
    from gateway.routing.curve import Bootstrap
    from gateway.routing.outcomes import Numbers, Outcomes

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

DATA = """\
DATA.csv has a line for each prompt, and in its columns
  prompt                    the user's text
  weak, strong              how good each model's answer was: true or false, or 0 to 1
  weak_cost, strong_cost    what each answer has cost, in any unit (may be missing)
Columns of other names are given with --weak and --strong. A few hundred prompts of your own
traffic, answered by both models, are worth more than thousands of somebody else's.
"""

TRAIN = """
The file that is written has about 8 kB. In fewer.yaml:

  routes:
    chat:
      model: large
      route: {router: router.json, strong_share: 0.3, weak: small, strong: large}
"""

EVAL = """
Compare on prompts that the router was not trained on. "Gap recovered" is 0 when the weak model
answers everything, 1 when the strong one does; a router that chooses at random recovers as much as
it makes strong calls.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = actions.add_parser(
        "train",
        help="learn from two models' answers to the same prompts; takes seconds",
        description="Learn which prompts need the stronger of two models.",
        epilog=DATA + TRAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    evaluate = actions.add_parser(
        "eval",
        help="print quality against the share of strong calls",
        description="Print what a router makes of prompts whose outcomes are known.",
        epilog=DATA + EVAL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for action in (train, evaluate):
        action.add_argument("data", type=Path, metavar="DATA.csv", help="prompts and outcomes")
        for name in ("weak", "strong"):
            action.add_argument(
                f"--{name}",
                default=name,
                metavar="COLUMN",
                help=f"quality of the {name} model's answers (default: %(default)s)",
            )
    train.add_argument("--out", type=Path, required=True, metavar="FILE", help="the router")
    evaluate.add_argument(
        "--router", type=Path, required=True, metavar="FILE", help="as `fewer route train` wrote it"
    )


def run(arguments: argparse.Namespace) -> int:
    # The matrices are small: threads would wait for one another longer than they work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from gateway.routing.outcomes import Columns, read_outcomes

    columns = Columns(weak=arguments.weak, strong=arguments.strong)
    outcomes = read_outcomes(arguments.data, columns)
    if arguments.action == "train":
        _train(outcomes, arguments.out)
    else:
        _evaluate(outcomes, arguments.router)
    return 0


def _train(outcomes: Outcomes, path: Path) -> None:
    import msgspec

    from gateway.embedding import bundled
    from gateway.routing.training import train

    model = train(outcomes, bundled())
    data = msgspec.json.format(msgspec.json.encode(model), indent=0)
    try:
        path.write_bytes(data + b"\n")
    except OSError as error:
        raise SetupError(f"{path}: cannot be written: {error.strerror}.") from error
    trained = model.trained
    print(
        f"Trained on {trained.prompts:,} prompts; the weak model's quality is {trained.weak:.3f}, "
        f"the strong one's {trained.strong:.3f}."
    )
    print(f"Wrote {path}, {len(data) / 1000:.0f} kB.")


def _evaluate(outcomes: Outcomes, path: Path) -> None:
    import numpy as np

    from gateway.routing.loading import read_model, router_of

    if not float(outcomes.gains.sum()) > 0:
        raise SetupError("On these prompts the strong model is no better: there is no gap.")
    router = router_of(read_model(path))
    scores = np.array([router.score(prompt) for prompt in outcomes.prompts])
    weak, strong = float(outcomes.weak.mean()), float(outcomes.strong.mean())
    print(f"{len(outcomes):,} prompts. Quality: weak {weak:.3f}, strong {strong:.3f}.")
    if router.model.trained.data == outcomes.digest:
        print("The router was trained on these very prompts: on others it does less well.")
    _print_curve(outcomes, scores)


def _print_curve(outcomes: Outcomes, scores: Numbers) -> None:
    """Intervals hold 95 %. What chooses at random recovers the share itself."""
    from rich.console import Console
    from rich.table import Table

    from gateway.routing.curve import Bootstrap

    heads = ["STRONG", "THRESHOLD", "QUALITY", "GAP RECOVERED", "BY LENGTH", "MORE THAN LENGTH"]
    table = Table(box=None)
    for head in [*heads, "COST"] if outcomes.weak_cost is not None else heads:
        table.add_column(head, justify="right")
    bootstrap = Bootstrap(outcomes)
    for share in SHARES:
        table.add_row(*_cells(outcomes, scores, share, bootstrap))
    # In a pipe every row stays on one line.
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, width=width).print(table)


def _cells(
    outcomes: Outcomes, scores: Numbers, share: float, bootstrap: Bootstrap
) -> Iterator[str]:
    import numpy as np

    from gateway.routing.curve import cost, lengths, recovered

    by_length = lengths(outcomes)
    found, length = (recovered(way, outcomes, share) for way in (scores, by_length))
    samples, others = (bootstrap.recovered(way, share) for way in (scores, by_length))
    yield f"{share:.0%}"
    yield f"{np.quantile(scores, 1 - share):.3f}"
    yield f"{outcomes.weak.mean() + found * outcomes.gains.mean():.3f}"
    yield f"{found:.2f} {_interval(samples)}"
    yield f"{length:.2f}"
    yield f"{found - length:+.2f} {_interval(samples - others)}"
    if (spent := cost(scores, outcomes, share)) is not None:
        yield f"{spent:.3g}"


def _interval(samples: Numbers) -> str:
    from gateway.routing.curve import interval

    low, high = interval(samples)
    return f"[{low:+.2f}, {high:+.2f}]"
