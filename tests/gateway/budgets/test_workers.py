"""Several processes over one file: together they grant what one alone would."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

from gateway.stores.budget import Take
from gateway.stores.budget_sqlite import SqliteBudgetStore

PROCESSES = 3
ASKED = 40
AMOUNT = 7
LIMIT = 500

SCRIPT = """
import asyncio, sys
from pathlib import Path
from gateway.stores.budget import Take
from gateway.stores.budget_sqlite import SqliteBudgetStore

async def main(path, name, amount, limit, asked):
    takes = [Take("minute", amount, limit, True), Take("budget", amount, limit, False)]
    store = SqliteBudgetStore(Path(path), deadline_s=20)
    # Nobody begins before all are there.
    print("here", flush=True)
    sys.stdin.readline()
    granted = [lease for n in range(asked) if
               (await store.reserve(lease := f"{name}-{n}", takes, 3600)).granted]
    for lease in granted[::2]:
        await store.settle(lease, takes)
    await store.aclose()
    print(len(granted), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
"""


def test_processes_share_a_limit_exactly(tmp_path: Path) -> None:
    path = tmp_path / "budgets.sqlite3"
    root = Path(__file__).parents[3]
    numbers = [str(number) for number in (AMOUNT, LIMIT, ASKED)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), f"worker{n}", *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for n in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == "here\n"
    granted = [int(worker.communicate("go\n")[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    assert sum(granted) == LIMIT // AMOUNT < PROCESSES * ASKED
    assert asyncio.run(used(path)) == [sum(granted) * AMOUNT] * 2


async def used(path: Path) -> list[int]:
    takes = [Take("minute", 0, LIMIT, True), Take("budget", 0, LIMIT, False)]
    async with aclosing(SqliteBudgetStore(path, deadline_s=20)) as store:
        return [state.used for state in await store.look(takes)]
