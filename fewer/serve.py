"""`fewer serve`: an engine for each gguf model and the gateway, as one service with one log."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import TYPE_CHECKING

from fewer import options

if TYPE_CHECKING:
    from fewer.launch import Launch
    from fewer.supervisor import Supervisor

NAME = "fewer"
"""Our own name in the log, beside those of the models and of the gateway."""

STOP_GRACE_S = 5.0
"""Beyond the drain that the configuration allows, before a child is killed."""

CONNECT_DEADLINE_S = 10.0
"""For the gateway to find its engines, once all are up."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Ctrl-C lets running answers finish; a second one ends at once."
    options.add_config(parser)
    options.add_model(parser)
    options.add_listening(parser)
    options.add_engine_port(parser, "first of the engines' ports, on this machine only")
    options.add_executor(parser)


def run(arguments: argparse.Namespace) -> int:
    from fewer.launch import prepare

    return asyncio.run(_serve(prepare(arguments)))


async def _serve(launch: Launch) -> int:
    """Until a signal ends it. Whatever happens, no child is left behind."""
    supervisor, say = _children(launch)
    stop = _stop_event(supervisor)
    try:
        if not await _stopped_while(stop, _start(launch, supervisor, say)):
            await stop.wait()
        drain_s = launch.config.server.drain_s
        say(f"stopping; running answers may take {drain_s:g} s. Ctrl-C again ends at once")
        await supervisor.stop(drain_s + STOP_GRACE_S)
        say("stopped")
    finally:
        await supervisor.close()
    return 0


def _children(launch: Launch) -> tuple[Supervisor, Callable[[str], None]]:
    """A supervisor of all processes, and what writes our own lines into their log."""
    from fewer.child import Child
    from fewer.merged_log import MergedLog
    from fewer.paths import TOKEN_VARIABLE, engine_token
    from fewer.supervisor import Supervisor

    engines = [engine.name for engine in launch.engines]
    log = MergedLog([NAME, "gateway", *engines], partial(print, flush=True))
    environ = {TOKEN_VARIABLE: engine_token()}
    children = [Child("gateway", launch.gateway, log, environ)]
    children += [Child(engine.name, engine.command, log, environ) for engine in launch.engines]
    say = partial(log.line, NAME)
    return Supervisor(children, say), say


async def _start(launch: Launch, supervisor: Supervisor, say: Callable[[str], None]) -> None:
    from fewer.banner import banner
    from fewer.health import until_ready

    def read_models() -> dict[str, str]:
        from fewer.survey import survey

        return survey(launch)

    names = ", ".join(["the gateway", *(engine.name for engine in launch.engines)])
    say(f"starting {names}")
    with _spinner(f"starting {names}"):
        fits, _ = await asyncio.gather(asyncio.to_thread(read_models), supervisor.start())
        servable = await until_ready(launch.url, CONNECT_DEADLINE_S)
    supervisor.keep()
    print(banner(launch, fits, servable, _keyed(launch)), flush=True)


def _keyed(launch: Launch) -> bool:
    from gateway.stores.keys import KeyStore

    with closing(KeyStore(launch.config.store)) as store:
        return not store.is_empty()


async def _stopped_while(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do `work`, unless `stop` comes first. Raises what `work` raises."""
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    working, stopping = tasks
    stopping.cancel()
    if working.done():
        await working
        return stop.is_set()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return True


def _stop_event(supervisor: Supervisor) -> asyncio.Event:
    """Set by the first signal that asks us to end; a second one ends the children at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    # A terminal that was closed says so by SIGHUP; to a service it says that files have changed.
    loop.add_signal_handler(signal.SIGHUP, on_signal if os.isatty(0) else supervisor.hang_up)
    return stop


def _spinner(text: str) -> AbstractContextManager[object]:
    """Something that moves while we wait; nothing where the output is not a terminal."""
    from rich.console import Console

    # Lines of the log that are printed meanwhile keep their length: the terminal wraps them.
    return Console(highlight=False, markup=False, soft_wrap=True).status(text)
