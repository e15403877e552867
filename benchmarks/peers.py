"""The same work on other engines and on ours, over the same weights, in one run.

    make bench-peers                                      every peer, set up the first time
    make bench-peers ARGS='--only openvino --work batch'  one of them, one kind of work

Every engine runs in processes of its own, with the same number of threads, and waits while
another works; one that uses CPU while it waits is held still. Rounds are interleaved; figures
are medians, and what counts are the ratios. The tables are Markdown; the rows are also written
as JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.bench import end_in_order, say
from benchmarks.comparison import Entry, footprints, rounds, rows
from benchmarks.contenders import NEAREST_TO_Q8_0, PEERS, Contender, ours
from benchmarks.interference import busy_process
from benchmarks.jobs import CONTESTS, STREAM_TOKENS, STREAMS, Job, Reply
from benchmarks.machine import about
from benchmarks.prompts import Prompts
from benchmarks.report import RESULTS, about_line, save, section
from benchmarks.running import Running
from fewer import model_store

WAKE_TOKENS = 16
WARM_UP_OUTPUT_TOKENS = 8


@dataclass(slots=True)
class Turn:
    """A contender that runs. spins: it uses CPU while it waits, and so is paused meanwhile"""

    entry: Entry
    running: Running
    spins: bool = False

    @contextlib.contextmanager
    def awake(self) -> Iterator[Running]:
        if self.spins:
            processes.resume(self.running.pid)
        try:
            yield self.running
        finally:
            if self.spins:
                processes.pause(self.running.pid)


def main() -> int:
    end_in_order()
    arguments = _parser().parse_args()
    model = model_store.resolve(arguments.model)
    prompts = Prompts.of_model(model)
    contenders = ours(model, arguments.threads)
    for name in arguments.only or PEERS:
        contenders += PEERS[name](model, arguments.threads)
    takes_part = [one for one in contenders if one.works & set(arguments.work)]
    with contextlib.ExitStack() as stack:
        turns = [start(stack, contender, prompts) for contender in takes_part]
        for number in range(arguments.rounds):
            for name in arguments.work:
                _round(f"round {number + 1} of {arguments.rounds}", name, turns, prompts)
        for turn in turns:
            turn.entry.peak_mb = processes.peak_mb(turn.running.pid)
    _report([turn.entry for turn in turns], arguments)
    return 0


def start(stack: contextlib.ExitStack, contender: Contender, prompts: Prompts) -> Turn:
    """Start it until its first token; the quick ones twice, so that files are warm."""
    say(f"starting {contender.engine} {contender.weights}, {contender.through}")
    if not contender.slow:
        with contender.open() as running:
            running.wake(prompts.draw(WAKE_TOKENS))
    began = time.monotonic()
    running = stack.enter_context(contender.open())
    running.wake(prompts.draw(WAKE_TOKENS))
    start_s = round(time.monotonic() - began, 2)
    entry = Entry(contender, running.version, start_s, processes.resident_mb(running.pid))
    running.run(_warm_up(prompts))
    turn = Turn(entry, running, processes.spins(running.pid))
    if turn.spins:
        say(f"{contender.engine} uses CPU while it waits; it is held still between its turns")
        processes.pause(running.pid)
    return turn


def _warm_up(prompts: Prompts) -> Job:
    """Work that does not count: engines set up on the way what they need for many at once."""
    drawn = [prompts.draw(STREAM_TOKENS[0]) for _ in range(STREAMS)]
    return Job(drawn, [WARM_UP_OUTPUT_TOKENS] * STREAMS, STREAMS)


def _round(which: str, work: str, turns: Sequence[Turn], prompts: Prompts) -> None:
    job = CONTESTS[work].make(prompts)
    for turn in turns:
        contender = turn.entry.contender
        if work in contender.works:
            say(f"{which}: {work}, {contender.engine} {contender.weights}, {contender.through}")
            with turn.awake() as running:
                turn.entry.replies.setdefault(work, []).append((job, _run(running, job)))


def _run(running: Running, job: Job) -> Reply:
    with busy_process() if job.beside_busy else contextlib.nullcontext():
        return running.run(job)


def _report(entries: list[Entry], arguments: argparse.Namespace) -> None:
    facts = {"model": arguments.model, "threads": arguments.threads, "rounds": arguments.rounds}
    facts |= about()
    compared = rows(entries, facts, "q4_1")
    nearest = NEAREST_TO_Q8_0 | {"fewer": "q8_0"}
    of_equal = [one for one in entries if one.contender.weights == nearest[one.contender.engine]]
    equal = rows(of_equal, facts, "q8_0")
    memory = footprints(entries)
    print(f"\n{about_line(facts)}\n")
    print(section("peers", "ours with Q4_1 against each; times: less is better", compared))
    print(section("equal precision", "ours with Q8_0 against the nearest of theirs", equal))
    print(section("start and memory", "until the first token, files warm; MiB", memory))
    content = {"about": facts, "rows": compared, "equal_precision": equal}
    content |= {"footprints": memory, "rounds": rounds(entries)}
    print(f"Written to {save(arguments.name, content, arguments.results)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="default: all of them")
    parser.add_argument(
        "--work", nargs="+", choices=CONTESTS, default=list(CONTESTS), help="default: all of it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--name", default="peers", help="of the JSON file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="its folder")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
